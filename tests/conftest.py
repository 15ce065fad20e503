"""
Fixtures that start real things: each is stopped and removed again, also when a test fails or the run is interrupted.
"""

import contextlib
import logging
import os
import signal
import sys
import uuid

import pytest
import redis
from celery import Celery

from example_project.gateway import Gateway, GatewayClient
from tests.support import apps, databases, postgres, rabbitmq, servers, sqs, workers
from tests.support.announcements import Announcements
from tests.support.sockets import free_port

_SETTINGS_MODULE = "DJANGO_SETTINGS_MODULE"
_its_module = os.environ.get(_SETTINGS_MODULE)


def pytest_collection_finish():
    """Refuse to run where importing a test has named a project: every worker that a test starts would load it."""
    if os.environ.get(_SETTINGS_MODULE) != _its_module:
        raise pytest.UsageError(f"{_SETTINGS_MODULE} is {os.environ[_SETTINGS_MODULE]!r} since a test was imported")


def pytest_configure(config):
    # A plain SIGTERM would end the run without tearing down any fixture and leave servers and workers behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Report what was captured of half a pair of surrogates: it does not come from one process to another as it is."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def _interrupt(number, _frame):
    raise KeyboardInterrupt(f"signal {number}")


@pytest.fixture(autouse=True)
def root_level():
    """A worker in this process, as some tests have it, sets the level of all logs."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(scope="session")
def redis_url():
    """URL, with database number, of a server for the whole session: given by the environment, or embedded."""
    given = servers.given_url()
    if given:
        yield given
        return
    with servers.redis_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def sqlite_alias(tmp_path_factory):
    """Name of a migrated SQLite database of the project, for the whole session."""
    file = tmp_path_factory.mktemp("sqlite") / "db.sqlite3"
    with databases.added("sqlite", databases.sqlite(file)) as alias:
        databases.migrate(alias)
        yield alias


@pytest.fixture(scope="session")
def postgres_url():
    """URL of a PostgreSQL server for the whole session: given by the environment, or embedded."""
    given = postgres.given_url()
    if given:
        yield given
        return
    with postgres.postgres_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def postgres_alias(postgres_url):
    """Name of a migrated PostgreSQL database of the project, for the whole session."""
    with (
        postgres.fresh_database(postgres_url) as url,
        databases.added("postgres", databases.postgres(url)) as alias,
    ):
        databases.migrate(alias)
        yield alias


@pytest.fixture(scope="session")
def rabbitmq_broker():
    """A RabbitMQ of this session's own."""
    with rabbitmq.rabbitmq_server() as server:
        yield server


@pytest.fixture(scope="session")
def sqs_url():
    """URL of a server that is like Amazon SQS, for the whole session."""
    with sqs.sqs_server() as url:
        yield url


@pytest.fixture
def redis_client(redis_url):
    """A client of the session's server that answers with text."""
    with redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=5) as client:
        yield client


@pytest.fixture
def namespace(request):
    """
    A name that no other test has: for `safeguards_namespace`, the Celery queue and kombu's key prefix.

    On the session's server, whatever was stored under it is deleted when the test ends.
    """
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    if "redis_url" in request.fixturenames:
        with redis.Redis.from_url(request.getfixturevalue("redis_url"), socket_timeout=5) as client:
            servers.forget(client, name)


@pytest.fixture
def fresh_redis(tmp_path):
    """A server for this test alone that loses no write: stop it, kill it, freeze it, start it again."""
    with servers.redis_server(appendonly=True, tmp_path=tmp_path) as server:
        yield server


@pytest.fixture
def gateway(tmp_path):
    """A client of a payment gateway that runs in this process, apart from the workers."""
    with Gateway(tmp_path / "ledger.jsonl", port=free_port()) as server:
        yield GatewayClient(server.url)


@pytest.fixture
def announcements():
    """What the processes under test say, and the gates where they wait."""
    with Announcements() as announcements:
        yield announcements


@pytest.fixture
def worker_env(redis_url, namespace):
    """The environment of a test app on the session's server, to be copied and changed."""
    return {apps.BROKER_URL: redis_url, apps.STORE_URL: redis_url, apps.NAMESPACE: namespace}


@pytest.fixture
def producer(redis_url, namespace):
    """
    A Celery app on the session's server that sends to the queue of this test, and keeps no results.

    With a result back end every `AsyncResult` unsubscribes when it is collected, which fails after the server has gone.
    """
    with Celery("producer", broker=redis_url, set_as_current=False) as app:
        app.conf.update(apps.queue_settings(namespace))
        yield app


@pytest.fixture
def start_worker(announcements, namespace, tmp_path):
    """
    Start workers as `start_worker(app_module, env, ...)`; see `tests.support.workers.start_worker`.

    When the test ends they are killed, before the namespace is cleared, and what they wrote is shown if it has failed.
    """
    with contextlib.ExitStack() as started:

        def start(app_module, env, **options):
            worker = workers.start_worker(app_module, env, announcements=announcements, directory=tmp_path, **options)
            started.callback(lambda: sys.stdout.write(f"--- log of {worker.name}\n{worker.log()}\n"))
            started.callback(worker.kill_all)
            return worker

        yield start
