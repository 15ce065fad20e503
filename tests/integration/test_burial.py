"""
Work that is given up: its letter says what was lost and why, and later publications are answered by it.

An error may be as odd as it likes: nothing that a body raises keeps its letter from being written.
"""

import contextlib
import threading

import pytest
from celery.exceptions import Reject

from celery_safeguards import EntityLock, RetryPolicy, Safeguards
from celery_safeguards._compat import REJECT_IS_A_FAILURE
from celery_safeguards.errors import AttachedToLetter, DeadBefore, DeadLettered, Refused
from celery_safeguards.outcome import FailureKind
from celery_safeguards.worker.unread import keep_unread
from tests.support.bench import Bench, HasNoText

# --- the letter


class TwoArguments(Exception):
    """As SDKs have them: what pickle makes of it cannot be built again."""

    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


class HoldsALock(Exception):
    """Cannot be pickled at all."""

    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


NO_MODULE = type("HasNoModule", (Exception,), {"__module__": None})("as a library makes its class at run time")
ODD_ERRORS = [TwoArguments(402, "declined"), HoldsALock(), HasNoText(), NO_MODULE]


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("is_keyed", [True, False])
@pytest.mark.parametrize("odd", ODD_ERRORS, ids=lambda odd: type(odd).__name__)
def test_error_that_cannot_be_pickled_or_shown_becomes_a_letter(bench, odd, is_keyed, attempts):
    """Such errors have hung workers and lost failures (celery/celery#6990)."""

    def body(self, number):
        raise odd

    retry = RetryPolicy(attempts=attempts)
    task = bench.keyed(body, retry=retry) if is_keyed else bench.task(body, Safeguards(repeatable=True, retry=retry))
    task.delay(1)

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    last = delivered[-1]
    assert [each.fate for each in delivered] == ["acknowledged"] * attempts
    assert (last.state, type(last.result), last.result.letter_id) == ("FAILURE", DeadLettered, letter.id)
    assert letter.error_type.endswith(type(odd).__name__)
    assert type(odd).__name__ in letter.traceback
    assert (letter.attempts, letter.lost_starts, letter.task_id) == (attempts, 0, last.task_id)


@pytest.mark.parametrize("is_keyed", [True, False])
def test_letter_says_which_release_has_failed(namespace, is_keyed):
    """Two releases run side by side during a deployment, and only one of them may be broken."""

    def body(self, number):
        raise ValueError(number)

    with contextlib.closing(Bench(namespace, safeguards_release="v4.2")) as bench:
        task = bench.keyed(body, retry=None) if is_keyed else bench.task(body, Safeguards(repeatable=True, retry=None))
        task.delay(1)

        bench.drain()

        (letter,) = bench.all_letters()
        group = bench.letters.get_group(letter.fingerprint)
        assert ("v4.2", ["v4.2"]) == (letter.release, [each.release for each in group.releases])


def test_letter_of_a_message_that_is_not_read_says_which_release_did_not_know_it(namespace):
    """A task that only the next release knows waits for that one."""
    with contextlib.closing(Bench(namespace, safeguards_release="v4.2")) as bench:
        bench.app.send_task("bench.of_the_next_release")
        keep_unread(bench.app, bench.receive(), FailureKind.UNKNOWN_TASK, "no such task", KeyError("of_the_next"))

        assert ["v4.2"] == [each.release for each in bench.all_letters()]


def test_dead_lettered_error_says_where_and_why(bench):
    """Who reads only Celery's result must find the letter and the cause."""

    def body(self, number):
        raise ValueError("amount is negative")

    task = bench.keyed(body, retry=None)
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert str(delivered.result) == f"dead letter {letter.id} (data): builtins.ValueError: amount is negative"
    assert (letter.key, letter.scope, letter.reason) == ("op:1", task.name, "no retry policy")
    assert letter.wire.body == delivered.message.body


@pytest.mark.parametrize("is_keyed", [True, False])
def test_rejected_message_becomes_a_letter(bench, is_keyed):
    """Redis has no dead-letter exchange: a plain reject throws the message away."""

    def body(self, number):
        raise Reject("malformed", requeue=False)

    task = bench.keyed(body) if is_keyed else bench.task(body)
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (letter.kind, letter.reason) == (FailureKind.DATA, "the body rejected its message")
    # Without a key Celery is told what the body said, where it takes that for a failure.
    fate = "given up" if REJECT_IS_A_FAILURE and not is_keyed else "acknowledged"
    assert (delivered.fate, delivered.state) == (fate, "FAILURE")


