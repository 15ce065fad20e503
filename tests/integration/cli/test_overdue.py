"""
`overdue`: what no worker brings back is found, and sent again once (celery/celery#1810, #3501: it vanished unseen).
"""

import json

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner
from kombu import Exchange, Queue

from celery_safeguards import Safeguards, SafeTask
from celery_safeguards.cli import safeguards
from celery_safeguards.delivery.connections import hardened_connection
from celery_safeguards.delivery.parking import park
from tests.support import apps
from tests.support.sockets import free_port

pytestmark = pytest.mark.redis
VISIBILITY_SECONDS = 60


@pytest.fixture(params=["stock", "hardened"])
def app(request, redis_url, namespace):
    """An app of either transport whose workers are all gone."""
    with Celery("stopped", broker=redis_url, set_as_current=False) as app:
        settings = apps.queue_settings(namespace)
        settings["broker_transport_options"]["visibility_timeout"] = VISIBILITY_SECONDS
        app.conf.update(
            {**settings, "safeguards_store_url": "memory://", "safeguards_transport": request.param},
            task_ignore_result=True,
        )

        @app.task(name="shop.pay", base=SafeTask, shared=False, safeguards=Safeguards(repeatable=True))
        def pay(number):
            return number

        yield app


@pytest.fixture
def left(app, redis_client, namespace):
    """Two messages that a worker had when it died: one was unacknowledged, the other one parked."""
    with hardened_connection(app) as connection:
        channel = connection.default_channel
        for number in (1, 2):
            app.tasks["shop.pay"].apply_async((number,), task_id=f"t{number}")
        queue = app.amqp.queues[namespace](channel)
        _, parked = (queue.get() for _ in range(2))
        assert park(channel, parked.delivery_tag, {}, 0)
        # As a process that was killed leaves them: nothing is put back.
        channel.do_restore = False
    prefix = f"{namespace}.unacked"

    def lie_for(seconds):
        for name in (f"{prefix}_index", f"{prefix}_parked"):
            for tag in redis_client.zrange(name, 0, -1):
                redis_client.zincrby(name, -seconds, tag)

    return lie_for


def ask(app, *words):
    return CliRunner().invoke(safeguards, ["overdue", *words], obj=CLIContext(app=app, no_color=True, workdir=None))


def queued(redis_client, namespace):
    messages = [json.loads(each) for each in redis_client.lrange(f"{namespace}.{namespace}", 0, -1)]
    return sorted(each["headers"]["id"] for each in messages)


def test_what_may_yet_come_back_is_not_listed(app, left):
    left(5)

    done = ask(app)

    assert (1, "nothing is overdue\n") == (done.exit_code, done.stderr)


def test_what_nobody_brings_back_is_listed_and_left(app, left, redis_client, namespace):
    left(VISIBILITY_SECONDS + 200)

    done = ask(app, "--json")

    assert 0 == done.exit_code, done.output
    found = {each["task_id"]: each for each in json.loads(done.stdout)}
    assert {"t1": "unacknowledged", "t2": "parked"} == {name: each["place"] for name, each in found.items()}
    assert {("shop.pay", False)} == {(each["task"], each["is_sent_again"]) for each in found.values()}
    assert all(each["over_seconds"] >= VISIBILITY_SECONDS for each in found.values())
    assert [] == queued(redis_client, namespace)


def test_what_is_sent_again_is_sent_once_under_its_own_id(app, left, redis_client, namespace):
    left(VISIBILITY_SECONDS + 200)

    first, second = ask(app, "--resend"), ask(app, "--resend")

    assert "2 of 2 sent again" in first.stderr
    assert "t1" in first.stdout
    assert (1, "0 of 0 sent again") == (second.exit_code, second.stderr.splitlines()[-1])
    assert ["t1", "t2"] == queued(redis_client, namespace)
    assert [] == list(redis_client.scan_iter(f"{namespace}.unacked*"))


@pytest.mark.parametrize("is_known", [True, False])
def test_what_came_by_a_topic_exchange_goes_where_it_is_bound_or_stays(redis_url, redis_client, namespace, is_known):
    """Of the stock transport an entry names an exchange, perhaps another app's; set aside, nobody would look for it."""
    settings = {**apps.queue_settings(namespace), "safeguards_store_url": "memory://"}
    settings["broker_transport_options"]["visibility_timeout"] = VISIBILITY_SECONDS
    queue = Queue(namespace, Exchange(f"{namespace}.shop", type="topic"), routing_key="orders.#")
    with Celery("stopped", broker=redis_url, set_as_current=False) as app:
        app.conf.update({**settings, "task_queues": [queue]})
        with app.connection_for_write() as connection:
            channel = connection.default_channel
            queue(channel).declare()
            app.send_task("shop.pay", (1,), task_id="t1", exchange=queue.exchange, routing_key="orders.new")
            assert queue(channel).get()
            channel.do_restore = False
        index = f"{namespace}.unacked_index"
        (tag,) = redis_client.zrange(index, 0, -1)
        redis_client.zincrby(index, -VISIBILITY_SECONDS - 200, tag)

    with Celery("looks", broker=redis_url, set_as_current=False) as app:
        app.conf.update({**settings, "task_queues": [queue] if is_known else None})
        done = ask(app, "--resend")

    assert f"{int(is_known)} of 1 sent again" in done.stderr
    assert ["t1"] * is_known == queued(redis_client, namespace)
    assert is_known != redis_client.hexists(f"{namespace}.unacked", tag)


def test_broker_that_is_away_ends_with_3():
    with Celery("away", broker=f"redis://127.0.0.1:{free_port()}/0", set_as_current=False) as app:
        app.conf.safeguards_store_url = "memory://"

        assert 3 == ask(app).exit_code


def test_other_brokers_are_a_usage_error():
    with Celery("other", broker="memory://", set_as_current=False) as app:
        app.conf.safeguards_store_url = "memory://"

        assert 2 == ask(app).exit_code
