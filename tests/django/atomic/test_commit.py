"""
A connection that breaks under an atomic body: the record knows what was committed, and the next task is not harmed.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connections, transaction

from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind, Outcome
from tests.django.atomic.conftest import AtomicBench, create_effects
from tests.support import databases, postgres
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

LEASE_SECONDS = 1.5
PATIENCE_SECONDS = 20
SHORT = {"safeguards_lease_seconds": LEASE_SECONDS, "safeguards_store_timeout_seconds": 0.4}


@pytest.fixture
def bench(postgres_url, request):
    """A bench on PostgreSQL whose `line` to it can be cut."""
    options = getattr(request, "param", {})
    with postgres.fresh_database(postgres_url) as url, Cutter(postgres_url) as line:
        given = {**databases.postgres(url), "PORT": str(line.port)}
        given["CONN_MAX_AGE"] = None
        given["OPTIONS"] |= options
        with databases.added("line", given) as alias:
            databases.migrate(alias)
            create_effects(alias)
            bench = AtomicBench(alias, lease_seconds=LEASE_SECONDS, **SHORT)
            bench.line, bench.url = line, url
            yield bench
            bench.close()


def effect_once(bench, spoil):
    """Register a task that has its effect and lets `spoil` happen at its first start; returns it and its starts."""
    starts = []

    def body(self, number):
        starts.append(number)
        bench.has_effect(number)
        if len(starts) == 1:
            spoil()
        return len(starts)

    return bench.atomic(body), starts


def test_commit_whose_answer_is_lost_has_happened(bench):
    """The attempt would count as failed, and the work be done again."""
    task, starts = effect_once(bench, lambda: bench.line.lose_next_answer(b"COMMIT"))
    task.delay(7)

    delivered = bench.deliver()

    assert ("acknowledged", "SUCCESS", 1) == (delivered.fate, delivered.state, delivered.result)
    assert ([7], 1, 1) == (bench.effects(), len(starts), bench.line.lost_answers)
    assert State.DONE == bench.record(task, 7).state


def test_commit_that_never_arrives_has_not_happened(bench, monkeypatch):
    """It would be acknowledged as done, and nothing would be."""

    def cut_before_the_commit():
        wrapper = connections[bench.alias]

        def commit():
            del wrapper.commit
            bench.line.cut()
            wrapper.commit()

        wrapper.commit = commit

    task, starts = effect_once(bench, cut_before_the_commit)
    task.delay(7)

    assert "RETRY" == bench.deliver().state
    assert (State.RETRY_DUE, []) == (bench.record(task, 7).state, bench.effects())

    bench.drain()

    assert ([7], 2) == (bench.effects(), len(starts))


def test_commit_that_nobody_can_tell_of_is_not_acknowledged(bench):
    """Whatever was said of it would be a guess."""

    def lose_it_all():
        bench.line.lose_next_answer(b"COMMIT")
        wrapper = connections[bench.alias]
        commit = wrapper.commit

        def commit_and_be_gone():
            del wrapper.commit
            try:
                commit()
            finally:
                bench.line.refuse()

        wrapper.commit = commit_and_be_gone

    task, starts = effect_once(bench, lose_it_all)
    first = task.delay(7)

    assert "kept" == bench.deliver().fate
    bench.line.allow()
    task.apply_async((7,), task_id=first.id)
    again = bench.deliver()

    assert ("SUCCESS", [7], 1) == (again.state, bench.effects(), len(starts))
    assert [Outcome.FENCED, Outcome.DEDUPLICATED] == bench.outcomes


def test_failure_that_cannot_be_recorded_frees_its_child(bench):
    """It would wait for the database for ever, and no warm shutdown would end."""

    def fail_without_a_database():
        bench.line.refuse()
        bench.line.cut()
        raise ConnectionError("down")

    task, _ = effect_once(bench, fail_without_a_database)
    task.delay(7)
    back = threading.Timer(PATIENCE_SECONDS, bench.line.allow)
    back.start()

    assert "kept" == bench.deliver().fate

    back.cancel()
    bench.line.allow()
    assert (None, []) == (bench.record(task, 7), bench.effects())


@pytest.mark.parametrize("goes_on", [True, False], ids=["and then asks", "and then ends"])
def test_connection_that_is_cut_in_the_body_costs_an_attempt(bench, goes_on):
    """The next task of the same child would find a broken connection."""

    def cut():
        bench.line.cut()
        if goes_on:
            bench.has_effect(8)

    task, starts = effect_once(bench, cut)
    task.delay(7)
    assert "RETRY" == bench.deliver().state

    bench.drain()

    assert ([7], 2) == (bench.effects(), len(starts))
    record = bench.record(task, 7)
    assert (State.DONE, 2, 0) == (record.state, record.attempt, record.lost_starts)


def test_backend_that_is_terminated_in_the_body_costs_an_attempt(bench):
    """An operator ends a session that holds a lock: the work must come again."""

    def terminate():
        with connections[bench.alias].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        with psycopg.connect(bench.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [pid])

    task, starts = effect_once(bench, terminate)
    task.delay(7)
    bench.drain()

    assert ([7], 2) == (bench.effects(), len(starts))


def test_connection_that_was_cut_between_two_tasks_is_opened_again(bench):
    """Each child would lose one attempt to every restart of the database."""
    task, starts = effect_once(bench, lambda: None)
    task.delay(7)
    bench.deliver()
    bench.line.cut()
    task.delay(8)

    assert "SUCCESS" == bench.deliver().state
    assert ([7, 8], 2) == (bench.effects(), len(starts))


def test_body_that_closes_its_connection_has_failed(bench):
    """Django leaves such a block without a word: nothing is committed, and the record would say done."""
    task, starts = effect_once(bench, connections[bench.alias].close)
    task.delay(7)

    assert "RETRY" == bench.deliver().state
    bench.drain()

    assert ([7], 2) == (bench.effects(), len(starts))


def test_constraint_that_is_checked_at_the_commit_fails_the_attempt(bench):
    """It comes after the body has returned: the record would say done."""
    with connections[bench.alias].cursor() as cursor:
        cursor.execute("CREATE TABLE once (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        cursor.execute("INSERT INTO once VALUES (7)")

    def body(self, number):
        bench.has_effect(number)
        with connections[bench.alias].cursor() as cursor:
            cursor.execute("INSERT INTO once VALUES (%s)", [number])

    task = bench.atomic(body, retry=None)
    task.delay(7)

    assert ("FAILURE", []) == (bench.deliver().state, bench.effects())
    assert State.DEAD == bench.record(task, 7).state
    assert FailureKind.DATA == bench.all_letters()[0].kind


def test_hook_that_fails_after_the_commit_does_not_undo_it(bench, caplog):
    """The work is done: as a failure it would be replayed."""

    def register():
        def fail():
            raise RuntimeError("the hook")

        transaction.on_commit(fail, using=bench.alias)

    task, _ = effect_once(bench, register)
    task.delay(7)
    with caplog.at_level(logging.ERROR):
        delivered = bench.deliver()

    assert ("SUCCESS", [7]) == (delivered.state, bench.effects())
    assert "is committed all the same" in caplog.text


@pytest.mark.parametrize("bench", [{"options": "-c idle_in_transaction_session_timeout=300"}], indirect=True)
def test_body_that_was_frozen_past_its_transaction_changes_nothing(bench):
    """The server has given its lock away: another delivery has done the work by the time it wakes."""
    starts, ids = [], []

    def body(self, number):
        starts.append(number)
        bench.has_effect(number)
        if len(starts) == 1:
            with connections[bench.alias].cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                (pid,) = cursor.fetchone()
            with psycopg.connect(bench.url, autocommit=True) as other:
                find = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
                wait_until(lambda: not other.execute(find, [pid]).fetchone(), PATIENCE_SECONDS, "the session is over")
            ids.append(in_another_thread(bench.deliver).task_id)
        return len(starts)

    task = bench.atomic(body)
    task.delay(7)
    task.delay(7)

    late = bench.deliver()
    bench.drain()

    assert ([7], 2) == (bench.effects(), len(starts))
    assert "SUCCESS" == bench.app.AsyncResult(late.task_id).state
    assert bench.app.AsyncResult(late.task_id).result == bench.app.AsyncResult(ids[0]).result == 2


def in_another_thread(act):
    def act_and_close():
        try:
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act_and_close).result(PATIENCE_SECONDS)