def test_unkeyed_body_that_fails_with_another_tasks_letter_gets_a_letter_of_its_own(bench):
    """The outer message would vanish behind the inner letter, which cannot be replayed into it."""

    def fails(self):
        raise ValueError("inner")

    inner = bench.keyed(lambda self, number: fails(self), retry=None)
    outer = bench.task(lambda self, number: inner.apply((number,), throw=True))
    outer.delay(1)

    (delivered,) = bench.drain()

    assert {letter.task for letter in bench.all_letters()} == {inner.name, outer.name}
    assert bench.letters.get(delivered.result.letter_id).task == outer.name


def test_failure_of_acknowledged_work_is_stored_although_its_letter_cannot_be_written(bench):
    """At most once, its message does not come back: its caller would wait for ever, and nobody would ever know."""

    def body(self, number):
        raise ValueError("no such order")

    bench.task(body, Safeguards(at_most_once=True)).delay(1)
    bench.letters.pull(seconds=1_000)

    (delivered,) = bench.drain()

    assert (delivered.state, repr(delivered.result)) == ("FAILURE", "ValueError('no such order')")
    assert "dead letter" not in delivered.traceback


def test_acknowledged_work_that_cannot_be_carried_through_has_failed(bench):
    """It names no entity to lock, and its letter cannot be written: pending, it would be waited for in vain."""
    lock = EntityLock("stock:{number}")
    task = bench.task(lambda self, number: number, Safeguards(at_most_once=True, lock=lock))
    bench.app.send_task(task.name, (None,))
    bench.letters.pull(seconds=1_000)

    (delivered,) = bench.drain()

    assert (delivered.fate, delivered.state) == ("acknowledged", "FAILURE")


# --- dead work


def dead_work(bench, *, on_dead, error=None):
    """Register a task whose first series dies, and bury it."""
    runs = []

    def body(self, number):
        runs.append(self.safe.attempt)
        if len(runs) == 1:
            raise error or ValueError("bad data")
        return "done"

    task = bench.keyed(body, idempotent={"on_dead": on_dead}, retry=None)
    task.delay(1)
    bench.deliver()
    return task, runs


def test_new_publication_of_dead_work_is_refused_visibly(bench):
    """A silent drop would look like a payment on its way (sidekiq-unique-jobs)."""
    task, runs = dead_work(bench, on_dead="refuse")
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, type(delivered.result), delivered.result.letter_id) == ([1], Refused, letter.id)
    assert letter.history[-1].detail == delivered.task_id


def test_new_publication_of_dead_work_runs_as_a_new_series(bench):
    """Where the caller's new publish is the repair, the old letter must not block it."""
    task, runs = dead_work(bench, on_dead="run")
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, delivered.result, letter.state) == ([1, 1], "done", "closed")


def test_new_publication_of_dead_work_attaches_to_its_letter(bench):
    """Where a person decides, every further publish must be found on the one letter."""
    task, runs = dead_work(bench, on_dead="attach")
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, type(delivered.result)) == ([1], AttachedToLetter)
    assert letter.history[-1].detail == delivered.task_id


@pytest.mark.parametrize("on_dead", ["refuse", "run", "attach"])
def test_dead_message_delivered_again_fails_again_without_a_second_letter(bench, on_dead):
    """The worker died between the letter and the acknowledgement: that is no new publication."""
    task, runs = dead_work(bench, on_dead=on_dead)
    (letter,) = bench.all_letters()
    task.apply_async((1,), task_id=letter.task_id)

    (delivered,) = bench.drain()

    assert (runs, type(delivered.result), bench.all_letters()) == ([1], DeadBefore, (letter,))


def test_publication_of_dead_work_is_refused_although_its_letter_is_still_in_the_spool(bench):
    """While letters wait on a disk, the answer must still name the letter and not an error of ours."""
    task, _ = dead_work(bench, on_dead="refuse")
    (letter,) = bench.all_letters()
    # What the store looks like until the spool is drained.
    bench.letters._store._letters.clear()
    task.delay(1)

    (delivered,) = bench.drain()

    assert (type(delivered.result), delivered.result.letter_id) == (Refused, letter.id)
