"""
The stores of the Django app beside a user's own connections to the same database.
"""

import os
import subprocess
import sys
import uuid

import pytest
from django.db import connections

from tests.conformance import stores
from tests.support import databases, postgres

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=DATABASES)
def alias(request):
    """Name of a migrated database; what a test's own connection is left in is closed at the end."""
    name = request.getfixturevalue(f"{request.param}_alias")
    yield name
    connections[name].close()


@pytest.fixture
def under_test(alias):
    with stores.orm_under_test(alias) as under_test:
        yield under_test


@pytest.fixture
def on_postgres(postgres_alias):
    with stores.orm_under_test(postgres_alias) as under_test:
        yield under_test
    connections[postgres_alias].close()


@pytest.fixture
def fresh_postgres():
    """A migrated database on a server for this test alone: stop it, kill it, start it again."""
    alias = f"t{uuid.uuid4().hex[:12]}"
    with postgres.postgres_server() as server, databases.added(alias, databases.postgres(server.url)):
        databases.migrate(alias)
        connections[alias].close()
        yield alias, server


@pytest.fixture
def statements(under_test):
    """What the safeguards' connection of this thread is told, in order."""
    with counted(under_test) as told:
        yield told


@pytest.fixture
def counted_on_postgres(on_postgres):
    with counted(on_postgres) as told:
        yield told


def counted(under_test):
    return _Told(under_test.house.connection.wrapper())


class _Told:
    """The statements that a connection executes; a transaction's beginning and end are told apart."""

    def __init__(self, wrapper):
        self._wrapper = wrapper
        self._hook = wrapper.execute_wrapper(self._note)
        self.all = []

    def __enter__(self):
        self._hook.__enter__()
        return self

    def __exit__(self, *error):
        self._hook.__exit__(*error)

    def clear(self):
        self.all.clear()

    @property
    def work(self):
        return [each for each in self.all if not each.startswith(("BEGIN", "COMMIT", "ROLLBACK"))]

    def _note(self, execute, sql, params, many, context):
        self.all.append(sql)
        return execute(sql, params, many, context)


@pytest.fixture(scope="module", params=DATABASES)
def database(request, tmp_path_factory):
    """Django's settings of a migrated database."""
    if request.param == "sqlite":
        given = databases.sqlite(tmp_path_factory.mktemp("database") / "shop.sqlite3")
        yield migrated(given)
        return
    with postgres.fresh_database(request.getfixturevalue("postgres_url")) as url:
        yield migrated(databases.postgres(url))


def migrated(given):
    with databases.added("being_migrated", given) as alias:
        databases.migrate(alias)
    return given


@pytest.fixture
def run_python():
    """Run code in a Python of its own, without a Django project, and return what it prints."""

    def run(code):
        env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    return run
