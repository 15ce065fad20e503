"""
A shop whose queue dead-letters into another one, on a real RabbitMQ; letters and records are in Redis.
"""

import contextlib
import json

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from kombu import Exchange, Producer, Queue

from celery_safeguards.cli import safeguards
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import make_app, make_shop
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 10
LIMIT = 2


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request):
    """What kind of queue both are."""
    return request.param


@pytest.fixture
def dead(namespace):
    """Name of the dead-letter queue."""
    return f"{namespace}.dead"


@pytest.fixture
def app(rabbitmq_broker, redis_url, namespace, dead, queue_type):
    """An app whose only queue rejects into the dead-letter queue; both are declared, and in the end deleted."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-queue-type": queue_type}
    if queue_type == "quorum":
        arguments["x-delivery-limit"] = LIMIT
    queue = Queue(namespace, Exchange(namespace, type="topic"), routing_key="work", queue_arguments=arguments)
    with make_app(rabbitmq_broker.url, redis_url, namespace, task_queues=[queue], safeguards_release="v4.2") as app:
        Wiring.of(app).admission.declare_new()
        with app.connection_for_write() as connection:
            channel = connection.default_channel
            Queue(dead, queue_arguments={"x-queue-type": queue_type}, no_declare=True)(channel).queue_declare()
            queue(channel).declare()
        yield app
    for name in (namespace, dead):
        rabbitmq_broker.delete(name)


@pytest.fixture
def shop(app):
    """The shop's tasks."""
    return make_shop(app)


class Broker:
    """What happens in the broker, without a worker."""

    def __init__(self, app, server, queue, dead):
        self._app = app
        self.server = server
        self.queue = queue
        self.dead = dead
        self._stack = contextlib.ExitStack()
        self._connection = self._stack.enter_context(app.connection_for_read())
        self.channel = self._connection.default_channel

    def close(self):
        self._stack.close()

    def take(self):
        """Take the next message from the shop's queue, held."""
        return wait_until(self._get, PATIENCE_SECONDS, "a message waits")

    def reject(self):
        """Have a consumer reject the next message; returns it."""
        message = self.take()
        message.reject()
        return message

    def put_raw(self, body, queue=None, **properties):
        """Publish bytes to a queue as some other program might."""
        Producer(self.channel).publish(body, routing_key=queue or self.queue, **properties)

    def waiting(self, count, queue=None):
        """Wait until so many messages are in the dead-letter queue, unless told which."""
        name = queue or self.dead
        wait_until(lambda: self.server.ready(name) == count, PATIENCE_SECONDS, f"{count} messages in {name}")

    def _get(self):
        raw = self.channel.basic_get(self.queue)
        if raw is None:
            return None
        message = self.channel.message_to_python(raw)
        message.accept = {"application/json"}
        return message


@pytest.fixture
def broker(app, rabbitmq_broker, namespace, dead):
    """The broker as a consumer and a foreign producer have it."""
    with contextlib.closing(Broker(app, rabbitmq_broker, namespace, dead)) as broker:
        yield broker


@pytest.fixture
def cli(app):
    """Run a command as `cli("dead", "list")`."""

    def run(*words, app=app):
        context = CLIContext(app=app, no_color=True, workdir=None)
        return CliRunner().invoke(safeguards, [*words], obj=context)

    return run


@pytest.fixture
def ingest(cli, dead):
    """Ingest the dead-letter queue; returns the counts that are not zero."""

    def run(*words, code=0):
        done = cli("dead", "ingest", dead, "--json", *words)
        assert code == done.exit_code, done.output
        return {fate: count for fate, count in json.loads(done.stdout).items() if count}

    return run


@pytest.fixture
def letters(app):
    """Return all letters, the newest failure first."""
    return lambda: Wiring.of(app).letters.list(limit=100).letters
