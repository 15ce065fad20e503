"""
The sum that `SG104` shows is the one that decides: where it is above the visibility timeout, a message that only waits
behind another in its worker is taken away and started twice; where it is below, it is not.

    receipt of the first ── its body, 50 s ── body of the second, held ── 60 s: the timeout of what came with the first

(alphagov/notifications-api#3123, mozmeao/basket#475: ten prefetched neighbours eat the margin.) Ages of messages are
set in the broker, as they would be at that moment: they are the only thing that the sweep looks at.
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
TIMEOUT_SECONDS, BODY_SECONDS = 60, 50


@pytest.fixture
def line(fresh_redis, namespace, announcements, start_worker):
    """One worker and two messages, the first of which runs."""
    with Celery("producer", broker=fresh_redis.url, set_as_current=False) as producer:
        producer.conf.update(apps.queue_settings(namespace))
        yield Line(fresh_redis, namespace, announcements, start_worker, producer)


class Line:
    def __init__(self, server, namespace, announcements, start_worker, producer):
        where = {apps.BROKER_URL: server.url, apps.STORE_URL: server.url, apps.NAMESPACE: namespace}
        self._env = {**where, fleet_app.VISIBILITY: str(TIMEOUT_SECONDS)}
        self._server, self._index = server, f"{namespace}.unacked_index"
        self._announcements, self._start, self._producer = announcements, start_worker, producer

    def start_worker(self, multiplier):
        return self._start(APP, self._env, extra_args=[f"--prefetch-multiplier={multiplier}"]).wait_ready()

    def publish(self):
        """Publish two messages, and return once the first one runs."""
        for number in (1, 2):
            self._announcements.hold(f"work_{number}")
            self._producer.send_task("fleet.work", (number,))
        self._announcements.wait_for(is_said("work_1"), PATIENCE_SECONDS)

    def taken(self):
        with self._server.client() as client:
            return client.zcard(self._index)

    def end_the_first(self):
        """Let the first body end, and return once the second one runs."""
        self._announcements.open("work_1")
        self._announcements.wait_for(is_said("work_2"), PATIENCE_SECONDS)
        wait_until(lambda: self.taken() == 1, PATIENCE_SECONDS, "the first message is acknowledged")

    def let_it_be(self, age_seconds):
        """Make the message that runs as old as it would be."""
        with self._server.client() as client:
            (tag,) = client.zrange(self._index, 0, -1)
            client.zadd(self._index, {tag: time.time() - age_seconds}, xx=True)

    def starts_of_the_second(self):
        return len(self._announcements.heard(is_said("work_2")))

    def wait_until_taken_away(self):
        """Wait until somebody, perhaps the same worker, has received the second message once more."""
        self._announcements.wait_for(is_said("task_received", task="fleet.work"), PATIENCE_SECONDS, count=3)

    def wait_for_its_second_start(self):
        self._announcements.wait_for(is_said("work_2"), PATIENCE_SECONDS, count=2)

    def let_go(self):
        self._announcements.open("work_2")


def test_sum_above_the_timeout_is_told_and_starts_twice(line):
    """The fault itself, and that it was told at the start of the worker."""
    first = line.start_worker(multiplier=2)
    line.publish()
    wait_until(lambda: line.taken() == 2, PATIENCE_SECONDS, "the second message waits in the worker")
    line.end_the_first()
    # Taken with the first one, whose body has needed all of its time.
    line.let_it_be(TIMEOUT_SECONDS + 1)
    line.start_worker(multiplier=1)
    line.wait_until_taken_away()
    line.let_go()
    line.wait_for_its_second_start()

    assert "1 body before it x 50 s (fleet.work) + its limit of 50 s = 100 s, above the visibility" in first.log()


def test_sum_below_the_timeout_starts_once(line):
    """What the finding asks for is enough."""
    first = line.start_worker(multiplier=1)
    line.publish()
    assert 1 == line.taken()
    line.end_the_first()
    # Taken when the first one had ended.
    line.let_it_be(TIMEOUT_SECONDS + 1 - BODY_SECONDS)
    second = line.start_worker(multiplier=1)
    line.let_go()
    assert 0 == second.stop(PATIENCE_SECONDS)

    assert 1 == line.starts_of_the_second()
    assert "SG104" not in first.log()
