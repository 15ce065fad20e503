"""
Eager atomic tasks: they belong to their caller, and to whatever transaction it has open.
"""

import pytest
from django.db import connections, transaction

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.record import State
from tests.django.atomic.conftest import AT_ONCE


class GivenUp(Exception):
    """Ends the caller's transaction."""


@pytest.fixture
def record(bench):
    """Read a record by the connection that the test works with."""
    return lambda task: bench.wiring.atomic_store(bench.alias, joined=True).read(task.plan.record_key("op:7"))


@pytest.fixture
def task(bench):
    """A task that has its effect, and publishes a child."""

    def child_body(self, number):
        child.got.append(number)

    child = bench.task(child_body, Safeguards(repeatable=True))
    child.got = []

    def body(self, number):
        task.starts += 1
        bench.has_effect(number)
        child.delay(number)
        if task.starts <= task.failures:
            raise ConnectionError("down")
        return number

    task = bench.atomic(body)
    task.starts, task.failures, task.child = 0, 0, child
    return task


def test_eager_task_commits_by_itself_where_no_transaction_is_open(bench, task, record):
    """It is a task like any other."""
    results = [task.apply((7,)).get(), task.apply((7,)).get()]

    assert ([7, 7], [7], 1) == (results, bench.effects(), task.starts)
    assert (State.DONE, ()) == (record(task).state, record(task).publishes)
    assert 1 == bench.waiting()


def test_eager_task_is_part_of_the_transaction_that_is_open(bench, task, record):
    """A caller that rolls back would keep a record of what never was; and a `TestCase` one of each test."""
    with transaction.atomic(using=bench.alias):
        assert 7 == task.apply((7,)).get()
        assert State.DONE == record(task).state
        assert 0 == bench.waiting()
        transaction.set_rollback(True, using=bench.alias)

    assert ([], None, 0) == (bench.effects(), record(task), bench.waiting())


def test_children_of_an_eager_task_are_sent_with_its_callers_commit(bench, task):
    """They would run ahead of the rows that they are about."""
    with transaction.atomic(using=bench.alias):
        task.apply((7,))
        assert 0 == bench.waiting()

    assert 1 == bench.waiting()
    bench.drain()
    assert [7] == task.child.got


def test_eager_duplicate_inside_one_transaction_is_answered_from_the_record(bench, task):
    """What the transaction has done so far is only seen by its own connection."""
    with transaction.atomic(using=bench.alias):
        task.apply((7,))
        assert 7 == task.apply((7,)).get()

    assert ([7], 1) == (bench.effects(), task.starts)


def test_eager_attempt_that_fails_is_rolled_back_and_tried_again(bench, task, record):
    """The half of an attempt would be committed with its caller's transaction."""
    task.failures = 1
    with transaction.atomic(using=bench.alias):
        assert 7 == task.apply((7,)).get()

    assert ([7], 2, 2) == (bench.effects(), task.starts, record(task).attempt)
    assert 1 == bench.waiting()


def test_eager_task_that_fails_for_good_leaves_the_transaction_usable(bench, task):
    """An error in the database would be its caller's, too."""
    task.failures = 9
    with transaction.atomic(using=bench.alias):
        assert task.apply((7,)).failed()
        bench.has_effect(8)

    assert [8] == bench.effects()


@pytest.mark.parametrize("alias", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_eager_task_lets_no_worker_wait_for_its_callers_commit(bench, task):
    """Workers that could not tell that they live would end their children."""
    task.failures = 9
    with connections[bench.alias].cursor() as cursor:
        # Nobody was heard for a while: whoever is heard now writes it down.
        cursor.execute("UPDATE django_celery_safeguards_storestate SET pulse_us = pulse_us - 10000000")

    with transaction.atomic(using=bench.alias):
        assert task.apply((7,)).failed()
        bench.store.renew({})


def test_eager_task_works_beside_a_store_in_memory(bench, alias):
    """A project's tests, which keep everything else in memory, could not call it."""
    bench.app.conf.task_always_eager = True
    runs = []

    @bench.app.task(
        base=SafeTask,
        shared=False,
        safeguards=Safeguards(idempotent=Idempotent("op:{number}", atomic=alias), retry=AT_ONCE),
    )
    def counted(number):
        runs.append(number)

    with transaction.atomic(using=alias):
        counted.delay(7)
        counted.delay(7)

    assert [7] == runs


def test_worker_whose_records_are_elsewhere_is_refused(bench, alias):
    """The record would be committed apart from the body."""
    with pytest.raises(ConfigurationError, match="its record must be in that database"):
        bench.wiring.atomic_store("another", joined=False)


def test_worker_does_not_join_what_an_earlier_task_has_left_open(bench, task):
    """Its COMMIT would not be one: acknowledged as done, and rolled back at some time after."""
    task.delay(7)
    left_open = transaction.atomic(using=bench.alias)
    left_open.__enter__()
    try:
        delivered = bench.deliver()
    finally:
        left_open.__exit__(GivenUp, GivenUp(), None)

    assert (["kept", 0], []) == ([delivered.fate, task.starts], bench.effects())
    assert not connections[bench.alias].in_atomic_block


def test_retries_of_an_eager_task_do_not_wait(bench, alias):
    """Its caller would sleep through the backoff."""
    starts = []

    def body(self, number):
        starts.append(number)
        if len(starts) < 3:
            raise ConnectionError("down")

    slow = bench.atomic(body, retry=RetryPolicy(attempts=3, base_seconds=600, cap_seconds=600))
    slow.apply((7,))

    assert 3 == len(starts)
