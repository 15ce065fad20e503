"""
Which attempts a letter tells of: each that failed, how it ended and where, over retries, losses and replays.
"""

import contextlib
import os

import pytest
from celery.exceptions import Reject

from celery_safeguards import CannotTell, DidNotHappen, RetryPolicy, Safeguards, Verify
from celery_safeguards.attempts import read_attempts
from celery_safeguards.headers import ATTEMPTS
from celery_safeguards.ledger.record import State
from celery_safeguards.replay import replay
from tests.integration.test_withdrawn import expire, withdraw
from tests.support.bench import Bench, Killed

THRICE = RetryPolicy(attempts=3, base_seconds=2.0, factor=1.0, cap_seconds=2.0)


@pytest.fixture
def bench(namespace):
    """A bench whose release has a name."""
    with contextlib.closing(Bench(namespace, safeguards_release="v4.2")) as bench:
        yield bench


def register(bench, errors, *, is_keyed, retry=THRICE, on_unknown="rerun"):
    """Register a task whose starts end by these errors, one after the other; after the last it succeeds."""
    left = list(errors)

    def body(self, number, password="s3cret-word"):
        if left:
            raise left.pop(0)
        return "done"

    if is_keyed:
        return bench.keyed(body, on_unknown=on_unknown, retry=retry)
    return bench.task(body, Safeguards(repeatable=True, retry=retry))


def told(letter):
    """Return what a letter says of each attempt."""
    return [
        (each.number, each.ended, each.error_type.rpartition(".")[2], each.message) for each in letter.attempt_history
    ]


def errors():
    return [ConnectionRefusedError("s3cret-word\nis away"), TimeoutError("slow"), ValueError("no such order")]


@pytest.mark.parametrize("is_keyed", [True, False])
def test_letter_tells_each_attempt_also_of_its_replays(bench, is_keyed):
    """Three different errors are three things to mend, and only the last was told."""
    task = register(bench, errors() + errors(), is_keyed=is_keyed)
    sent = task.apply_async((1,), {"password": "s3cret-word"})
    bench.drain()
    (first,) = bench.all_letters()

    again = replay(bench.app, first.id, "ann")
    bench.drain()

    (letter,) = bench.all_letters()
    waited = [(1, "retried in 2 s", "ConnectionRefusedError"), (2, "retried in 2 s", "TimeoutError")]
    texts = ["[redacted]", "slow"] if is_keyed else ["", ""]
    series = [(*each, text) for each, text in zip(waited, texts, strict=True)]
    series.append((3, "buried: data errors are not retried", "ValueError", "no such order"))
    assert series == told(first)
    assert series * 2 == told(letter)
    assert [sent.id] * 3 + [again.task_id] * 3 == [each.task_id for each in letter.attempt_history]
    assert {f"{letter.host}:{os.getpid()}"} == {each.worker for each in letter.attempt_history}
    assert {"v4.2"} == {each.release for each in letter.attempt_history}
    assert sorted(each.at_seconds for each in letter.attempt_history) == [
        each.at_seconds for each in letter.attempt_history
    ]


def test_replay_that_succeeds_leaves_the_attempts_before_it(bench):
    task = register(bench, errors(), is_keyed=True)
    task.delay(1)
    bench.drain()
    (letter,) = bench.all_letters()
    replay(bench.app, letter.id, "ann")

    bench.drain()

    (closed,) = bench.all_letters()
    assert ("closed", told(letter)) == (closed.state, told(closed))


def test_retry_without_a_key_carries_no_text_of_an_error(bench):
    """A broker keeps what it is given, and nobody masks or erases it there."""
    task = register(bench, errors(), is_keyed=False)
    task.delay(1)
    bench.deliver()

    message = bench.receive()

    (attempt,) = read_attempts(message.headers[ATTEMPTS])
    assert ("builtins.ConnectionRefusedError", "") == (attempt.error_type, attempt.message)
    assert "s3cret-word" not in "".join(message.headers[ATTEMPTS])


def test_replay_does_not_carry_the_attempts_that_its_letter_has(bench):
    task = register(bench, errors(), is_keyed=False)
    task.delay(1)
    bench.drain()
    (letter,) = bench.all_letters()
    replay(bench.app, letter.id, "ann")

    assert ATTEMPTS in letter.wire.headers
    assert ATTEMPTS not in bench.receive().headers


# --- what it costs


