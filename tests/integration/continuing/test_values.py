"""
What is passed on: the right value, or a letter where the value is gone; never one in its place.
"""

import contextlib

import celery.app.task
import pytest
from celery import chain, chord

from celery_safeguards.errors import DeadLettered
from celery_safeguards.ledger.record import ResultForm, State
from celery_safeguards.outcome import FailureKind
from tests.integration.continuing.between_steps import at_success, die, returning
from tests.support.bench import Bench

MAX_RESULT_BYTES = 100
LARGE = "x" * (MAX_RESULT_BYTES + 1)


@pytest.fixture
def bench(namespace):
    """A bench of its own queue."""
    with contextlib.closing(Bench(namespace, safeguards_max_result_bytes=MAX_RESULT_BYTES)) as bench:
        yield bench


FORMS = {
    ResultForm.WITHHELD: ("secret", {"store_result": False}),
    ResultForm.TOO_LARGE: (LARGE, {}),
}


@pytest.fixture(params=FORMS)
def unstored(request, bench):
    """A task whose result is not stored, and that result."""
    value, idempotent = FORMS[request.param]
    task = returning(bench, value, idempotent=idempotent)
    task.value, task.form = value, request.param
    return task


def canvas_of(how, task, last):
    """Publish a task with something that waits for its result."""
    match how:
        case "link":
            return task.apply_async((1,), link=last.s())
        case "chain":
            return chain(task.s(1), last.s()).apply_async()
        case _:
            return chord([task.s(1)], last.s()).apply_async()


@pytest.mark.parametrize("how", ["link", "chain", "chord"])
def test_first_run_passes_on_a_result_that_is_not_stored(bench, unstored, last, seen, how):
    """A secret or a large result would stop every chain it stands in."""
    canvas_of(how, unstored, last)

    bench.drain()

    assert [[unstored.value] if how == "chord" else unstored.value] == seen


@pytest.mark.parametrize("how", ["link", "chain", "chord"])
def test_duplicate_whose_result_is_not_stored_becomes_a_letter_where_something_waits_for_it(
    bench, unstored, last, seen, how
):
    """The next task would be given None, or a marker, and take it for the result."""
    unstored.delay(1)
    bench.drain()

    canvas_of(how, unstored, last)
    duplicate = bench.deliver()
    bench.drain()

    assert [] == seen
    (letter,) = bench.all_letters()
    assert (f"unstored-{duplicate.task_id}", FailureKind.DATA) == (letter.id, letter.kind)
    assert ("FAILURE", DeadLettered, letter.id) == (
        duplicate.state,
        type(duplicate.result),
        duplicate.result.letter_id,
    )
    assert State.DONE is bench.record(unstored, 1).state


def test_duplicate_whose_result_is_not_stored_gets_a_marker_where_nothing_waits_for_it(bench, unstored):
    """A caller who only wants the work done would be told that it failed."""
    unstored.delay(1)
    unstored.delay(1)

    _first, duplicate = bench.drain()

    assert ("SUCCESS", {"sg_result": unstored.form, "key": "op:1"}) == (duplicate.state, duplicate.result)
    assert not bench.all_letters()


def test_kill_before_an_unstored_result_is_sent_becomes_a_letter(bench, unstored, last, seen):
    """The value died with its process: to send None in its place would be a lie."""
    chain(unstored.s(1), last.s()).apply_async()

    with at_success(die):
        *_lost, second = bench.drain()

    (letter,) = bench.all_letters()
    assert ([], "FAILURE", letter.id) == (seen, second.state, second.result.letter_id)


class Receipt:
    """A result that JSON cannot carry, and pickle can."""

    def __eq__(self, other):
        return isinstance(other, Receipt)

    __hash__ = object.__hash__


def test_result_that_only_the_tasks_own_serializer_carries_is_passed_on_by_the_first_run(bench, last):
    """A team that uses pickle would lose its chains by adding a key."""
    task = returning(bench, Receipt())
    task.ignore_result = True
    task.apply_async((1,), link=last.s().set(serializer="pickle"))

    bench.deliver()

    message = bench._queue.get(accept=["pickle"])
    message.ack()
    assert (Receipt(),) == tuple(message.payload[0])
    assert ResultForm.NOT_ENCODABLE is bench.record(task, 1).result_form


def test_result_that_cannot_be_sent_on_becomes_a_letter_and_the_work_stays_done(bench, last, seen):
    """The failure of the send would read as a failure of the payment, and somebody would make it again."""
    task = returning(bench, Receipt())
    task.apply_async((1,), link=last.s())

    (only,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (f"continuation-{only.task_id}", False) == (letter.id, letter.effect_possible)
    assert ("acknowledged", "FAILURE", letter.id) == (only.fate, only.state, only.result.letter_id)
    assert State.DONE is bench.record(task, 1).state
    assert [] == seen


def test_message_whose_continuation_letter_cannot_be_written_is_kept(bench, last):
    """Acknowledged, neither the continuation nor its letter would exist."""
    returning(bench, Receipt()).apply_async((1,), link=last.s())

    with at_success(lambda: bench.letters.pull(60)):
        delivered = bench.deliver()

    assert ("kept", "PENDING") == (delivered.fate, delivered.state)


def test_none_is_a_result_like_any_other(bench, last, seen):
    """A body that returns nothing would end its chain at the first duplicate."""
    task = returning(bench, None)
    for _ in range(2):
        chain(task.s(1), last.s()).apply_async()

    bench.drain()

    assert [None, None] == seen


def test_chord_of_tasks_whose_results_are_ignored_has_them_where_its_publisher_wants_them(bench, last, seen):
    """A back end that reads what all members have stored would wait for the last one's in vain, and fail the chord."""
    if not hasattr(celery.app.task, "get_actual_ignore_result"):
        pytest.skip("from celery 5.7 on the publisher decides")
    task = returning(bench, "receipt")
    task.ignore_result = True
    chord([task.s(number).set(ignore_result=False) for number in (1, 2)])(last.s())

    bench.drain()

    assert [["receipt", "receipt"]] == seen
