"""
What comes of a success: checked before it counts, given to whoever asks again, and followed by the rest of its canvas.
"""

import contextlib
import uuid
from datetime import UTC, datetime

import pytest

from celery_safeguards import Outcome, RetryPolicy, Safeguards
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from tests.support.bench import Bench, HasNoText

# --- the stored result


def test_duplicate_gets_the_stored_result_and_the_body_runs_once(bench):
    """The caller of a repeated payment must see the receipt of the first, not nothing and not a second one."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number) or {"receipt": number})
    task.delay(1)
    task.delay(1)

    first, second = bench.drain()

    assert first.task_id != second.task_id
    assert (first.result, second.result, runs) == ({"receipt": 1}, {"receipt": 1}, [1])


@pytest.mark.parametrize("value", [(1, (2, 3)), {"at": datetime(2026, 1, 1, tzinfo=UTC)}, uuid.UUID(int=7), b"\x00"])
def test_first_run_and_duplicate_return_the_same_value(bench, value):
    """The next link of a chain would fail on a list where it got a tuple in every test."""
    task = bench.keyed(lambda self, number: value)

    first = task.apply(args=(1,)).result
    second = task.apply(args=(1,)).result

    assert (first, type(first)) == (second, type(second))


def test_result_that_json_cannot_carry_is_returned_once_and_marked_for_duplicates(bench):
    """An odd return value must not undo a payment that has been made."""
    value = object()
    task = bench.keyed(lambda self, number: value)

    first, second = task.apply(args=(1,)), task.apply(args=(1,))

    assert first.result is value
    assert second.result == {"sg_result": "not_encodable", "key": "op:1"}


def test_result_above_the_limit_is_marked_for_duplicates(namespace):
    """A report of megabytes in every record would fill the store that all tasks depend on."""
    with contextlib.closing(Bench(namespace, safeguards_max_result_bytes=100)) as bench:
        task = bench.keyed(lambda self, number: "é" * 60)

        first, second = task.apply(args=(1,)), task.apply(args=(1,))

        assert first.result == "é" * 60
        assert second.result == {"sg_result": "too_large", "key": "op:1"}


def test_result_that_is_a_secret_is_not_stored(bench):
    """A one-time token in the record would be readable by everybody who can read the store."""
    task = bench.keyed(lambda self, number: "token", idempotent={"store_result": False})

    first, second = task.apply(args=(1,)), task.apply(args=(1,))

    assert (first.result, second.result) == ("token", {"sg_result": "withheld", "key": "op:1"})
    assert "token" not in repr(bench.record(task, 1))


# --- what follows


def test_message_delivered_twice_sends_what_follows_once(bench):
    """The worker died before it acknowledged: the next task of the chain has been sent already."""
    seen = []
    after = bench.task(lambda self, receipt: seen.append(receipt))
    task = bench.keyed(lambda self, number: f"receipt {number}")
    (task.s(1) | after.s()).apply_async()
    bench.deliver(worker_dies=True)

    bench.drain()

    assert (seen, bench.outcomes.count(Outcome.DEDUPLICATED)) == (["receipt 1"], 1)


def test_publication_of_done_work_goes_on_with_its_own_chain(bench):
    """Another caller's chain waits for the same payment: it must continue as if it had run."""
    seen = []
    after = bench.task(lambda self, receipt, who: seen.append((receipt, who)))
    task = bench.keyed(lambda self, number: f"receipt {number}")
    (task.s(1) | after.s("first")).apply_async()
    (task.s(1) | after.s("second")).apply_async()

    bench.drain()

    assert seen == [("receipt 1", "first"), ("receipt 1", "second")]


def test_next_task_of_a_chain_whose_key_is_refused_becomes_its_own_letter(bench):
    """Raised while the chain goes on, the refusal would turn the finished payment into a failure."""
    after = bench.keyed(lambda self, number: number)
    task = bench.keyed(lambda self, number: None)
    (task.s(1) | after.s()).apply_async()

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (delivered.state, bench.record(task, 1).state) == ("SUCCESS", State.DONE)
    assert (letter.task, letter.kind) == (after.name, FailureKind.DATA)


# --- post-conditions


@pytest.mark.parametrize("is_keyed", [True, False])
@pytest.mark.parametrize(
    ("ensure", "why"),
    [(lambda result: False, "is False"), (lambda result: 1 / 0, "ZeroDivisionError")],
    ids=["false", "raises"],
)
def test_failed_postcondition_is_a_letter_with_a_possible_effect(bench, ensure, why, is_keyed):
    """A body that returns although the order is not paid must not count as a success."""
    safeguards = {"ensure": ensure, "retry": RetryPolicy(attempts=4)}
    body = lambda self, number: "paid"  # noqa: E731
    task = bench.keyed(body, **safeguards) if is_keyed else bench.task(body, Safeguards(repeatable=True, **safeguards))
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (letter.kind, letter.effect_possible, delivered.state) == (FailureKind.INVARIANT, True, "FAILURE")
    assert why in letter.error_message


@pytest.mark.parametrize("is_keyed", [True, False])
def test_postcondition_gets_the_result_and_the_arguments_it_names(bench, is_keyed):
    """A check that cannot see the order can check nothing."""
    seen = []
    ensure = lambda result, currency, number: seen.append((result, number, currency))  # noqa: E731
    body = lambda self, number, currency="EUR": "paid"  # noqa: E731
    task = bench.keyed(body, ensure=ensure) if is_keyed else bench.task(body, Safeguards(ensure=ensure))
    task.delay(1)

    (delivered,) = bench.drain()

    assert (seen, delivered.state) == ([("paid", 1, "EUR")], "SUCCESS")


def test_postcondition_whose_error_has_no_text_is_still_a_failed_postcondition(bench):
    """The kind decides whether an effect is possible: an odd error class must not change it."""

    def ensure(result):
        raise HasNoText

    task = bench.keyed(lambda self, number: "paid", ensure=ensure)
    task.delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert letter.kind is FailureKind.INVARIANT
