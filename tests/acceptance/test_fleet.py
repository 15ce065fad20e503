"""
Two workers on one broker that do not agree: the one who comes second is told before it takes the other's work away.

`unacked` is of a database, not of an app or a queue, and whoever sweeps uses its own timeout and its own clock
(celery/kombu#337, celery/celery#1112, celery/celery#1980).
"""

import time

import pytest
from celery import Celery

from tests.acceptance import fleet_app
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.redis]
APP = "tests.acceptance.fleet_app:app"
PATIENCE_SECONDS = 40
HOLDERS_TIMEOUT_SECONDS = 60
AGE_SECONDS = 10
"""How long ago the holder has taken its message: less than its own timeout, more than the short one."""

NEWCOMERS = pytest.mark.parametrize(
    ("newcomer", "finding"),
    [
        ({fleet_app.VISIBILITY: "3"}, "SG160 visibility timeouts differ: 3 s ("),
        ({fleet_app.VISIBILITY: "60", fleet_app.AHEAD: "3600"}, "its clock is 3600 s ahead of the broker's"),
    ],
    ids=["timeout", "clock"],
)


@pytest.fixture
def fleet(fresh_redis, namespace, announcements, start_worker, make_producer):
    """A worker whose body runs, and a way to let another one come."""
    where = {apps.BROKER_URL: fresh_redis.url, apps.STORE_URL: fresh_redis.url, apps.NAMESPACE: namespace}
    return Fleet(fresh_redis, where, announcements, start_worker, make_producer(fresh_redis.url))


@pytest.fixture
def make_producer(namespace):
    """Make an app that publishes."""
    made = []

    def make(url):
        made.append(Celery("producer", broker=url, set_as_current=False))
        made[-1].conf.update(apps.queue_settings(namespace))
        return made[-1]

    yield make
    for app in made:
        app.close()


class Fleet:
    def __init__(self, server, where, announcements, start_worker, producer):
        self.server = server
        self.namespace = where[apps.NAMESPACE]
        self._where, self._announcements, self._start, self._producer = where, announcements, start_worker, producer

    def start_holder(self):
        """Start a worker and return once its body runs, with a message that it has taken some time ago."""
        env = {**self._where, fleet_app.VISIBILITY: str(HOLDERS_TIMEOUT_SECONDS)}
        holder = self._start(APP, env, concurrency=2, extra_args=["--prefetch-multiplier=1"]).wait_ready()
        self._announcements.hold("work_1")
        self._producer.send_task("fleet.work", (1,), task_id="work-1")
        self._announcements.wait_for(is_said("work_1"), PATIENCE_SECONDS)
        with self.server.client() as client:
            index, then = f"{self.namespace}.unacked_index", time.time() - AGE_SECONDS
            client.zadd(index, dict.fromkeys(client.zrange(index, 0, -1), then), xx=True)
        return holder

    def start_newcomer(self, changes):
        """Start a worker of another queue."""
        env = {**self._where, fleet_app.IS_NEWCOMER: "1", **changes}
        return self._start(APP, env, queues=[f"{self.namespace}-other"])

    def starts(self):
        """Return how often the holder's body was started."""
        return len(self._announcements.heard(is_said("work_1")))

    def wait_for_second_start(self):
        self._announcements.wait_for(is_said("work_1"), PATIENCE_SECONDS, count=2)

    def let_go(self):
        self._announcements.open("work_1")

    def is_unacknowledged(self):
        with self.server.client() as client:
            return client.hlen(f"{self.namespace}.unacked") == 1


@NEWCOMERS
def test_newcomer_that_would_take_work_away_does_not_start(fleet, newcomer, finding):
    """One short timeout, or one clock, would decide for everyone."""
    holder = fleet.start_holder()
    refused = fleet.start_newcomer({**newcomer, fleet_app.STRICT: "1"})

    assert refused.wait_exited(PATIENCE_SECONDS) != 0
    assert finding in refused.log()
    assert "safeguards_strict is set" in refused.log()
    assert (1, True) == (fleet.starts(), fleet.is_unacknowledged())
    fleet.let_go()
    assert 0 == holder.stop(PATIENCE_SECONDS)
    assert 1 == fleet.starts()


@NEWCOMERS
def test_without_strictness_it_takes_work_away_and_all_say_so(fleet, newcomer, finding):
    """The fault itself: the running body is started a second time. Everybody is told who brought it."""
    holder = fleet.start_holder()
    other = fleet.start_newcomer(newcomer)
    other.wait_ready()
    fleet.wait_for_second_start()

    assert fleet.starts() == 2
    for worker in (other, holder):
        wait_until(lambda log=worker.log: finding in log(), PATIENCE_SECONDS, f"{worker.name} reports it")
    assert [] == [line for line in holder.log().splitlines() if finding in line and "ERROR" not in line]
    fleet.let_go()


def test_fleet_that_agrees_again_is_told(fleet):
    """An error in the log that is over must not be chased."""
    holder = fleet.start_holder()
    other = fleet.start_newcomer({fleet_app.VISIBILITY: "3"})
    other.wait_ready()
    wait_until(lambda: "SG160" in holder.log(), PATIENCE_SECONDS, "the holder reports it")
    other.stop(PATIENCE_SECONDS)

    wait_until(lambda: "agree again" in holder.log(), PATIENCE_SECONDS, "the newcomer has left")
    fleet.let_go()


def test_sound_strict_newcomer_starts_and_logs_its_effective_timeout(fleet):
    """Refusing whoever comes second would be no check."""
    fleet.start_holder()
    other = fleet.start_newcomer({fleet_app.VISIBILITY: "60", fleet_app.STRICT: "1"})
    other.wait_ready()

    assert "redis: effective visibility timeout 60 s; a message of a dead worker comes back after" in other.log()
    assert fleet.starts() == 1
    fleet.let_go()
