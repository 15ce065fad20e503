"""
What a call leaves on its task: nothing. Threads share the object, and a body may call it directly.
"""

import contextlib
import threading
from dataclasses import replace
from random import Random

import pytest
from celery import Task
from celery.contrib.testing.worker import start_worker

from celery_safeguards import RetryPolicy, Safeguards, SafeTask, current_safe
from celery_safeguards.wiring import Wiring
from tests.integration.declarations.declared import KEYED, state_of

# --- direct calls


@pytest.mark.parametrize("base", [Task, SafeTask])
def test_body_that_calls_its_own_task_directly_sees_the_request_that_a_plain_task_sees(app, base):
    """A second, empty request was pushed here once: the outer body lost its id (celery/celery#4993)."""
    seen = []

    @app.task(base=base, bind=True, safeguards=KEYED, shared=False)
    def count(self, number):
        seen.append((number, self.request.id))
        if number:
            count(number - 1)
            seen.append((number, self.request.id))

    count.apply((2,), task_id="outer").get()

    assert seen == [(number, "outer") for number in (2, 1, 0, 1, 2)]


def test_body_that_calls_its_own_task_directly_takes_no_second_claim(app):
    """Another number in a plain call is no other operation: it is part of the one that runs."""

    @app.task(base=SafeTask, bind=True, safeguards=KEYED, shared=False)
    def count(self, number):
        return [self.safe.idempotency_key] + (count(number - 1) if number else [])

    assert count.apply((1,)).get() == ["op:1", "op:1"]
    assert Wiring.of(app).admission.read(count.plan.record_key("op:0")) is None


def test_body_that_calls_another_task_directly_runs_it_under_its_own_view(app):
    """The called body belongs to the caller's operation: it has no key of its own."""

    @app.task(base=SafeTask, safeguards=KEYED, shared=False)
    def inner(number):
        return current_safe().idempotency_key

    @app.task(base=SafeTask, safeguards=KEYED, shared=False)
    def outer(number):
        return inner(number + 1)

    assert outer.apply((1,)).get() == "op:1"


def test_view_of_a_bound_task_is_the_current_one(app):
    """`self.safe` and `current_safe()` must not differ."""

    @app.task(base=SafeTask, bind=True, safeguards=KEYED, shared=False)
    def pay(self, number):
        return self.safe is current_safe()

    assert pay.apply((1,)).get() is True


# --- nothing of one call stays on the task


def test_concurrent_runs_keep_nothing_on_the_task_and_get_their_own_delay(app):
    """Celery keeps back-off state on the task object: threads use each other's countdown (celery/celery#10456)."""
    policy = RetryPolicy(attempts=60, base_seconds=100, factor=1.05, cap_seconds=9000)
    every = threading.Barrier(8)
    retried = {}

    @app.task(base=SafeTask, bind=True, safeguards=Safeguards(repeatable=True, retry=policy), shared=False)
    def fail(self, number):
        with contextlib.suppress(threading.BrokenBarrierError):
            every.wait(timeout=0.5)
        raise ConnectionRefusedError("gateway is down")

    class Highest(Random):
        def uniform(self, a, b):
            return b

    replace(Wiring.of(app), chance=Highest()).use_for(app)
    task = app.tasks[fail.name]
    on_retry_seen = threading.Semaphore(0)

    def publish(self, args, kwargs, **options):
        retried[options["retries"]] = options["countdown"]
        on_retry_seen.release()

    type(task).publish = publish
    before = state_of(task)

    with start_worker(app, pool="threads", concurrency=8, perform_ping_check=False):
        for number in range(48):
            task.apply_async((number,), retries=number)
        for _ in range(48):
            assert on_retry_seen.acquire(timeout=20)

    assert state_of(task) == before
    assert retried == {number + 1: pytest.approx(min(9000, 100 * 1.05**number)) for number in range(48)}
