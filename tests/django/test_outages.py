"""
A database that ends a connection, goes away, is slow or is not migrated: `StoreUnavailable`, and no restart.
"""

import contextlib
import os
import signal
import threading

import psycopg
import pytest
from django.db import ProgrammingError, connections, transaction

from celery_safeguards.errors import LockLost, NotOurs, StoreUnavailable
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.locks.store import HeldLock, LockAsk
from tests.conformance import stores
from tests.conformance.admission.calls import DONE, KEY, admit, claimed, mark_lost, renewal, start
from tests.conformance.deadletter_contract import letter
from tests.django.test_processes import backend_pid
from tests.support import databases
from tests.support.sockets import HOST, free_port
from tests.support.waiting import wait_until

ASK = LockAsk(name="order:7", owner="A", lease_seconds=30.0)
HELD = Record(state=State.IN_PROGRESS, owner="A", fence=1)
CALLS = {
    "view": lambda it: it.store.view(),
    "declare_new": lambda it: it.store.declare_new(),
    "read": lambda it: it.store.read(KEY),
    "admit": lambda it: admit(it.store),
    "admit with a lock": lambda it: it.store.admit(KEY, "A", start(), unproven=True, epoch=None, lock=ASK),
    "take": lambda it: it.store.take(KEY, 1, "A", start()),
    "settle": lambda it: it.store.settle(KEY, HELD, State.IN_PROGRESS, DONE),
    "renew": lambda it: renewal(it.store, "A"),
    "restore": lambda it: it.store.restore(KEY, HELD, "e"),
    "mark_lost": lambda it: mark_lost(it.store, "A"),
    "purge": lambda it: it.store.purge(),
    "acquire": lambda it: it.store.locks.acquire(ASK),
    "acquire to wait": lambda it: it.store.locks.acquire(ASK, wait=True),
    "wait": lambda it: it.store.locks.wait(ASK, 0.01),
    "leave": lambda it: it.store.locks.leave(ASK),
    "release": lambda it: it.store.locks.release(HeldLock(ask=ASK, fence=1)),
    "renew locks": lambda it: it.store.locks.renew([HeldLock(ask=ASK, fence=1)]),
    "read lock": lambda it: it.store.locks.read("order:7"),
    "waiting": lambda it: it.store.locks.waiting("order:7"),
    "names": lambda it: list(it.store.locks.names()),
    "begin": lambda it: it.starts.begin("t-1", 3),
    "end": lambda it: it.starts.end("t-1"),
    "count": lambda it: it.starts.read("t-1"),
    "bury": lambda it: it.letters.bury(letter()),
    "get": lambda it: it.letters.get("l-1"),
    "list": lambda it: it.letters.list(),
    "over": lambda it: it.letters.over(0.0),
    "remove": lambda it: it.letters.remove(["l-1"], 0.0),
    "remove group": lambda it: it.letters.remove_group("g", 0.0),
    "note": lambda it: it.letters.add_note("l-1", "note", None),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def terminate(url, pid):
    """End a connection as a server's restart or an administrator does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        wait_until(lambda: not _count(connection, "pid = %s", pid), 10, "the connection has ended")


def _count(connection, where, *values):
    return connection.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {where}", values).fetchone()[0]


@each_call
@pytest.mark.postgres
def test_the_call_after_a_killed_connection_works(on_postgres, postgres_url, call):
    """Each child would fail once, and its message be put off, after every restart of the database."""
    on_postgres.letters.bury(letter())
    claimed(on_postgres.store)
    terminate(postgres_url, backend_pid(on_postgres))

    with contextlib.suppress(NotOurs, LockLost):
        call(on_postgres)

    assert State.IN_PROGRESS is on_postgres.store.read(KEY).state


class Blocked:
    """A call in a thread of its own that waits for a row which the user holds, and what came of it."""

    def __init__(self, under_test, url, call):
        self._url = url
        self._thread = threading.Thread(target=self._run, args=(under_test, call))
        self.outcome = None
        self.sent = []
        with transaction.atomic(using=under_test.alias):
            _lock_rows(under_test)
            self._thread.start()
            self.when_blocked(under_test)
        self._thread.join(30)

    def when_blocked(self, under_test):
        """Let it wait, until it gives up."""
        self._thread.join(5)

    def kill(self):
        """End the connection that waits, and return once another one does or the call is over."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            waits = "wait_event_type = 'Lock' AND query LIKE '%%django_celery_safeguards%%'"
            wait_until(lambda: _count(connection, waits), 10, "the call waits for the row")
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {waits}", [])

    def _run(self, under_test, call):
        try:
            with under_test.house.connection.wrapper().execute_wrapper(self._note):
                self.outcome = call(under_test)
        except StoreUnavailable as error:
            self.outcome = error

    def _note(self, execute, sql, *given):
        self.sent.append(sql)
        return execute(sql, *given)


class KilledOnce(Blocked):
    def when_blocked(self, under_test):
        self.kill()


class KilledTwice(Blocked):
    def when_blocked(self, under_test):
        self.kill()
        self.kill()
        self._thread.join(5)


def _lock_rows(under_test):
    with connections[under_test.alias].cursor() as cursor:
        table = under_test.house.tables.records.name
        cursor.execute(f"SELECT 1 FROM {table} WHERE namespace = %s FOR UPDATE", [under_test.namespace])


def settle(record):
    return lambda under_test: under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE)


