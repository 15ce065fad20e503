"""
The time that a body has: `self.safe.deadline`, and the checkpoint that ends an attempt which would overrun it.
"""

import pytest
from celery import Celery

from celery_safeguards import RetryPolicy, Safeguards, SafeTask
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.budget import body_budget_seconds, lease_budget_seconds
from tests.support.bench import LEASE_SECONDS

AT_ONCE = RetryPolicy(attempts=4, base_seconds=0.1, factor=1.0, cap_seconds=0.1)


@pytest.mark.parametrize(
    "limits, budget_seconds",
    [({"soft_time_limit": 20}, 20), ({"time_limit": 25}, 25), ({"soft_time_limit": 20, "time_limit": 25}, 20)],
)
def test_deadline_is_the_end_of_the_time_limit(bench, limits, budget_seconds):
    """A body could not tell how long it may wait for the other side."""
    bench.keyed(lambda self, number: self.safe.deadline - bench.clock.now, idempotent={}).apply_async((1,), **limits)

    (only,) = bench.drain()

    assert budget_seconds == only.result


def test_deadline_without_a_limit_is_that_of_the_lease(bench):
    """The claim is renewed no more, and the body would not know it."""
    bench.keyed(lambda self, number: self.safe.deadline - bench.clock.now, max_lease_seconds=90).delay(1)

    (only,) = bench.drain()

    assert 90 == only.result


@pytest.mark.parametrize("stop", ["checkpoint", "once"])
def test_checkpoint_after_the_deadline_ends_the_attempt_as_a_timeout(bench, outside, stop):
    """A call would begin that the time limit then kills half-way."""

    def body(self, number):
        if self.safe.attempt == 1:
            bench.clock.sleep(20)
            if stop == "checkpoint":
                self.safe.checkpoint()
        return self.safe.once("charge", outside, "charge")

    task = bench.keyed(body, retry=AT_ONCE)
    task.apply_async((1,), soft_time_limit=20)

    first, second = bench.drain()

    assert ("acknowledged", "RETRY") == (first.fate, first.state)
    assert "charge-1" == second.result
    assert ["charge"] == outside.calls


def test_deadline_that_ends_the_last_attempt_is_a_letter_of_a_timeout(bench):
    """The letter would not say why, and the group of timeouts not hold it."""

    def body(self, number):
        bench.clock.sleep(20)
        self.safe.checkpoint()

    bench.keyed(body, retry=None).apply_async((1,), soft_time_limit=20)
    bench.drain()

    (letter,) = bench.all_letters()
    assert FailureKind.WORKER_TIMEOUT == letter.kind


def test_unkeyed_task_has_no_deadline_and_its_checkpoint_asks_nothing(bench):
    """Shared code with checkpoints could not run in a task without a key."""

    def body(self, number):
        self.safe.checkpoint()
        return self.safe.deadline

    bench.task(body, Safeguards(repeatable=True)).delay(1)
    bench.store.pull(seconds=60)

    (only,) = bench.drain()

    assert ("SUCCESS", None) == (only.state, only.result)


def test_checkpoint_renews_a_lease_that_is_nearly_over(bench):
    """A body in one long step would lose its claim although its process lives."""

    def body(self, number):
        before = bench.record(self, number).lease_until_us
        bench.clock.sleep(LEASE_SECONDS * 0.9)
        self.safe.checkpoint()
        return bench.record(self, number).lease_until_us - before

    bench.keyed(body).delay(1)

    (only,) = bench.drain()

    assert round(LEASE_SECONDS * 0.9 * 1_000_000) == only.result


# --- a worker's own limits


def nothing():
    """Be the body of a task that is not run."""


def test_limits_that_a_worker_is_started_with_are_those_of_its_leases_and_deadlines():
    """A body that may run for two hours by `--time-limit` would be given to another worker after one."""
    with Celery("limited", broker="memory://", set_as_current=False) as app:
        app.conf.safeguards_store_url = "memory://"
        options = {"base": SafeTask, "safeguards": Safeguards(repeatable=True), "shared": False}
        free = app.task(nothing, name="free", **options)
        own = app.task(nothing, name="own", time_limit=50, **options)
        app.WorkController(pool="solo", time_limit=7200, soft_time_limit=7000)

        budgets = [(lease_budget_seconds(task, None), body_budget_seconds(task, None)) for task in (free, own)]

    assert budgets == [(7230, 7000), (80, 50)]


def test_celery_tells_the_pool_alone_of_the_limits_that_a_worker_is_started_with():
    """The control, on a task that nobody guards."""
    with Celery("limited", broker="memory://", set_as_current=False) as app:
        plain = app.task(nothing, name="plain", shared=False)
        app.WorkController(pool="solo", time_limit=7200)

    assert plain.time_limit is None
