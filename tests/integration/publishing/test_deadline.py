"""
A publish is over by its deadline, whatever the broker does; without the safeguards the same publish hangs.

The reports: `delay()` hangs for ever, or honours its retry policy once only, when the broker is down or paused
(celery/celery#4296, #4556, #4663, #4383, #6911, #4627, #2689).
"""

import contextlib
import json

import pytest
from kombu.exceptions import OperationalError

from celery_safeguards.errors import PublishTimedOut
from tests.integration.publishing.conftest import (
    DEADLINE_SECONDS,
    HANGS_SECONDS,
    SLACK_SECONDS,
    Publishing,
    black_hole,
    silent_listener,
)
from tests.support.sockets import HOST
from tests.support.waiting import wait_until

WITHOUT_END = {"task_publish_retry_policy": {"max_retries": None, "interval_start": 0.1, "interval_max": 0.2}}


@contextlib.contextmanager
def paused(server):
    """CLIENT PAUSE ... WRITE: reads are answered, and no write is."""
    with server.client() as client:
        client.client_pause(60_000, all=False)
        try:
            yield
        finally:
            client.client_unpause()


@contextlib.contextmanager
def frozen(server):
    """Nothing is answered, and connections stay open."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@contextlib.contextmanager
def stopped(server):
    """Connections are refused."""
    server.stop()
    try:
        yield
    finally:
        server.start()


FAULTS = pytest.mark.parametrize("fault", [paused, frozen, stopped])


def assert_timed_out(publishing):
    """It has ended in time, by the error that names broker and deadline."""
    assert publishing.ended_within(DEADLINE_SECONDS + SLACK_SECONDS), "the publish hangs"
    assert isinstance(publishing.error, PublishTimedOut), repr(publishing.error)
    assert isinstance(publishing.error, OperationalError)
    assert f"{DEADLINE_SECONDS:g} s" in str(publishing.error)


def queued(server, namespace):
    """Return the first argument of every message in the queue, the oldest first."""
    with server.client() as client:
        messages = client.lrange(f"{namespace}.{namespace}", 0, -1)
    bodies = [json.loads(message)["headers"]["argsrepr"] for message in reversed(messages)]
    return [int(body.strip("(,)")) for body in bodies]


@FAULTS
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "first"])
def test_publish_ends_by_its_deadline_twice_and_the_next_one_arrives(
    publisher, fresh_redis, namespace, fault, connected
):
    """A web process that waits for a broker serves nobody; an answer that came late must not be the next one's."""
    app = publisher(fresh_redis.url, **WITHOUT_END)
    task = app.tasks["safe"]
    if connected:
        task.delay(0)

    with fault(fresh_redis):
        for number in (1, 2):
            publishing = Publishing(task, number)
            assert_timed_out(publishing)
            assert str(fresh_redis.port) in str(publishing.error)
    for number in (3, 4, 5):
        task.delay(number)

    # What was written to a frozen server may be read when it thaws: timed out is not the same as not sent.
    arrived = [number for number in queued(fresh_redis, namespace) if number not in {1, 2}]
    assert [*([0] if connected else []), 3, 4, 5] == arrived


@FAULTS
def test_publish_hangs_without_safeguards(publisher, fresh_redis, fault):
    """The control."""
    app = publisher(fresh_redis.url, **WITHOUT_END)
    app.tasks["plain"].delay(0)

    with fault(fresh_redis):
        publishing = Publishing(app.tasks["plain"], 1)
        hangs = not publishing.ended_within(HANGS_SECONDS)

    assert hangs
    assert publishing.ended_within(10), "it goes on once the broker answers"


@pytest.mark.parametrize("scheme", ["redis", "pyamqp"])
@pytest.mark.parametrize("server", [silent_listener, black_hole])
def test_publish_to_a_server_that_never_answers_ends_by_its_deadline(publisher, scheme, server):
    """A firewall that drops packets, and a port that something else listens on."""
    with server() as port:
        app = publisher(f"{scheme}://{HOST}:{port}//", **WITHOUT_END)
        for number in (1, 2):
            publishing = Publishing(app.tasks["safe"], number)
            assert_timed_out(publishing)
            assert str(port) in str(publishing.error)


@pytest.mark.parametrize("server", [silent_listener, black_hole])
def test_publish_to_a_server_that_never_answers_hangs_without_safeguards(publisher, server):
    """The control."""
    with server() as port:
        app = publisher(f"redis://{HOST}:{port}/0", broker_connection_retry=False)
        publishing = Publishing(app.tasks["plain"], 1, retry=False)
        assert not publishing.ended_within(HANGS_SECONDS)


def test_wait_for_a_producer_ends_by_its_deadline(publisher, redis_url):
    """Threads that all publish at once would wait for each other's producers without end."""
    app = publisher(redis_url, broker_pool_limit=1)
    app.tasks["safe"].delay(0)

    with app.producer_pool.acquire(block=True):
        for number in (1, 2):
            publishing = Publishing(app.tasks["safe"], number)
            assert_timed_out(publishing)
            assert "all 1 producers are in use" in str(publishing.error)

    app.tasks["safe"].delay(3)


def test_wait_for_a_producer_hangs_without_safeguards(publisher, redis_url):
    """The control; celery 5.7 has a setting for it, which is None."""
    app = publisher(redis_url, broker_pool_limit=1)

    with app.producer_pool.acquire(block=True):
        publishing = Publishing(app.tasks["plain"], 1)
        assert not publishing.ended_within(HANGS_SECONDS)

    assert publishing.ended_within(10)


def test_a_refusal_that_is_final_is_not_held_until_the_deadline(publisher, fresh_redis):
    """Who asks for no repetition gets the broker's own error at once."""
    app = publisher(fresh_redis.url, safeguards_publish_timeout_seconds=30)
    fresh_redis.stop()

    publishing = Publishing(app.tasks["safe"], 1, retry=False)

    assert publishing.ended_within(10)
    assert isinstance(publishing.error, OperationalError)
    assert not isinstance(publishing.error, PublishTimedOut)


def test_an_app_has_one_pool_of_producers(publisher, redis_url):
    """Tasks without safeguards share the connections: their number does not double."""
    app = publisher(redis_url)

    app.tasks["safe"].delay(1)
    pool = app.producer_pool
    app.tasks["plain"].delay(2)
    app.tasks["keyed"].delay(3)

    assert app.producer_pool is pool
    wait_until(lambda: not pool._dirty, 5, "every producer is back")
