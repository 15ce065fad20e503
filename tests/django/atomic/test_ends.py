"""
How an atomic body ends: effect, record and publishes are there together, or none of them is.
"""

import pytest
from celery.exceptions import Ignore, Reject
from django.db import DatabaseError, connections, transaction

from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline import ensuring
from django_celery_safeguards.after_task import refuse_what_is_left
from tests.support.bench import Killed


class Refused(Exception):
    """What a body raises that is nobody's fault but its own."""


def test_effect_and_record_are_committed_together(bench):
    """Killed between the two, the effect would happen twice, or the record would lie."""

    def body(self, number):
        bench.has_effect(number)
        assert [] == committed_elsewhere(bench)
        return number * 2

    task = bench.atomic(body)
    task.delay(7)

    delivered = bench.deliver()

    assert ("acknowledged", "SUCCESS", 14) == (delivered.fate, delivered.state, delivered.result)
    assert [7] == bench.effects()
    record = bench.record(task, 7)
    assert (State.DONE, 1, 0) == (record.state, record.attempt, record.lost_starts)


def committed_elsewhere(bench):
    """Return what another connection sees of the effects."""
    other = connections.create_connection(bench.alias)
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT number FROM effects WHERE namespace = %s", [bench.namespace])
            return cursor.fetchall()
    finally:
        other.close()


def test_duplicate_gets_the_stored_result(bench):
    """The body would run twice."""

    def body(self, number):
        bench.has_effect(number)
        return {"paid": number}

    task = bench.atomic(body)
    task.delay(7)
    task.delay(7)

    first, second = bench.drain()

    assert [{"paid": 7}] * 2 == [first.result, second.result]
    assert [7] == bench.effects()
    assert [Outcome.SUCCEEDED, Outcome.DEDUPLICATED] == bench.outcomes


def test_other_arguments_under_the_same_key_are_a_conflict(bench):
    """The second payload would be taken for done."""

    def body(self, number, cents):
        bench.has_effect(number)

    task = bench.atomic(body)
    task.delay(7, 100)
    task.delay(7, 200)

    _, second = bench.drain()

    assert ("FAILURE", [7]) == (second.state, bench.effects())
    assert [FailureKind.CONFLICT] == [letter.kind for letter in bench.all_letters()]


def test_failed_attempt_leaves_its_record_and_no_effect(bench):
    """What the safeguards know would be rolled back with the body: attempts without end."""
    starts = []

    def body(self, number):
        starts.append(number)
        bench.has_effect(number)
        if len(starts) < 3:
            raise ConnectionError("the other side is down")

    task = bench.atomic(body)
    task.delay(7)

    first = bench.deliver()
    record = bench.record(task, 7)
    assert ("acknowledged", "RETRY", []) == (first.fate, first.state, bench.effects())
    assert (State.RETRY_DUE, 1, 0, False) == (record.state, record.attempt, record.lost_starts, record.effect_possible)

    bench.drain()

    assert ([7], 3) == (bench.effects(), bench.record(task, 7).attempt)


def test_work_that_fails_for_good_is_a_letter_without_an_effect(bench):
    """A person could not tell whether it may be replayed."""

    def body(self, number):
        bench.has_effect(number)
        raise Refused("no such order")

    task = bench.atomic(body, retry=None)
    task.delay(7)

    delivered = bench.deliver()

    (letter,) = bench.all_letters()
    assert ("acknowledged", "FAILURE", []) == (delivered.fate, delivered.state, bench.effects())
    assert (FailureKind.BUG, False, 1) == (letter.kind, letter.effect_possible, letter.attempts)
    assert State.DEAD == bench.record(task, 7).state


def test_result_that_its_postcondition_refuses_is_rolled_back(bench):
    """What was found to be wrong would be committed."""

    def body(self, number):
        bench.has_effect(number)
        return 0

    task = bench.atomic(body, ensure=lambda result: result > 0, retry=None)
    task.delay(7)
    bench.drain()

    assert ([], [FailureKind.INVARIANT]) == (bench.effects(), [letter.kind for letter in bench.all_letters()])


