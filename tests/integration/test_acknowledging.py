"""
When a message may be acknowledged: after its outcome is durable, and by the owner that made it so.

Until then the broker keeps the message, and Celery's result says nothing. The one exception is a task that has
declared it.
"""

import contextlib

import pytest

from celery_safeguards import Outcome, Safeguards
from celery_safeguards.admission.store import Change
from celery_safeguards.ledger.record import State
from tests.support.bench import LEASE_SECONDS, Killed

# --- the outcome


def test_outcome_is_written_when_the_store_comes_back(bench):
    """The body has run: its success must not be thrown away because the store blinked."""

    def body(self, number):
        bench.store.pull(seconds=10)
        return "done"

    task = bench.keyed(body)
    task.delay(1)

    (delivered,) = bench.drain()

    assert (delivered.fate, delivered.result, bench.record(task, 1).state) == ("acknowledged", "done", State.DONE)


def test_delivery_whose_outcome_cannot_be_written_is_not_acknowledged(bench):
    """An acknowledgement without a record would turn "unknown" into "done, and nobody knows what"."""

    def body(self, number):
        bench.store.pull(seconds=100)
        return "done"

    task = bench.keyed(body)
    task.delay(1)

    delivered = bench.deliver()

    assert (delivered.fate, delivered.state, bench.outcomes) == ("kept", "PENDING", [Outcome.FENCED])
    assert bench.clock.now - 4_000_000_000 <= LEASE_SECONDS


def test_lost_answer_to_a_written_outcome_is_asked_for_again(bench):
    """The record is done: the second try of the same write must not be taken for a stranger's."""
    task = bench.keyed(lambda self, number: "done")
    task.delay(1)
    bench.store.lose_answer_of("settle")

    (delivered,) = bench.drain()

    assert (delivered.fate, delivered.result) == ("acknowledged", "done")


# --- the owner


def _in_progress(**fields):
    return Change(fields={"state": State.IN_PROGRESS, "asking": False, **fields}, retention_seconds=None)


def test_owner_that_was_fenced_out_neither_reports_nor_acknowledges(bench):
    """Its late success would overwrite what the new owner says."""

    def body(self, number):
        record = bench.record(self, number)
        bench.store.take(self.plan.record_key("op:1"), record.rev, "another", _in_progress())
        return "late"

    task = bench.keyed(body)
    task.delay(1)

    delivered = bench.deliver()

    assert (delivered.fate, delivered.state, bench.outcomes) == ("kept", "PENDING", [Outcome.FENCED])


def test_late_success_of_a_fenced_owner_is_noted_where_its_letter_is_not_written_yet(bench):
    """The note is a courtesy; that it cannot be written gives no right to acknowledge."""

    def body(self, number):
        record = bench.record(self, number)
        taken = _in_progress(letter_id="not-there-yet")
        bench.store.take(self.plan.record_key("op:1"), record.rev, "another", taken)
        return "late"

    task = bench.keyed(body)
    task.delay(1)

    assert bench.deliver().fate == "kept"


# --- the letter and the copy


def test_message_is_put_off_while_its_letter_cannot_be_written(bench):
    """A failure whose letter is not durable must not be acknowledged away; the record holds the letter meanwhile."""

    def body(self, number):
        bench.letters.pull(seconds=20)
        raise ValueError("bad data")

    task = bench.keyed(body, retry=None)
    task.delay(1)

    first = bench.deliver()
    waiting = bench.record(task, 1).state
    later = bench.drain()

    (letter,) = bench.all_letters()
    assert (first.state, waiting) == ("PENDING", State.DYING)
    assert (later[-1].state, later[-1].result.letter_id) == ("FAILURE", letter.id)
    assert bench.record(task, 1).state is State.DEAD


def test_unkeyed_message_is_kept_while_its_letter_cannot_be_written(bench):
    """Without a record the message itself is all there is."""

    def body(self, number):
        bench.letters.pull(seconds=20)
        raise ValueError("bad data")

    task = bench.task(body)
    task.delay(1)

    assert bench.deliver().fate == "kept"


def _raises(error):
    raise error


def test_message_is_kept_when_the_broker_does_not_take_its_copy(bench, monkeypatch):
    """Celery rejects a message whose retry it cannot publish: the task is lost."""

    def body(self, number):
        raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body)
    task.delay(1)
    monkeypatch.setattr(type(task), "publish", lambda *args, **kwargs: _raises(OSError("broker is down")))

    delivered = bench.deliver()

    assert (delivered.fate, delivered.state, bench.record(task, 1).state) == ("kept", "PENDING", State.RETRY_DUE)


# --- an error around the body


@contextlib.contextmanager
def broken(owner, name, error):
    """Let a method raise."""
    found = getattr(owner, name)

    def fail(*args, **kwargs):
        raise error

    setattr(owner, name, fail)
    try:
        yield
    finally:
        setattr(owner, name, found)


def test_success_that_the_result_back_end_did_not_take_is_kept_and_stored_later(bench):
    """Acknowledged, whoever waits for the result of a finished payment would wait for ever."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number) or "paid")
    task.delay(1)

    refused = ConnectionRefusedError("no result back end")
    with broken(bench.app.backend, "mark_as_done", refused), pytest.warns(RuntimeWarning, match="outside body"):
        first = bench.deliver()

    assert ("kept", State.DONE) == (first.fate, bench.record(task, 1).state)
    first.message.requeue()
    (second,) = bench.drain()
    assert ("SUCCESS", "paid", [1]) == (second.state, second.result, runs)


def test_error_of_the_pipeline_itself_keeps_the_message(bench):
    """Acknowledged, the order would be held by nobody, and no letter would tell of it."""
    task = bench.keyed(lambda self, number: "paid")
    task.delay(1)

    with broken(bench.store, "settle", RuntimeError("nobody has foreseen this")):
        first = bench.deliver()

    assert "kept" == first.fate
    assert not bench.all_letters()


# --- declared otherwise


def test_task_that_must_not_repeat_is_acknowledged_before_its_body(bench):
    """At most once: a worker that dies with it must not bring it back."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise Killed

    task = bench.task(body, Safeguards(at_most_once=True))
    task.delay(1)

    (delivered,) = bench.drain()

    assert (runs, delivered.fate, bench.all_letters()) == ([1], "acknowledged", ())
