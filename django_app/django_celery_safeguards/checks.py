"""
Django system checks: what is wrong with the set-up, before the first worker runs.

| id | level | says |
|---|---|---|
| SG200 | error | the app is not in INSTALLED_APPS (`task.py`: nothing else of it runs then) |
| SG201 | error | a setting cannot hold, or names a store that is not there |
| SG202 | warning | there is no Celery app to check |
| SG203 | warning | a setting of the safeguards that no Celery app reads |
| SG210 | warning | records are kept in SQLite, and `DEBUG` is off |
| SG211 | warning | the store's tables are not there or not of this version (`check --database`) |
| SG212 | error | a database router keeps the tables off the store's database |
| SG220 | error | records and locks lie where a cache may wipe them |
| SG221 | warning | the broker's messages do |
| SG1.. | as there | what a worker says before it connects (`check --deploy`, which imports the tasks) |

Each id has `celery_safeguards.` before it. The app that is looked at is the one that `shared_task` works with: the
project's `__init__` imports it. The project's tasks are imported by `--deploy` alone: Celery itself runs the other
checks on its way to import them, and an app that is asked for its tasks by then never tells their modules that it is
complete (`on_after_finalize`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register  # noqa: A004 - Django's own name
from django.db import connections, router
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import DatabaseError, InterfaceError

from celery_safeguards._compat import made_app
from celery_safeguards.conf import Settings, namespaced_prefix
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.findings import KINDS, Finding, Severity
from celery_safeguards.wiring import open_stores
from django_celery_safeguards.clearable import broker_urls, clearable_findings
from django_celery_safeguards.names import APP, TAG
from django_celery_safeguards.stores import store_alias

_OURS = "SAFEGUARDS_"
_MESSAGES: dict[Severity, Callable[..., CheckMessage]] = {Severity.ERROR: Error, Severity.WARNING: Warning}
_KNOWN = frozenset(field.name for field in fields(Settings))


def register_checks() -> None:
    """Have Django run them; `manage.py check --tag celery_safeguards` runs no others."""
    register(check_settings, TAG)
    register(check_tables, TAG, Tags.database)
    register(check_tasks, TAG, deploy=True)


def _message(number: str, text: str, hint: str | None = None) -> CheckMessage:
    return _of_severity(KINDS[number].severity, number, text, hint)


def _of_severity(severity: Severity, number: str, text: str, hint: str | None = None) -> CheckMessage:
    kind = _MESSAGES.get(severity, Info)
    return kind(text, hint=hint, id=f"{TAG}.{number}")


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check the settings of the safeguards, and where they say that records are."""
    app = made_app()
    if app is None:
        hint = "import it in the project's __init__.py: from .celery import app"
        return [_message("SG202", "no Celery app is there whose safeguards could be checked", hint)]
    found = list(_unread(app))
    try:
        given = Settings.of(app)
        open_stores(given)
    except ConfigurationError as error:
        return [*found, _message("SG201", str(error))]
    found += [_of_finding(each) for each in clearable_findings(given.store_url, broker_urls(app))]
    alias = store_alias(given.store_url)
    return [*found, *_of_database(alias)] if alias is not None else found


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that the store's tables are those of this version; no error, or `migrate` would refuse to make them."""
    alias = _alias_in_use()
    if alias is None or alias not in (databases or ()):
        return []
    hint = f"run manage.py migrate --database {alias}"
    try:
        executor = MigrationExecutor(connections[alias])
        plan = executor.migration_plan([each for each in executor.loader.graph.leaf_nodes() if each[0] == APP])
    except (DatabaseError, InterfaceError) as error:
        return [_message("SG211", f"database {alias!r} could not be asked for its tables: {error}")]
    if not plan:
        return []
    names = ", ".join(migration.name for migration, _backwards in plan)
    return [_message("SG211", f"database {alias!r} keeps the records and lacks the migrations {names}", hint)]


def check_tasks(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Import the project's tasks, and say what a worker would say of them when it starts; see `--database` for all."""
    app = made_app()
    if app is None:
        return []
    # Not in every process that has checks: it loads a worker's parts.
    from celery_safeguards.diagnose.examining import examine  # noqa: PLC0415
    from celery_safeguards.diagnose.tasks import unbounded_transactions  # noqa: PLC0415

    app.loader.import_default_modules()
    try:
        findings = examine(app)
        # As Django has it: without `--database` no check connects to one.
        if _alias_in_use() in (databases or ()):
            findings += unbounded_transactions(app)
    except ConfigurationError as error:
        return [_message("SG201", str(error))]
    return [_of_finding(each) for each in findings if each.id not in {"SG220", "SG221"}]


def _of_finding(finding: Finding) -> CheckMessage:
    return _of_severity(finding.severity, finding.id, finding.text)


def _unread(app: Any) -> Iterator[CheckMessage]:
    prefix = namespaced_prefix(app)
    load = 'app.config_from_object("django.conf:settings", namespace="CELERY")'
    for name in sorted(dir(settings)):
        ours = name.partition(_OURS)[2].lower()
        if ours in _KNOWN and (prefix is None or not name.startswith(prefix)):
            hint = f"call it {prefix}{ours.upper()}" if prefix else f"load Django's settings: {load}"
            yield _message("SG203", f"{name} is read by no Celery app", hint)


def _of_database(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    if connection.vendor == "sqlite" and not settings.DEBUG and not connection.is_in_memory_db():
        hint = "it has one writer at a time, on one host: take PostgreSQL, or Redis"
        yield _message("SG210", f"records are kept in SQLite (database {alias!r})", hint)
    models = apps.get_app_config(APP).get_models()
    names = ", ".join(each.__name__ for each in models if not router.allow_migrate_model(alias, each))
    if names:
        hint = f"let allow_migrate({alias!r}, {APP!r}) of that router be true"
        yield _message("SG212", f"a router in DATABASE_ROUTERS keeps {names} off database {alias!r}", hint)


def _alias_in_use() -> str | None:
    app = made_app()
    try:
        return store_alias(Settings.of(app).store_url) if app is not None else None
    except ConfigurationError:
        return None
