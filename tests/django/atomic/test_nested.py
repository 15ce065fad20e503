"""
Eager atomic tasks inside an atomic body of a worker: parts of its transaction, which is theirs to commit with.
"""

import pytest
from django.db import transaction

from celery_safeguards import Idempotent, Safeguards
from celery_safeguards.errors import DeferralRefused
from celery_safeguards.ledger.record import State
from tests.support.bench import Killed


@pytest.fixture
def inner(bench, child):
    """A task that has its effect, publishes, and fails as often as it is told."""

    def body(self, number):
        bench.has_effect(number)
        child.delay(number)
        if task.failures:
            task.failures -= 1
            raise ConnectionError("down")

    task = bench.atomic(body)
    task.failures = 0
    return task


def test_children_of_a_nested_task_are_sent_by_the_redelivery(bench, child, inner, killed_before_it_sends):
    """Its hook after the COMMIT would die with the process, and its children with it."""

    def body(self, number):
        inner.apply((8,))

    task = bench.atomic(body)
    task.delay(7)
    bench.deliver()
    assert ([8], State.DONE, []) == (bench.effects(), bench.record(inner, 8).state, child.got)

    bench.drain()

    assert [8] == child.got


def test_children_of_a_nested_attempt_that_failed_are_not_sent(bench, child, inner):
    """They would belong to what never was."""
    inner.failures = 1

    def body(self, number):
        inner.apply((8,))

    bench.atomic(body).delay(7)
    bench.drain()

    assert ([8], [8]) == (child.got, bench.effects())


def test_nested_task_that_its_caller_rolls_back_publishes_nothing(bench, child, inner):
    """The savepoint around it takes all of it along."""

    def body(self, number):
        with transaction.atomic(using=bench.alias):
            inner.apply((8,))
            transaction.set_rollback(True, using=bench.alias)

    bench.atomic(body).delay(7)
    bench.drain()

    assert ([], [], None) == (child.got, bench.effects(), bench.record(inner, 8))


def test_task_that_runs_its_own_key_inside_itself_is_refused(bench):
    """Each of the two would find that the other has written its record, and ask again, for ever."""
    starts, ends = [], []
    shared = Idempotent("op:{number}", atomic=bench.alias, scope="shared")

    def inner_body(self, number):
        starts.append("inner")

    inner = bench.task(inner_body, Safeguards(idempotent=shared))

    def body(self, number):
        starts.append("outer")
        if len(starts) > 3:
            raise Killed
        ends.append(inner.apply((number,)).result)

    bench.task(body, Safeguards(idempotent=shared, retry=None)).delay(7)

    assert "SUCCESS" == bench.deliver().state
    assert (["outer"], [DeferralRefused]) == (starts, [type(each) for each in ends])
