"""
A body that hands its work on, by `replace`, or ends it, by `Ignore`: the canvas continues once, or not at all.
"""

from celery import chain, chord
from celery.exceptions import Ignore

from celery_safeguards.errors import StoreUnavailable
from tests.integration.continuing.between_steps import at_mark, returning
from tests.support.bench import Killed


def replacing(bench, with_signature):
    """Register a keyed task that replaces itself."""
    return bench.keyed(lambda self, number: self.replace(with_signature))


def test_task_that_replaces_a_keyed_one_continues_its_canvas_once(bench, last, seen):
    """The rest of the chain would be sent twice, or by the wrong one."""
    other = bench.keyed(lambda self, value, number: value + number)
    chain(replacing(bench, other.s(40, 2)).s(1), last.s()).apply_async()

    bench.drain()

    assert [42] == seen


def test_second_delivery_of_a_replaced_task_neither_replaces_nor_reports_again(bench, last, seen):
    """The result of the task that has replaced it would be overwritten by a marker."""
    other = bench.keyed(lambda self, value, number: value + number)
    task = replacing(bench, other.s(40, 2))
    sent = task.apply_async((1,), link=last.s())
    task.apply_async((1,), link=last.s(), task_id=sent.id)

    bench.drain()

    assert [42] == seen
    assert 42 == bench.app.AsyncResult(sent.id).result
    assert not bench.all_letters()


def test_late_second_delivery_of_a_replaced_task_leaves_the_result_alone(bench):
    """The caller would read a marker where the result was."""
    other = bench.keyed(lambda self, value, number: value + number)
    task = replacing(bench, other.s(40, 2))
    sent = task.apply_async((1,))
    bench.drain()

    task.apply_async((1,), task_id=sent.id)
    bench.drain()

    assert 42 == bench.app.AsyncResult(sent.id).result


def test_replacement_in_a_chord_reports_its_part_once(bench, last, seen):
    """The chord would wait for a part that nobody reports, or count one twice."""
    other = bench.keyed(lambda self, value, number: value + number)
    chord([replacing(bench, other.s(40, 2)).s(1), returning(bench, 1).s(2)], last.s()).apply_async()

    bench.drain()

    assert [[42, 1]] == seen


def test_kill_after_a_replacement_is_sent_and_before_it_is_recorded_runs_the_other_once(bench, last, seen):
    """The other task would have two effects."""
    runs = []
    other = bench.keyed(lambda self, value, number: runs.append(number) or value + number)

    def body(self, number):
        try:
            self.replace(other.s(40, 2))
        except Ignore:
            if self.safe.attempt == 1:
                raise Killed from None
            raise

    chain(bench.keyed(body).s(1), last.s()).apply_async()

    bench.drain()

    assert [2] == runs
    assert {42} == set(seen)


def test_ignore_ends_the_canvas_and_no_duplicate_revives_it(bench, last, seen):
    """A body that has said that nothing is to follow would be overruled by a redelivery."""

    def body(self, number):
        raise Ignore

    task = bench.keyed(body)
    sent = task.apply_async((1,), link=last.s())
    task.apply_async((1,), link=last.s(), task_id=sent.id)

    first, second = bench.drain()

    assert ("acknowledged", "acknowledged") == (first.fate, second.fate)
    assert [] == seen
    assert not bench.all_letters()


def test_ignore_whose_mark_cannot_be_written_is_acknowledged_all_the_same(bench, last, seen):
    """The redelivery would find a canvas without a result, and make a letter of work that has been handed on."""
    other = bench.keyed(lambda self, value, number: value + number)
    chain(replacing(bench, other.s(40, 2)).s(1), last.s()).apply_async()

    with at_mark(bench, StoreUnavailable("away")):
        first, *_others = bench.drain()

    assert ("acknowledged", [42]) == (first.fate, seen)
    assert not bench.all_letters()
