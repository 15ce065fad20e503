"""
What a worker says of its broker at its start, and when it refuses to begin.
"""

import importlib.util

import pytest

from celery_safeguards.diagnose.board import KEY
from tests.acceptance import fleet_app
from tests.support import apps
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.redis]
APP = "tests.acceptance.fleet_app:app"
PATIENCE_SECONDS = 40


@pytest.fixture
def start(fresh_redis, namespace, start_worker):
    """Start a worker whose tasks and settings are sound."""
    where = {apps.BROKER_URL: fresh_redis.url, apps.STORE_URL: fresh_redis.url, apps.NAMESPACE: namespace}

    def start(pool="prefork", **changes):
        env = {**where, fleet_app.IS_NEWCOMER: "1", fleet_app.VISIBILITY: "60", **changes}
        return start_worker(APP, env, pool=pool)

    return start


def evict(server):
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_strict_worker_starts_on_a_sound_broker_and_ends_in_order(start, pool):
    """The check itself must keep nobody from working, in no pool."""
    worker = start(pool, **{fleet_app.STRICT: "1"}).wait_ready()

    assert "redis: effective visibility timeout 60 s; a message of a dead worker comes back after" in worker.log()
    assert 0 == worker.stop(PATIENCE_SECONDS)
    assert "SG1" not in worker.log().replace("SG159", "")


def test_strict_worker_does_not_start_on_a_broker_that_evicts(start, fresh_redis):
    """At `maxmemory` messages vanish without a word (getsentry/self-hosted#3888)."""
    evict(fresh_redis)
    worker = start(**{fleet_app.STRICT: "1"})

    assert worker.wait_exited(PATIENCE_SECONDS) != 0
    assert "SG144 the broker may evict messages or records: maxmemory-policy is allkeys-lru" in worker.log()


def test_other_worker_says_so_and_works(start, fresh_redis):
    """Refusing where nobody asked for it would stop a shop over night."""
    evict(fresh_redis)
    worker = start().wait_ready()

    assert "SG144 the broker may evict messages or records" in worker.log()


def test_worker_says_once_that_the_fleet_is_not_known_and_comes_back(start, fresh_redis, namespace):
    """A line each second would bury the one that matters; and it must be on the board again afterwards."""
    worker, board = start().wait_ready(), f"{namespace}.{KEY}"
    fresh_redis.stop()
    wait_until(lambda: "SG166 the fleet could not be asked" in worker.log(), PATIENCE_SECONDS, "it is told")
    fresh_redis.start()
    with fresh_redis.client() as client:
        client.delete(board)
        wait_until(lambda: client.hkeys(board) == [worker.name], PATIENCE_SECONDS, "the worker is on the board again")

    assert worker.log().count("SG166") == 1
    assert worker.is_running()


@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="needs gevent")
def test_worker_of_greenlets_is_told_what_its_pool_does_not_do_and_is_on_the_board(start, fresh_redis, namespace):
    """No worker of this pool looks for messages of dead ones; the fleet must know it nevertheless."""
    worker, board = start("gevent").wait_ready(), f"{namespace}.{KEY}"
    with fresh_redis.client() as client:
        wait_until(lambda: client.hkeys(board) == [worker.name], PATIENCE_SECONDS, "the worker is on the board")
        assert "SG142 nobody redelivers" in worker.log()
        assert 0 == worker.stop(PATIENCE_SECONDS)

        assert not client.exists(board)
