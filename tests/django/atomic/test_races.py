"""
Two of everything at once: one key is one body, and whoever comes second neither waits nor overwrites.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from celery_safeguards import EntityLock
from celery_safeguards.admission.store import Change
from celery_safeguards.errors import LockLost
from celery_safeguards.ledger.record import State
from celery_safeguards.locks.store import HeldLock, LockAsk
from celery_safeguards.outcome import Outcome

LOCK_SECONDS = 30.0
PATIENCE_SECONDS = 20


only_postgres = pytest.mark.parametrize("alias", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
"""SQLite has one writer: there nobody writes beside a body."""


@pytest.fixture
def delivered_beside(bench):
    """Deliver the next message in a thread of its own, as another child would."""

    def deliver():
        try:
            return bench.deliver()
        finally:
            connections[bench.alias].close()

    with ThreadPoolExecutor() as pool:
        yield lambda: pool.submit(deliver)


def test_second_delivery_is_put_off_while_the_first_runs(bench, delivered_beside):
    """It would wait for the whole body, with a child and a connection of its own."""
    runs, is_in, may_go_on = [], threading.Event(), threading.Event()

    def body(self, number):
        runs.append(number)
        bench.has_effect(number)
        is_in.set()
        assert may_go_on.wait(PATIENCE_SECONDS)
        return number

    task = bench.atomic(body)
    task.delay(7)
    task.delay(7)
    first = delivered_beside()
    assert is_in.wait(PATIENCE_SECONDS)

    second = bench.deliver()

    assert (["acknowledged"], [7], [Outcome.DEFERRED]) == ([second.fate], runs, bench.outcomes)
    may_go_on.set()
    assert "SUCCESS" == first.result(PATIENCE_SECONDS).state
    bench.drain()
    assert ([7], [7], Outcome.DEDUPLICATED) == (runs, bench.effects(), bench.outcomes[-1])


@only_postgres
def test_other_key_runs_at_the_same_time(bench, delivered_beside):
    """One slow order would hold up all the others."""
    both = threading.Barrier(2)

    def body(self, number):
        both.wait(PATIENCE_SECONDS)
        bench.has_effect(number)

    task = bench.atomic(body)
    task.delay(7)
    task.delay(8)

    first, second = delivered_beside(), delivered_beside()

    assert {"SUCCESS"} == {each.result(PATIENCE_SECONDS).state for each in (first, second)}
    assert [7, 8] == bench.effects()


def write_late_failure(bench, task):
    """Write what another delivery does whose attempt has failed, and was rolled back, before this one began."""
    fields = {"state": State.RETRY_DUE, "attempt": 1, "task_id": "another", "series": ("another",)}
    late = Change(fields=fields, after_seconds={"not_before_us": 0.0}, retention_seconds=60)
    assert bench.store.take(task.plan.record_key("op:7"), 0, "another", late).claimed


@only_postgres
def test_record_that_moved_while_the_body_ran_rolls_it_back(bench):
    """An end that was written later would be overwritten by one that knows nothing of it."""
    runs = []

    def body(self, number):
        runs.append(number)
        bench.has_effect(len(runs))
        if len(runs) == 1:
            write_late_failure(bench, task)
        return len(runs)

    task = bench.atomic(body)
    task.delay(7)

    delivered = bench.deliver()

    assert ("SUCCESS", 2, [2]) == (delivered.state, delivered.result, bench.effects())
    assert 2 == bench.record(task, 7).attempt


@only_postgres
def test_retry_whose_record_moved_while_the_body_ran_is_rolled_back(bench):
    """The first attempt's record is there: written without its revision, a later end would be overwritten."""
    runs = []

    def body(self, number):
        runs.append(number)
        bench.has_effect(len(runs))
        if len(runs) == 1:
            raise ConnectionError("down")
        if len(runs) == 2:
            key, seen = task.plan.record_key("op:7"), bench.record(task, 7)
            late = Change(fields={"state": State.DONE, "result": '"by another"'}, retention_seconds=60)
            assert bench.store.take(key, seen.rev, "another", late).claimed
        return len(runs)

    task = bench.atomic(body)
    task.delay(7)

    *_, last = bench.drain()

    assert ("SUCCESS", "by another", []) == (last.state, last.result, bench.effects())
    assert 2 == len(runs)


