"""
From the URL in the settings to the stores; and the tables that go with them.
"""

import io

import pytest
from celery import Celery
from django.core.management import call_command

from celery_safeguards import Idempotent, Safeguards, SafeTask
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.conf import Settings
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.record import State
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.admission import OrmAdmissionStore
from django_celery_safeguards.stores import open_stores


def wiring_of(url, **settings):
    with Celery("opening", set_as_current=False) as app:
        app.conf.update(safeguards_store_url=url, **settings)
        return Wiring.of(app)


def test_a_url_names_a_database_of_the_project(alias):
    """Records would go elsewhere, or nowhere."""
    wiring = wiring_of(f"django://{alias}", safeguards_store_timeout_seconds=1.5)

    assert isinstance(wiring.admission, OrmAdmissionStore)
    assert (alias, 1.5) == (wiring.admission.house.connection.alias, wiring.admission.house.connection.timeout_seconds)


def test_a_url_without_a_name_is_the_default_database():
    """`django://` would be refused for want of a word that every project knows."""
    assert "default" == wiring_of("django://").admission.house.connection.alias


def test_a_database_that_the_project_does_not_have_is_refused_with_the_nearest():
    """A worker would start, and fail at its first task."""
    with pytest.raises(ConfigurationError, match="DATABASES has no 'defualt'; did you mean 'default'"):
        wiring_of("django://defualt")


def test_a_scheme_that_nobody_serves_is_refused_with_the_nearest():
    """A typing error would read as a server that is down."""
    with pytest.raises(ConfigurationError, match="django://; did you mean 'django'"):
        wiring_of("djanga://default")


def test_a_project_without_the_app_is_told_what_to_add(monkeypatch):
    """Its tables would be missing, which reads as a database that is away."""
    monkeypatch.setattr("django.apps.apps.is_installed", lambda _name: False)

    with pytest.raises(ConfigurationError, match="INSTALLED_APPS"):
        open_stores(Settings(store_url="django://default"))


def test_a_task_runs_once_on_the_projects_database(under_test):
    """The parts would pass their suites, and no task use them."""
    ran = []
    with Celery("shop", set_as_current=False) as app:
        app.conf.update(
            task_always_eager=True,
            safeguards_store_url=f"django://{under_test.alias}",
            safeguards_namespace=under_test.namespace,
        )
        options = {"base": SafeTask, "safeguards": Safeguards(idempotent=Idempotent("pay:{order}", on_unknown="rerun"))}

        @app.task(name="shop.pay", shared=False, **options)
        def pay(order):
            ran.append(order)
            return f"paid {order}"

        results = [pay.delay(7).get(), pay.delay(7).get()]
        Wiring.of(app).admission.house.connection.close()

    assert ([7], ["paid 7", "paid 7"]) == (ran, results)
    assert State.DONE is under_test.store.read(RecordKey("shop.pay", "pay:7")).state


def test_the_migrations_are_complete():
    """`makemigrations` in a user's project would write a file into the installed package."""
    said = io.StringIO()

    call_command("makemigrations", "django_celery_safeguards", check=True, dry_run=True, stdout=said)

    assert "No changes detected" in said.getvalue()


def test_the_tables_can_be_taken_back(tmp_path):
    """Whoever tries the package out could not get rid of it."""
    from django.db import connections

    from tests.support import databases

    with databases.added("backwards", databases.sqlite(tmp_path / "db.sqlite3")) as alias:
        databases.migrate(alias)
        call_command("migrate", "django_celery_safeguards", "zero", database=alias, verbosity=0)
        assert [] == [name for name in connections[alias].introspection.table_names() if "safeguards" in name]
