"""
What `manage.py check` says of a set-up that cannot hold, or will hurt some day.
"""

import re

import pytest

from tests.support.project import CELERY, TASKS, Project

CACHE = 'CACHES = {{"default": {{"BACKEND": "{backend}", "LOCATION": {location!r}, "OPTIONS": {options!r}}}}}\n'
DJANGOS, DJANGO_REDIS = "django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"
REDIS = 'CELERY_BROKER_URL = "redis://localhost:6379/1"\n'
ROUTER = """
class KeepOff:
    def allow_migrate(self, db, app_label, **hints):
        return app_label != "django_celery_safeguards"
"""


def ids(done):
    """Return the ids of what a check has found."""
    return set(re.findall(r"celery_safeguards\.SG\d+", done.stdout + done.stderr))


def check(project, *words):
    done = project.manage("check", *words)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_sound_project_has_nothing_to_be_said(tmp_path):
    """A check that always complains is silenced, and so is the next one."""
    done = check(Project(tmp_path))

    assert (0, set()) == (done.returncode, ids(done))
    assert "no issues" in done.stdout


@pytest.mark.parametrize(
    ("settings", "code", "expected", "said"),
    [
        ("CELERY_SAFEGUARDS_STORE_URL = 'django://defualt'", 1, "SG201", "did you mean 'default'"),
        ("CELERY_SAFEGUARDS_STORE_URL = 'djanga://default'", 1, "SG201", "did you mean 'django'"),
        ("CELERY_SAFEGUARDS_LEASE_SECOND = 5", 1, "SG201", "did you mean 'safeguards_lease_seconds'"),
        ("CELERY_SAFEGUARDS_LEASE_SECONDS = 'long'", 1, "SG201", "lease_seconds='long'"),
        ("DATABASES['default']['ENGINE'] = 'django.db.backends.dummy'", 1, "SG201", "none of postgresql, sqlite"),
        ("SHOP_SAFEGUARDS_LEASE_SECONDS = 5", 0, "SG203", "call it CELERY_SAFEGUARDS_LEASE_SECONDS"),
        ("SAFEGUARDS_STRICT = True", 0, "SG203", "call it CELERY_SAFEGUARDS_STRICT"),
        ("DEBUG = False\nALLOWED_HOSTS = ['shop']", 0, "SG210", "SQLite"),
        ("DATABASE_ROUTERS = ['proj.routers.KeepOff']", 1, "SG212", "IdempotencyRecord"),
    ],
)
def test_set_up_that_cannot_hold_is_told_with_the_fix(tmp_path, settings, code, expected, said):
    """A traceback, or nothing at all until the first task runs."""
    done = check(Project(tmp_path, settings=settings, files={"proj/routers.py": ROUTER}))

    assert (code, {f"celery_safeguards.{expected}"}) == (done.returncode, ids(done)), done.stderr
    assert said in done.stderr


def test_app_that_is_not_installed_is_told(tmp_path):
    """There would be no tables, no pages and no other checks, and nothing said before the first task."""
    settings = "INSTALLED_APPS = ['orders', 'celery_safeguards']"
    done = check(Project(tmp_path, settings=settings, files={"orders/__init__.py": "import orders.tasks"}))

    assert (1, {"celery_safeguards.SG200"}) == (done.returncode, ids(done)), done.stderr


def test_project_without_a_celery_app_is_told(tmp_path):
    """Nothing was looked at, which must not read as nothing found."""
    done = check(Project(tmp_path, files={"proj/__init__.py": ""}))

    assert (0, {"celery_safeguards.SG202"}) == (done.returncode, ids(done))


def test_settings_that_celery_never_loads_are_told(tmp_path):
    """Without `config_from_object` every one of them is at its default."""
    celery = "".join(line for line in CELERY.splitlines(keepends=True) if "config_from_object" not in line)
    done = check(Project(tmp_path, settings="CELERY_SAFEGUARDS_LEASE_SECONDS = 60", celery=celery))

    assert "celery_safeguards.SG203" in ids(done)


# --- tables


def test_tables_that_are_missing_are_told_and_migrate_can_make_them(tmp_path):
    """The first task would fail; and an error here would keep `migrate` from running."""
    project = Project(tmp_path)
    before = check(project, "--database", "default")
    migrated = project.manage("migrate", "--verbosity=0")
    after = check(project, "--database", "default")

    assert (0, {"celery_safeguards.SG211"}) == (before.returncode, ids(before))
    assert "lacks the migrations 0001_initial" in before.stderr
    assert (0, 0, set()) == (migrated.returncode, after.returncode, ids(after)), migrated.stderr


def test_tables_of_another_database_are_its_own_affair(tmp_path):
    """Whoever checks one database would be told of another."""
    settings = "DATABASES['other'] = {**DATABASES['default'], 'NAME': BASE_DIR / 'other.sqlite3'}"
    done = check(Project(tmp_path, settings=settings), "--database", "other")

    assert (0, set()) == (done.returncode, ids(done))


# --- what a cache may wipe (jazzband/django-redis#264)


@pytest.mark.parametrize("backend", [DJANGOS, DJANGO_REDIS])
@pytest.mark.parametrize(
    ("location", "options"),
    [
        ("redis://localhost:6379/1", {}),
        ("redis://127.0.0.1/1", {}),
        ("redis://localhost:6379", {"db": 1}),
        ("redis://localhost:6379?db=1", {}),
        ("redis://user:secret@localhost:6379/1", {}),
        (["redis://elsewhere:6379/1", "redis://localhost:6379/1"], {}),
        ("redis://elsewhere:6379/1,redis://localhost:6379/1", {}),
    ],
)
def test_records_and_messages_in_a_caches_database_are_told(tmp_path, backend, location, options):
    """`cache.clear()` is FLUSHDB: it frees every claim and lock, and takes every message."""
    settings = REDIS + CACHE.format(backend=backend, location=location, options=options)
    done = check(Project(tmp_path, settings=settings))

    assert (1, {"celery_safeguards.SG220", "celery_safeguards.SG221"}) == (done.returncode, ids(done))


