"""
A body was started, and nobody recorded how it ended: it is asked about, started again or left to a person.

The task's `on_unknown` decides, and an answer that is not clear is never taken for one.
"""

import pytest
from celery.exceptions import Reject

from celery_safeguards import CannotTell, DidNotHappen, Happened, Outcome, RetryPolicy, Verify
from celery_safeguards.errors import AttachedToLetter, DeadBefore, Quarantined
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from tests.support.bench import HasNoText, Killed


def _raises(error):
    raise error


# --- asked about


def killed_once(bench, verify, **options):
    """Register a task whose first start is killed, and lose that start."""
    runs = []

    def body(self, number):
        runs.append(self.safe.attempt)
        if len(runs) == 1:
            raise Killed
        return "done"

    task = bench.keyed(body, on_unknown=verify, **options)
    task.delay(1)
    bench.deliver()
    return task, runs


def test_verify_that_says_happened_finishes_the_work_without_a_start(bench):
    """The charge went through before the worker died: a second start would charge again."""
    asked = []

    def find(number, idempotency_key):
        asked.append((number, idempotency_key))
        return Happened({"receipt": number})

    task, runs = killed_once(bench, Verify(find, after_seconds=0))

    (delivered,) = bench.drain()

    assert (runs, asked) == ([1], [(1, "op:1")])
    assert (delivered.state, delivered.result) == ("SUCCESS", {"receipt": 1})
    assert (bench.outcomes, bench.record(task, 1).state) == ([Outcome.DEDUPLICATED], State.DONE)


def test_verify_that_says_did_not_happen_starts_the_body(bench):
    """Nothing was charged: the order must not stay unpaid."""
    _, runs = killed_once(bench, Verify(DidNotHappen, after_seconds=0))

    (delivered,) = bench.drain()

    assert (runs, delivered.result) == ([1, 2], "done")


def test_verify_is_not_asked_before_its_quiet_period_is_over(bench):
    """The dead worker's request may still be in flight: "not found" is no answer yet."""
    asked = []

    def find():
        asked.append(bench.clock.now)
        return DidNotHappen()

    killed_once(bench, Verify(find, after_seconds=60))
    died = bench.clock.now

    delivered = bench.drain()

    assert [each.fate for each in delivered] == ["acknowledged", "acknowledged"]
    assert len(asked) == 1
    assert asked[0] >= died + 60


@pytest.mark.parametrize(
    "find",
    [
        lambda: CannotTell("search is down"),
        lambda: _raises(ConnectionError("down")),
        lambda: _raises(HasNoText()),
        lambda: True,
    ],
    ids=["cannot_tell", "raises", "raises_without_text", "other_type"],
)
def test_verify_without_a_clear_answer_ends_in_quarantine(bench, find):
    """An unclear answer taken as "no" charges twice; taken as "yes" it loses the payment."""
    task, runs = killed_once(bench, Verify(find, after_seconds=0, asks=3))

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, [each.state for each in delivered]) == ([1], ["PENDING", "PENDING", "FAILURE"])
    assert (letter.kind, letter.effect_possible) == (FailureKind.UNKNOWN_OUTCOME, True)
    assert isinstance(delivered[-1].result, Quarantined)
    assert bench.record(task, 1).state is State.QUARANTINED


@pytest.mark.parametrize(
    ("error", "quiet_seconds"), [(ConnectionRefusedError("no"), 0), (TimeoutError("read timed out"), 30)]
)
def test_verify_is_asked_after_any_failed_start(bench, error, quiet_seconds):
    """The last error may be harmless while an earlier call was not; only one in flight has to be waited for."""
    asked = []

    def find():
        asked.append(bench.clock.now)
        return DidNotHappen()

    def body(self, number):
        if self.safe.attempt == 1:
            raise error

    task = bench.keyed(body, on_unknown=Verify(find, after_seconds=30))
    task.delay(1)
    failed_at = bench.clock.now

    bench.drain()

    assert len(asked) == 1
    assert asked[0] - failed_at == pytest.approx(max(5, quiet_seconds), abs=4)


def test_message_that_the_body_puts_back_is_asked_about_where_any_start_is(bench):
    """Under `verify` every further start is asked about, however the last one ended."""
    asked = []

    def find():
        asked.append(bench.clock.now)
        return DidNotHappen()

    def body(self, number):
        if self.safe.attempt == 1:
            raise Reject("not yet", requeue=True)

    task = bench.keyed(body, Verify(find, after_seconds=0))
    task.delay(1)

    bench.drain()

    assert len(asked) == 1


def test_verify_that_says_did_not_happen_at_the_cap_leaves_no_doubt_on_the_letter(bench):
    """Whoever reads the letter would ask the bank again about a charge that is known not to exist."""
    task, runs = killed_once(bench, Verify(DidNotHappen, after_seconds=0), retry=RetryPolicy(attempts=1))

    bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, letter.effect_possible) == ([1], False)
    assert bench.record(task, 1).effect_possible is False


# --- left to a person


def test_work_in_quarantine_waits_for_a_person(bench):
    """Where only a person can tell, a second start is a gamble with the customer's money."""
    task, runs = killed_once(bench, "quarantine")
    (delivered,) = bench.drain()

    again = task.apply_async((1,), task_id=delivered.task_id)
    task.delay(1)
    same_id, new_id = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, again.id) == ([1], letter.task_id)
    assert [type(each.result) for each in (delivered, same_id, new_id)] == [Quarantined, DeadBefore, AttachedToLetter]
    assert {each.result.letter_id for each in (delivered, same_id, new_id)} == {letter.id}


def test_ambiguous_error_is_quarantined_at_once(bench):
    """A timeout after the request was sent leaves the charge in doubt: retrying it would be the double charge."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise TimeoutError("read timed out")

    task = bench.keyed(body, "quarantine")
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, type(delivered.result), letter.effect_possible) == ([1], Quarantined, True)
    assert (letter.kind, bench.outcomes) == (FailureKind.DEPENDENCY_TIMEOUT, [Outcome.UNKNOWN])


def test_refused_connection_is_retried_although_doubt_would_be_quarantined(bench):
    """Nothing was sent: making a person look at every restart of the gateway wears people out."""

    def body(self, number):
        if self.safe.attempt == 1:
            raise ConnectionRefusedError("gateway is down")
        return "paid"

    task = bench.keyed(body, "quarantine")
    task.delay(1)

    assert [each.state for each in bench.drain()] == ["RETRY", "SUCCESS"]
