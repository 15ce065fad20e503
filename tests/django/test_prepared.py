"""
Statements that come again are planned once for a connection, where the server itself is at its other end.
"""

import contextlib
import uuid

import psycopg
import pytest
from django.db import connections

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger.record import State
from tests.conformance import stores
from tests.conformance.admission.calls import DONE, KEY, RETRY, admit, claimed
from tests.conformance.deadletter_contract import letter
from tests.support import databases, postgres
from tests.support.sockets import Cutter

pytestmark = pytest.mark.postgres
GREETING = b"K\x00\x00\x00\x0c"
"""How PostgreSQL begins to tell a client which process serves it, and by which secret to cancel."""
OFTEN = 24


class Pooler(Cutter):
    """A way to the server whose greeting names no process of it, as that of a pooler that lends out sessions."""

    def _read(self, connection, flow):
        is_over = super()._read(connection, flow)
        at = flow.buffer.find(GREETING)
        if flow is connection.answers and at >= 0:
            begins = at + len(GREETING)
            flow.buffer[begins : begins + 4] = (2**31 - 1).to_bytes(4, "big")
        return is_over


@contextlib.contextmanager
def on(url, **options):
    """Yield a store on a database of its own server or of a way there."""
    given = databases.postgres(url)
    given["OPTIONS"] |= options
    alias = f"t{uuid.uuid4().hex[:12]}"
    with databases.added(alias, given), stores.orm_under_test(alias) as under_test:
        yield under_test


def work_on(under_test, key, outcome):
    under_test.store.settle(key, claimed(under_test.store, key=key), State.IN_PROGRESS, outcome)


def work_often(under_test):
    for number in range(OFTEN):
        key = RecordKey("shop.charge", f"payment:{number}")
        work_on(under_test, key, DONE if number % 2 else RETRY)
        assert not admit(under_test.store, "B", key).claimed


def prepared(under_test):
    """Return which of the store's statements the server keeps the plans of, by their first words."""

    def act(cursor):
        cursor.execute("SELECT statement FROM pg_prepared_statements WHERE statement LIKE %s", ["%safeguards%"])
        return {statement.split()[0] for (statement,) in cursor.fetchall()}

    return under_test.house.connection.run(act)


def test_statements_that_come_again_are_planned_once(postgres_alias, postgres_url):
    """A claim would cost its planning each time, which is more than the claim."""
    with stores.orm_under_test(postgres_alias) as under_test:
        work_often(under_test)

        assert {"INSERT", "UPDATE", "SELECT"} == prepared(under_test)


@pytest.mark.parametrize("way", [Cutter, Pooler])
def test_nothing_is_prepared_through_a_pooler_that_lends_out_sessions(postgres_url, way):
    """A statement would meet the plan that another process has left under the same name, and do something else."""
    with postgres.fresh_database(postgres_url) as url, way(postgres_url) as line:
        with databases.added("direct", databases.postgres(url)) as direct:
            databases.migrate(direct)
        with on(psycopg.conninfo.make_conninfo(url, port=line.port)) as under_test:
            work_often(under_test)

            assert (way is Pooler) == (prepared(under_test) == set())


def test_nothing_is_prepared_where_the_project_says_so(postgres_alias):
    """A pooler that nobody can tell from a server could not be used at all."""
    given = connections[postgres_alias].settings_dict
    told = {**given, "OPTIONS": {"prepare_threshold": None}}
    with databases.added("told", told), stores.orm_under_test("told") as under_test:
        work_often(under_test)

        assert set() == prepared(under_test)


def test_a_migration_under_a_kept_plan_costs_no_call(postgres_url):
    """Each child would fail once after a migration, with an error that reads as the message's own."""
    with postgres.fresh_database(postgres_url) as url, databases.added("migrated", databases.postgres(url)) as alias:
        databases.migrate(alias)
        with stores.orm_under_test(alias) as under_test:
            work_often(under_test)
            table = under_test.house.tables.records.name
            with psycopg.connect(url, autocommit=True) as other:
                other.execute(f"ALTER TABLE {table} ALTER COLUMN owner TYPE varchar(999)")

            key = RecordKey("shop.charge", "payment:0")
            assert State.RETRY_DUE is under_test.store.read(key).state
            work_on(under_test, RecordKey("shop.charge", "new"), DONE)


def test_letters_that_were_read_are_not_kept_in_memory(on_postgres):
    """The cursor that is kept between statements would hold the last page, of letters of megabytes, for good."""
    on_postgres.letters.bury(letter())
    on_postgres.store.read(KEY)
    kept = on_postgres.house.connection._opened()._kept

    for read in (lambda: on_postgres.letters.get("l-1"), lambda: on_postgres.letters.list().letters):
        assert read()
        assert "letter" not in [each.name for each in kept.description]
