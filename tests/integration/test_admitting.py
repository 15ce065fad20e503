"""
Who may start: one delivery at a time, after one question to the store, and nobody unprotected who has not said so.

The store may be away, or its answer be lost: the delivery then waits, is put off, or runs as its task has declared.
"""

import contextlib

import pytest

from celery_safeguards import Outcome, RetryPolicy, current_safe
from celery_safeguards.ledger.record import State
from tests.support.bench import LEASE_SECONDS, Bench, Killed

# --- one at a time


def test_retry_that_meets_its_own_record_is_no_duplicate(bench):
    """Where the key is enforced on publish, a retry is refused by its own lock and the task is lost (celery-once)."""
    held = []

    def body(self, number):
        held.append(bench.record(self, number).state)
        if len(held) < 3:
            raise ConnectionRefusedError("gateway is down")
        return "paid"

    task = bench.keyed(body)
    task.delay(1)

    delivered = bench.drain()

    assert held == [State.IN_PROGRESS] * 3
    assert (delivered[-1].result, bench.record(task, 1).state) == ("paid", State.DONE)


def test_publishing_its_own_task_from_the_body_is_deferred_until_it_is_done(bench):
    """A second publish of the running operation must neither run beside it nor be lost."""
    runs = []

    def body(self, number):
        runs.append(number)
        self.apply_async((number,))
        again = bench.deliver()
        return again.fate, again.state

    task = bench.keyed(body)
    task.delay(1)

    first, second = bench.drain()

    assert (runs, first.result) == ([1], ["acknowledged", "PENDING"])
    assert (second.result, second.message.headers["sg_deferrals"]) == (["acknowledged", "PENDING"], 1)


@pytest.fixture
def watched(namespace):
    """A bench whose deferrals are short, so that the store hears a worker within every half lease."""
    with contextlib.closing(Bench(namespace, safeguards_deferral_cap_seconds=LEASE_SECONDS / 4)) as bench:
        yield bench


def test_claim_of_a_dead_worker_is_taken_over_after_its_lease_and_not_before(watched):
    """Before that the worker may be alive; after it nobody else will do the work."""
    bench, began = watched, []

    def body(self, number):
        began.append(bench.clock.now)
        if len(began) == 1:
            raise Killed

    task = bench.keyed(body)
    task.delay(1)
    bench.deliver(worker_dies=True)
    while bench.waiting():
        bench.deliver()
        # Other workers of the fleet are seen by the store all the while.
        bench.store.renew({})

    assert len(began) == 2
    assert began[1] - began[0] >= LEASE_SECONDS
    assert bench.outcomes[-1] is Outcome.SUCCEEDED


# --- what the question costs


def test_unkeyed_task_asks_no_store(bench):
    """A task without a key must not stand still because of a store it does not need."""
    bench.store.calls.clear()
    task = bench.task(lambda self, number: (self.safe.attempt, self.safe.idempotency_key))
    task.delay(1)

    (delivered,) = bench.drain()

    assert (delivered.result, bench.store.calls) == ([1, None], [])


def test_first_run_of_a_keyed_task_costs_two_round_trips(bench):
    """Every further round trip is paid by every task of the fleet."""
    task = bench.keyed(lambda self, number: current_safe().checkpoint())
    task.delay(1)
    bench.store.calls.clear()

    bench.drain()

    assert bench.store.calls == ["admit", "settle"]


# --- the store is away


def test_delivery_waits_for_a_store_that_is_away_for_a_moment(bench):
    """A failover of seconds must not send every message through the broker again."""
    task = bench.keyed(lambda self, number: "done")
    task.delay(1)
    bench.store.pull(seconds=4)

    (delivered,) = bench.drain()

    assert (delivered.fate, delivered.result) == ("acknowledged", "done")


def test_delivery_is_put_off_when_the_store_stays_away(bench, caplog):
    """Keyed work waits; it does not run unprotected and it is not lost."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number))
    task.delay(1)
    bench.store.pull(seconds=20)

    with caplog.at_level("INFO"):
        first = bench.deliver()
    ran_without_store = list(runs)
    later = bench.drain()

    assert "; again in " in caplog.text
    assert (first.fate, first.state, ran_without_store) == ("acknowledged", "PENDING", [])
    assert (runs, later[-1].state) == ([1], "SUCCESS")
    assert bench.outcomes[0] is Outcome.DEFERRED


def test_publishing_does_not_depend_on_the_store(bench):
    """A web request must not fail because the store of records is away; the key needs no store."""
    bench.store.pull(seconds=60)
    task = bench.keyed(lambda self, number: "done")

    task.delay(1)

    headers = bench.receive().headers
    assert (headers["sg_key"], "sg_epoch" in headers) == ("op:1", False)


def test_body_runs_once_when_the_answer_to_its_claim_was_lost(bench):
    """The claim was made and its answer was lost: asking again must find it, not wait for it to lapse."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number))
    task.delay(1)
    bench.store.lose_answer_of("admit")

    (delivered,) = bench.drain()

    assert (runs, delivered.state) == ([1], "SUCCESS")
    assert bench.clock.now - 4_000_000_000 < LEASE_SECONDS


def test_retry_runs_when_the_answer_to_its_claim_was_lost(bench):
    """Put off, it would leave a claim of its own behind: a start that never was would be quarantined as unknown."""
    runs = []

    def body(self, number):
        runs.append(self.safe.attempt)
        if len(runs) == 1:
            raise ConnectionRefusedError("gateway is down")
        return number

    task = bench.keyed(body, on_unknown="quarantine")
    task.delay(1)
    bench.deliver()
    bench.store.lose_answer_of("take")

    (delivered,) = bench.drain()

    record = bench.record(task, 1)
    assert (runs, delivered.state, delivered.result) == ([1, 2], "SUCCESS", 1)
    assert (record.state, record.lost_starts) == (State.DONE, 0)


# --- run unprotected


def test_task_that_may_run_unprotected_runs_without_the_store(bench):
    """Where late is worse than twice, the task has said so."""
    task = bench.keyed(lambda self, number: "done", on_store_down="run_unprotected")
    task.delay(1)
    bench.store.pull(seconds=3600)

    (delivered,) = bench.drain()

    assert (delivered.state, delivered.result) == ("SUCCESS", "done")


def test_unprotected_run_that_fails_is_retried_or_buried_like_any_other(bench):
    """Running without the record must not mean losing the failure."""

    def body(self, number):
        raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body, on_store_down="run_unprotected", retry=RetryPolicy(attempts=2))
    task.delay(1)
    bench.store.pull(seconds=3600)

    first, *rest = bench.drain()

    assert first.state == "RETRY"
    assert rest[-1].state == "FAILURE"
    assert [letter.task_id for letter in bench.all_letters()] == [first.task_id]


def test_unprotected_run_checks_its_postcondition(bench):
    """The check is about the data, not about the record."""
    task = bench.keyed(lambda self, number: "paid", on_store_down="run_unprotected", ensure=lambda result: False)
    task.delay(1)
    bench.store.pull(seconds=3600)

    delivered = bench.drain()

    assert delivered[-1].state == "FAILURE"


def test_asked_retry_of_an_unprotected_run_is_published(bench):
    """`self.retry()` only raises: somebody must publish, with or without the store."""
    runs = []

    def body(self, number):
        runs.append(number)
        if len(runs) == 1:
            raise self.retry(countdown=5)

    task = bench.keyed(body, on_store_down="run_unprotected")
    task.delay(1)
    bench.store.pull(seconds=3600)

    delivered = bench.drain()

    assert (len(runs), delivered[-1].state) == (2, "SUCCESS")