@pytest.mark.parametrize("is_keyed", [True, False])
def test_attempt_that_does_not_fail_writes_nothing_of_it(bench, is_keyed):
    task = register(bench, [], is_keyed=is_keyed)
    task.delay(1)
    before = len(bench.store.calls)

    bench.drain()

    assert (["admit", "settle"] if is_keyed else []) == bench.store.calls[before:]
    assert not is_keyed or bench.record(task, 1).attempt_history == ()


def test_retry_costs_no_question_of_its_own(bench):
    """A retry that is due is taken as it was read: two round trips before the body, and one behind it."""
    task = register(bench, errors()[:2], is_keyed=True)
    task.delay(1)
    before = len(bench.store.calls)

    bench.drain()

    assert ["admit", "settle", *["admit", "take", "settle"] * 2] == bench.store.calls[before:]


def test_success_forgets_what_failed_before_it(bench):
    """What a customer's failed attempt said would be kept for as long as the key."""
    task = register(bench, errors()[:1], is_keyed=True)
    task.delay(1)
    bench.deliver()
    assert 1 == len(bench.record(task, 1).attempt_history)

    bench.drain()

    record = bench.record(task, 1)
    assert (State.DONE, ()) == (record.state, record.attempt_history)


def test_burial_moves_the_attempts_into_the_letter(bench):
    """They would be kept twice, and erased once."""
    task = register(bench, errors(), is_keyed=True)
    task.delay(1)

    bench.drain()

    record = bench.record(task, 1)
    assert (State.DEAD, ()) == (record.state, record.attempt_history)


# --- ends that are none of the body's


def test_start_that_was_lost_is_told(bench):
    task = register(bench, [ConnectionRefusedError("away"), Killed(), ValueError("no such order")], is_keyed=True)
    task.delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert [
        (1, "retried in 2 s", "ConnectionRefusedError"),
        (2, "lost: its process ended", ""),
        (3, "buried: data errors are not retried", "ValueError"),
    ] == [each[:3] for each in told(letter)]
    lost = letter.attempt_history[1]
    assert (f"{letter.host}:{os.getpid()}", "v4.2") == (lost.worker, lost.release)
    assert "Killed" in lost.message


def test_poison_tells_each_start(bench):
    task = register(bench, [Killed() for _ in range(5)], is_keyed=True)
    task.delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert [(number, "lost: its process ended") for number in (1, 2, 3)] == [each[:2] for each in told(letter)]


def test_poison_without_a_key_tells_the_last_start(bench):
    """Nobody is left to write the others; the reason says how many there were."""
    task = register(bench, [Killed() for _ in range(5)], is_keyed=False)
    task.delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert [(1, "lost: its process ended, and it is buried")] == [each[:2] for each in told(letter)]
    assert "3 times at most" in letter.reason


def test_lost_start_that_was_asked_about_is_told_once(bench):
    """The claim that is held to ask is no start."""
    answers = [CannotTell("down"), DidNotHappen()]
    verify = Verify(lambda: answers.pop(0), after_seconds=0)
    task = register(bench, [Killed(), ValueError("no such order")], is_keyed=True, on_unknown=verify)
    task.delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert [(1, "lost: its process ended"), (2, "buried: data errors are not retried")] == [
        each[:2] for each in told(letter)
    ]


def test_quarantine_says_so(bench):
    task = register(bench, [TimeoutError("slow")], is_keyed=True, on_unknown="quarantine")
    task.delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert [(1, "quarantined: only a person can tell what happened", "TimeoutError", "slow")] == told(letter)


def test_body_that_asks_for_its_message_again_is_told(bench):
    task = register(bench, [Reject("later", requeue=True), ValueError("no such order")], is_keyed=True)
    task.delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert [(1, "put back: rejected by the body"), (2, "buried: data errors are not retried")] == [
        each[:2] for each in told(letter)
    ]


@pytest.mark.parametrize("is_keyed", [True, False])
def test_retry_that_expires_tells_what_failed_before(bench, is_keyed):
    """Why it was late is in its attempts, and not in its expiry."""
    task = register(bench, errors(), is_keyed=is_keyed)
    task.delay(1)
    bench.deliver()

    expire(bench)
    withdraw(bench)

    (letter,) = bench.all_letters()
    assert ("expired", [(1, "retried in 2 s")]) == (letter.kind, [each[:2] for each in told(letter)])
    assert [letter.task_id] == [each.task_id for each in letter.attempt_history]