@pytest.mark.postgres
def test_a_call_whose_connection_is_killed_in_its_midst_is_made_once_more(on_postgres, postgres_url):
    """The outcome of a body would wait for the pipeline's next try, although the database is there."""
    blocked = KilledOnce(on_postgres, postgres_url, settle(claimed(on_postgres.store)))

    assert State.DONE is blocked.outcome.state is on_postgres.store.read(KEY).state


@pytest.mark.postgres
def test_a_call_that_is_killed_again_is_store_unavailable(on_postgres, postgres_url):
    """Any other error would be taken for the message's own, and the message would be acknowledged."""
    blocked = KilledTwice(on_postgres, postgres_url, settle(claimed(on_postgres.store)))

    assert isinstance(blocked.outcome, StoreUnavailable)
    assert State.IN_PROGRESS is on_postgres.store.read(KEY).state


@pytest.mark.postgres
def test_a_statement_that_takes_too_long_is_store_unavailable_and_not_tried_again(postgres_alias, postgres_url):
    """A child would hang behind a row that a stranger holds, and twice as long as it may."""
    with stores.orm_under_test(postgres_alias, timeout_seconds=0.5) as under_test:
        blocked = Blocked(under_test, postgres_url, settle(claimed(under_test.store)))

        assert isinstance(blocked.outcome, StoreUnavailable)
        assert ["UPDATE"] == [sql.split()[0] for sql in blocked.sent]
        assert State.IN_PROGRESS is under_test.store.read(KEY).state


@pytest.mark.postgres
def test_a_server_that_is_frozen_is_store_unavailable(on_postgres):
    """The main process could not end the children whose claims it cannot renew, and would hang with them."""
    with stores.orm_under_test(on_postgres.alias, timeout_seconds=0.5) as under_test:
        record = claimed(under_test.store)
        frozen = backend_pid(under_test)
        os.kill(frozen, signal.SIGSTOP)
        # Whoever waits for it without an end must fail this test, and not hang it.
        thaw = threading.Timer(10, os.kill, (frozen, signal.SIGCONT))
        thaw.start()
        try:
            with pytest.raises(StoreUnavailable, match="no answer"):
                under_test.store.read(KEY)
            assert thaw.is_alive()

            assert record == under_test.store.read(KEY)
        finally:
            thaw.cancel()
            os.kill(frozen, signal.SIGCONT)


@pytest.mark.postgres
def test_a_database_that_is_back_answers_the_same_store(fresh_postgres):
    """Every worker would have to be restarted with its database."""
    alias, server = fresh_postgres
    with stores.orm_under_test(alias) as under_test:
        record = claimed(under_test.store)
        server.stop()
        with pytest.raises(StoreUnavailable):
            under_test.store.read(KEY)

        server.start()

        assert record == under_test.store.read(KEY)
        under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE)


@each_call
def test_an_absent_database_is_store_unavailable(call):
    """Any other error would be taken for the message's own, and the message would be acknowledged."""
    absent = databases.postgres(f"postgresql://nobody@{HOST}:{free_port()}/none")
    with databases.added("absent", absent), pytest.raises(StoreUnavailable, match="database 'absent'"):
        call(stores.OrmUnderTest("absent", "ns"))


@each_call
def test_a_database_that_is_not_migrated_says_so(call, tmp_path):
    """Whoever forgot it would read of a table that does not exist."""
    with databases.added("bare", databases.sqlite(tmp_path / "bare.sqlite3")):
        under_test = stores.OrmUnderTest("bare", "ns")

        with pytest.raises(StoreUnavailable, match=r"manage\.py migrate"):
            call(under_test)

        under_test.house.connection.close()


def test_a_missing_table_is_told_without_the_statement(sqlite_alias):
    """PostgreSQL quotes it on lines of its own, which a terminal gets as escapes before the advice."""
    said = 'relation "letters" does not exist\nLINE 1: SELECT 1 FROM "letters"\n                      ^'
    with stores.orm_under_test(sqlite_alias) as under_test:
        error = under_test.house.connection._unavailable(ProgrammingError(said))

    assert 'letters" does not exist; if its tables are missing, run `manage.py migrate' in str(error)


def test_a_file_that_another_writer_holds_is_store_unavailable(sqlite_alias):
    """A child would wait for a development server's long transaction without an end."""
    with stores.orm_under_test(sqlite_alias, timeout_seconds=0.1) as under_test:
        record = claimed(under_test.store)
        with connections[sqlite_alias].cursor() as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked"):
                under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE)
            cursor.execute("ROLLBACK")

        under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE)

        assert State.DONE is under_test.store.read(KEY).state
    connections[sqlite_alias].close()
