"""
Databases for tests, as a Django project has them: SQLite in a file, PostgreSQL embedded or given.

There is no settings module: the project is configured here, and each database is added under a name of its own.
"""

import contextlib

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from celery_safeguards.conf import offer_secret, offer_store
from celery_safeguards.diagnose import looks

APP = "django_celery_safeguards"


def set_up():
    """Configure the project, once in a process."""
    if not settings.configured:
        settings.configure(
            SECRET_KEY="tests",
            USE_TZ=True,
            INSTALLED_APPS=[APP],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        )
        django.setup()
        # Tests without a project run in this process, too.
        offer_store(None)
        offer_secret(None)
        looks._LOOKS.clear()


def add(alias, given):
    """Add a database to the project, without connecting to it."""
    set_up()
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: given})[alias]


def remove(alias):
    """Forget a database."""
    if hasattr(connections._connections, alias):
        connections[alias].close()
        del connections[alias]
    connections.settings.pop(alias, None)


@contextlib.contextmanager
def added(alias, given):
    """Have a database for the length of a `with`."""
    add(alias, given)
    try:
        yield alias
    finally:
        remove(alias)


@contextlib.contextmanager
def kept(alias):
    """Leave a name as it was before the `with`: to nobody, or to whoever had it."""
    before = connections.settings.get(alias) if settings.configured else None
    try:
        yield
    finally:
        remove(alias)
        if before is not None:
            connections.settings[alias] = before


def migrate(alias):
    """Create the tables."""
    call_command("migrate", database=alias, verbosity=0, interactive=False)


def sqlite(path):
    """Return the settings of a database in a file, for many connections that write."""
    init = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"init_command": init}}


def postgres(url):
    """Return the settings of a database at a `postgresql://user:password@host:port/name`."""
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(url)
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{name: str(parts.get(part, "")) for name, part in named.items()},
        "OPTIONS": {name: value for name, value in parts.items() if name not in named.values()},
    }