def test_error_that_the_body_has_swallowed_rolls_it_back_for_all_to_see(bench):
    """Django leaves such a block by a silent rollback: the record would say done, and nothing would be."""

    def body(self, number):
        bench.has_effect(number)
        try:
            with connections[bench.alias].cursor() as cursor, transaction.mark_for_rollback_on_error(using=bench.alias):
                cursor.execute("SELECT no_such_column FROM effects")
        except DatabaseError:
            return "as if nothing had happened"

    task = bench.atomic(body, retry=None)
    task.delay(7)
    delivered = bench.deliver()

    assert ("FAILURE", []) == (delivered.state, bench.effects())
    assert State.DEAD == bench.record(task, 7).state


def test_body_that_marks_its_transaction_for_rollback_has_failed(bench):
    """The same, asked for by the body."""

    def body(self, number):
        bench.has_effect(number)
        transaction.set_rollback(True, using=bench.alias)

    task = bench.atomic(body, retry=None)
    task.delay(7)

    assert ("FAILURE", []) == (bench.deliver().state, bench.effects())


@pytest.mark.parametrize("checks", [[], [refuse_what_is_left]], ids=["by itself", "as a worker"])
def test_body_that_leaves_a_block_open_has_failed(bench, monkeypatch, checks):
    """Django would end the inner block in place of ours: acknowledged as done, and rolled back at some time after."""
    monkeypatch.setattr(ensuring, "_CHECKS", checks)

    def body(self, number):
        bench.has_effect(number)
        if number == 7:
            transaction.atomic(using=bench.alias).__enter__()
            transaction.atomic(using=bench.alias).__enter__()

    task = bench.atomic(body)
    task.delay(7)
    task.delay(8)

    first, second = bench.drain()

    assert ("FAILURE", "SUCCESS", [8]) == (first.state, second.state, bench.effects())
    assert [FailureKind.BUG] == [letter.kind for letter in bench.all_letters()]
    assert not connections[bench.alias].in_atomic_block


def test_ignore_is_an_end_and_commits(bench):
    """`replace` hands the work on, and ends so: what it published would be lost."""

    def body(self, number):
        bench.has_effect(number)
        raise Ignore("nothing to say")

    task = bench.atomic(body)
    task.delay(7)

    assert ("acknowledged", [7]) == (bench.deliver().fate, bench.effects())
    assert State.DONE == bench.record(task, 7).state


def test_rejected_message_is_put_back_without_an_effect(bench):
    """It would be done, and come again."""
    rejects = [True]

    def body(self, number):
        bench.has_effect(number)
        if rejects:
            rejects.pop()
            raise Reject("later", requeue=True)

    task = bench.atomic(body)
    task.delay(7)

    assert ("put back", []) == (bench.deliver().fate, bench.effects())
    bench.drain()
    assert [7] == bench.effects()


@pytest.mark.parametrize("worker_dies", [False, True], ids=["child dies", "worker dies"])
def test_killed_body_leaves_no_trace_and_runs_again(bench, worker_dies):
    """The redelivery would find half of its work."""
    starts = []

    def body(self, number):
        starts.append(number)
        bench.has_effect(number)
        if len(starts) == 1:
            raise Killed

    task = bench.atomic(body)
    task.delay(7)
    bench.deliver(worker_dies=worker_dies)
    assert ([], None) == (bench.effects(), bench.record(task, 7))

    bench.drain()

    assert ([7], State.DONE) == (bench.effects(), bench.record(task, 7).state)


def test_body_that_kills_its_process_each_time_is_poison(bench):
    """It would go round for ever."""
    starts = []

    def body(self, number):
        starts.append(number)
        bench.has_effect(number)
        raise Killed

    task = bench.atomic(body, max_lost_starts=3)
    task.delay(7)

    bench.drain()

    (letter,) = bench.all_letters()
    assert (3, FailureKind.WORKER_LOST, False) == (len(starts), letter.kind, letter.effect_possible)
    assert 3 == letter.lost_starts
    assert (State.DEAD, []) == (bench.record(task, 7).state, bench.effects())


def test_first_delivery_costs_two_statements_and_one_transaction(bench, on_either):
    """Each further one would be paid by every task."""
    told = []

    def body(self, number):
        told.append("body")

    def note(execute, sql, *args):
        told.append(sql)
        return execute(sql, *args)

    task = bench.atomic(body)
    task.delay(7)
    with connections[bench.alias].execute_wrapper(note):
        bench.deliver()

    before = told.index("body")
    assert on_either == (before, len(told) - before - 1)


@pytest.fixture
def on_either(bench):
    """Statements before and after the body: SQLite begins by one, and locks by another."""
    return (3, 1) if connections[bench.alias].vendor == "sqlite" else (1, 1)