def test_failure_that_is_written_late_does_not_undo_a_success(bench, delivered_beside, monkeypatch):
    """A rolls back; B runs and commits; A writes that its attempt has failed: the work would be done twice."""
    runs, a_rolled_back, b_is_done = [], threading.Event(), threading.Event()
    gate_type = type(bench.store._store)
    take = gate_type.take

    def late_take(store, key, rev, owner, change, **options):
        if change.fields["state"] is State.RETRY_DUE:
            a_rolled_back.set()
            assert b_is_done.wait(PATIENCE_SECONDS)
        return take(store, key, rev, owner, change, **options)

    monkeypatch.setattr(gate_type, "take", late_take)

    def body(self, number):
        runs.append(number)
        bench.has_effect(len(runs))
        if len(runs) == 1:
            raise ConnectionError("down")
        return len(runs)

    task = bench.atomic(body)
    task.delay(7)
    task.delay(7)
    late = delivered_beside()
    assert a_rolled_back.wait(PATIENCE_SECONDS)
    assert "SUCCESS" == bench.deliver().state
    b_is_done.set()

    assert ("SUCCESS", 2) == (late.result(PATIENCE_SECONDS).state, late.result().result)
    bench.drain()
    assert ([2], 2) == (bench.effects(), len(runs))


def test_lock_is_taken_before_the_transaction_and_released_after_it(bench):
    """Two starts of one entity would run at a time, or wait for each other with transactions open."""
    seen = []

    def body(self, number):
        seen.append((self.safe.lock.name, self.safe.lock.token))
        self.safe.checkpoint()
        (state, _) = bench.locks.read("order:7")
        assert state.owner

    task = bench.atomic(body, lock=EntityLock("order:{number}"))
    task.delay(7)

    assert "SUCCESS" == bench.deliver().state
    ((name, token),) = seen
    assert ("order:7", True) == (name, token > 0)
    assert "" == bench.locks.read("order:7")[0].owner


@only_postgres
def test_lock_that_is_lost_in_the_body_takes_its_effect_along(bench):
    """The next owner has begun: what this one writes would be written over what it has read."""

    def body(self, number):
        bench.has_effect(number)
        state, _ = bench.locks.read("order:7")
        ask = LockAsk(name="order:7", owner=state.owner, lease_seconds=LOCK_SECONDS)
        bench.locks.release(HeldLock(ask=ask, fence=state.fence))
        # Little of its lease is left: before that nobody asks.
        bench.clock.ahead_seconds = 0.9 * LOCK_SECONDS

    task = bench.atomic(body, lock=EntityLock("order:{number}", lease_seconds=LOCK_SECONDS))
    task.delay(7)

    assert ("kept", []) == (bench.deliver().fate, bench.effects())
    assert bench.record(task, 7) is None


@only_postgres
def test_body_that_loses_a_lock_of_its_own_is_retried(bench):
    """Dropped as if its delivery's lock were gone, its message would come back after a visibility timeout."""
    starts = []

    def body(self, number):
        bench.has_effect(number)
        starts.append(number)
        if len(starts) == 1:
            # As `hold` does at the end of its block.
            raise LockLost("stock:7: lost at fence 3")

    bench.atomic(body, lock=EntityLock("order:{number}")).delay(7)

    delivered = bench.drain()

    assert {"acknowledged"} == {each.fate for each in delivered}
    assert ([7, 7], [7]) == (starts, bench.effects())
    assert Outcome.FENCED not in bench.outcomes


@only_postgres
def test_body_that_is_started_again_has_its_lock(bench):
    """Its record has moved while it failed: without the lock two bodies would be at one entity."""
    owners = []

    def body(self, number):
        owners.append(bench.locks.read("order:7")[0].owner)
        if len(owners) == 1:
            write_late_failure(bench, task)
            raise ConnectionError("down")

    task = bench.atomic(body, lock=EntityLock("order:{number}"))
    task.delay(7)

    assert "SUCCESS" == bench.deliver().state
    assert [owners[0]] * 2 == owners
    assert "" == bench.locks.read("order:7")[0].owner


@only_postgres
def test_retry_that_an_earlier_start_has_asked_for_is_not_asked_for_by_the_next(bench):
    """That start does not count: the one that counts has succeeded."""
    starts = []

    def body(self, number):
        starts.append(number)
        bench.has_effect(number)
        if len(starts) == 1:
            write_late_failure(bench, task)
            self.retry(throw=False, countdown=0)

    task = bench.atomic(body)
    task.delay(7)

    assert ("SUCCESS", [7]) == (bench.deliver().state, bench.effects())
