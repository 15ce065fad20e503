"""
Starts of atomic bodies that end their process: counted, whatever comes in between, and each of them once.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.db import connections

from celery_safeguards.outcome import FailureKind, Outcome
from tests.django.atomic.test_races import only_postgres
from tests.support.bench import Killed


@pytest.fixture
def deadly(bench):
    """A task that ends its process at each start, which it notes."""
    starts = []

    def body(self, number):
        starts.append(number)
        raise Killed

    task = bench.atomic(body, max_lost_starts=3)
    task.starts = starts
    return task


@only_postgres
def test_delivery_that_is_put_off_forgets_no_lost_start(bench, deadly):
    """Two messages of one key that end their processes would keep each other alive, for ever."""
    deadly.delay(7)
    bench.deliver()
    bench.deliver()

    with locked_elsewhere(bench, deadly.plan.record_key("op:7")):
        bench.deliver()
    assert [Outcome.DEFERRED] == bench.outcomes
    bench.drain()

    (letter,) = bench.all_letters()
    assert (3, FailureKind.WORKER_LOST) == (len(deadly.starts), letter.kind)


@contextmanager
def locked_elsewhere(bench, key):
    """Work on a key in a session of another thread."""
    with ThreadPoolExecutor(1) as thread:

        def lock():
            transaction = bench.store.transaction()
            assert transaction.begin(key) is not None
            return transaction

        def give_up(transaction):
            transaction.roll_back()
            connections[bench.alias].close()

        transaction = thread.submit(lock).result()
        try:
            yield
        finally:
            thread.submit(give_up, transaction).result()


def test_copy_of_a_redelivered_message_is_counted_once(bench, deadly):
    """Kombu's mark stays in its headers: counted by child and main process, it would be poison after two starts."""
    deadly.apply_async((7,), headers={"redelivered": True})
    bench.drain()

    assert 3 == len(deadly.starts)