@pytest.mark.parametrize(
    ("location", "backend"),
    [
        ("redis://localhost:6379/2", DJANGOS),
        ("redis://localhost:6380/1", DJANGOS),
        ("redis://cache:6379/1", DJANGOS),
        ("redis://localhost:6379/1", "django.core.cache.backends.locmem.LocMemCache"),
    ],
)
def test_a_cache_elsewhere_is_not(tmp_path, location, backend):
    """Every project with a Redis cache would be stopped."""
    settings = REDIS + CACHE.format(backend=backend, location=location, options={})
    done = check(Project(tmp_path, settings=settings))

    assert (0, set()) == (done.returncode, ids(done)), done.stderr


def test_messages_alone_in_a_caches_database_are_a_warning(tmp_path):
    """The records are safe in the database; what was enqueued is not."""
    settings = REDIS + CACHE.format(backend=DJANGOS, location="redis://localhost:6379/1", options={})
    settings += "CELERY_SAFEGUARDS_STORE_URL = 'django://default'"
    done = check(Project(tmp_path, settings=settings))

    assert (0, {"celery_safeguards.SG221"}) == (done.returncode, ids(done))


# --- tasks

ON_THE_CORE = TASKS.replace("from django_celery_safeguards import SafeTask", "from celery_safeguards import SafeTask")
UNDECLARED = TASKS + "\n\n@shared_task(base=SafeTask)\ndef pack(order_id):\n    pass\n"


@pytest.mark.parametrize(
    ("tasks", "expected", "said"),
    [
        (ON_THE_CORE, "SG102", "orders.tasks.ship is built on celery_safeguards.SafeTask"),
        (UNDECLARED, "SG101", "orders.tasks.pack declares neither"),
    ],
)
def test_tasks_are_looked_at_before_deployment(tmp_path, tasks, expected, said):
    """What a worker says when it starts comes after the release."""
    project = Project(tmp_path, tasks=tasks)
    # Django 6.1 looks at the tables as well wherever a tag is named.
    project.manage("migrate", "-v0")
    before, deploy = check(project), check(project, "--deploy", "--tag", "celery_safeguards")

    assert (set(), {f"celery_safeguards.{expected}"}) == (ids(before), ids(deploy))
    assert said in deploy.stderr


def test_a_worker_says_it_of_its_tasks_too(tmp_path):
    """Nobody may run the checks."""
    settings = "CELERY_SAFEGUARDS_STRICT = True\nCELERY_SAFEGUARDS_STORE_URL = 'django://default'"
    done = Project(tmp_path, tasks=ON_THE_CORE, settings=settings).celery("worker", "-P", "solo", "-l", "WARNING")

    assert 0 != done.returncode
    assert "SG102 cannot be published on commit: orders.tasks.ship" in done.stderr + done.stdout


def test_checks_leave_the_tasks_module_its_signals(tmp_path):
    """Asked for its tasks too early, the app is complete before the modules that wait for that are imported."""
    waits = (
        TASKS + "\n\nfrom proj import app\n\n\n@app.on_after_finalize.connect\ndef plan(**_):\n    print('planned')\n"
    )
    project = Project(tmp_path, tasks=waits)
    done = project.python("proj.app.loader.import_default_modules(); proj.app.finalize()")

    assert (0, "planned\n") == (done.returncode, done.stdout), done.stderr


# --- settings of Celery, which need no broker


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        ({"socket_timeout": 30, "socket_keepalive": True}, 0, set()),
        ({}, 0, {"celery_safeguards.SG143"}),
        ({"socket_timeout": 30, "socket_keepalive": True, "ack_emulation": False}, 1, {"celery_safeguards.SG147"}),
    ],
)
def test_settings_of_celery_are_looked_at_before_deployment(tmp_path, options, code, expected):
    """Nothing answers at that address: what can be seen without the broker is told without it."""
    settings = f"CELERY_BROKER_URL = 'redis://127.0.0.1:1/0'\nCELERY_BROKER_TRANSPORT_OPTIONS = {options!r}\n"
    settings += "CELERY_TASK_TIME_LIMIT = 60\nCELERY_SAFEGUARDS_STORE_URL = 'django://default'"
    project = Project(tmp_path, settings=settings)
    project.manage("migrate", "-v0")
    done = check(project, "--deploy", "--tag", "celery_safeguards")

    assert (code, expected) == (done.returncode, ids(done)), done.stderr


def test_finding_that_is_good_to_know_is_no_warning(tmp_path):
    """`check --fail-level WARNING` would stop every deployment."""
    settings = "CELERY_BROKER_URL = 'redis://127.0.0.1:1/0'\nCELERY_SAFEGUARDS_STORE_URL = 'django://default'\n"
    settings += "CELERY_BROKER_TRANSPORT_OPTIONS = {'socket_timeout': 30, 'socket_keepalive': True}\n"
    settings += "CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True"
    project = Project(tmp_path, settings=settings)
    project.manage("migrate", "-v0")
    done = check(project, "--deploy", "--tag", "celery_safeguards", "--fail-level", "WARNING")

    assert (0, {"celery_safeguards.SG159"}) == (done.returncode, ids(done)), done.stderr
