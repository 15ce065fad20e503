"""
A project's own tests: `TestCase`, `TransactionTestCase`, pytest-django, freezegun, eager mode.

Each runs in a project of its own, by the runner that the project would use.
"""

import os

import pytest
from celery import Celery
from django.db import connections

from celery_safeguards.wiring import Wiring
from django_celery_safeguards.testing import fresh_store
from tests.support import databases
from tests.support.project import Project

EAGER = """
CELERY_TASK_ALWAYS_EAGER = True
CELERY_TASK_EAGER_PROPAGATES = True
CELERY_SAFEGUARDS_EAGER_WAIT_SECONDS = 0.2
"""
ON_DATABASE = EAGER + 'CELERY_SAFEGUARDS_STORE_URL = "django://default"\n'
TASKS = """
from celery import shared_task

from celery_safeguards import EntityLock, Idempotent, Safeguards
from django_celery_safeguards import SafeTask
from django_celery_safeguards.models import StartCount

KEY = Idempotent("ship:{order_id}", on_unknown="rerun")
ran = []


def row(name):
    return StartCount.objects.create(id=name, namespace="users", task_id=name, count=1, expires_us=0)


@shared_task(base=SafeTask, safeguards=Safeguards(idempotent=KEY, lock=EntityLock("order:{order_id}")))
def ship(order_id):
    ran.append(order_id)
    return StartCount.objects.filter(namespace="users").count()


@shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True, retry=None))
def fail(order_id):
    raise ValueError(f"no order {order_id}")
"""
UNITTESTS = """
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from django_celery_safeguards.models import IdempotencyRecord
from django_celery_safeguards.testing import fresh_store
from orders.tasks import fail, ran, row, ship


class InTestCase(TestCase):
    def setUp(self):
        self.store = self.enterContext(fresh_store())
        ran.clear()

    def test_task_sees_the_rows_of_the_test_and_leaves_its_connection(self):
        row("mine")
        self.assertEqual([1, 1], [ship.delay(7).get(), ship.delay(7).get()])
        self.assertEqual([7], ran)
        self.assertTrue(connection.in_atomic_block)
        row("mine too")

    def test_task_of_another_test_has_left_nothing(self):
        self.assertEqual(0, ship.delay(7).get())
        self.assertEqual([7], ran)

    def test_hooks_run_where_they_are_captured(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            result = ship.delay_on_commit(7)
            self.assertEqual([], ran)
        self.assertEqual(([7], 1), (ran, len(callbacks)))
        self.assertTrue(result.id)

    def test_hooks_do_not_run_by_themselves(self):
        ship.delay_on_commit(7)
        self.assertEqual([], ran)

    def test_error_of_a_body_in_a_hook_is_the_tests(self):
        with self.assertRaisesRegex(ValueError, "no order 7"), self.captureOnCommitCallbacks(execute=True):
            fail.delay_on_commit(7)


class InTransactionTestCase(TransactionTestCase):
    def setUp(self):
        ran.clear()

    def test_records_may_be_kept_in_the_database(self):
        with fresh_store("django://default") as store:
            row("mine")
            self.assertEqual([1, 1], [ship.delay(7).get(), ship.delay(7).get()])
            self.assertEqual(([7], 1), (ran, IdempotencyRecord.objects.count()))
            self.assertIsNone(store.locks.read("order:7")[0].owner or None)

    def test_they_are_gone_with_the_test(self):
        self.assertEqual(0, IdempotencyRecord.objects.count())
        with fresh_store("django://default"):
            ship.delay(7)
        self.assertEqual([7], ran)

    def test_hooks_run_after_commit(self):
        with fresh_store("django://default"):
            with transaction.atomic():
                row("mine")
                ship.delay_on_commit(7)
                self.assertEqual([], ran)
            self.assertEqual([7], ran)


class WithInitialData(TransactionTestCase):
    serialized_rollback = True

    def test_records_may_be_kept_in_the_database(self):
        with fresh_store("django://default"):
            self.assertEqual([0, 0], [ship.delay(8).get(), ship.delay(8).get()])
"""
REFUSED = """
from django.test import TestCase

from celery_safeguards.errors import ConfigurationError
from orders.tasks import row, ship


class InTestCase(TestCase):
    def test_records_cannot_be_kept_behind_the_tests_own_transaction(self):
        row("mine")
        with self.assertRaisesRegex(ConfigurationError, "fresh_store"):
            ship.delay(7)
"""
FORGOTTEN = """
from django.test import TestCase

from orders.tasks import ran, ship


class InTestCase(TestCase):
    def test_one(self):
        ship.delay(7)
        self.assertEqual([7], ran)

    def test_two(self):
        ran.clear()
        ship.delay(7)
        self.assertEqual([7], ran)
"""
PYTEST = """
import pytest
from django.db import connection
from freezegun import freeze_time

from celery_safeguards import EntityLock, hold
from celery_safeguards.errors import DeferralRefused
from django_celery_safeguards.testing import fresh_store
from orders.tasks import ran, row, ship
from proj import app


@pytest.fixture(autouse=True)
def store():
    ran.clear()
    with fresh_store() as store:
        yield store


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.django_db
def test_in_a_transaction(again):
    row("mine")
    assert [ship.delay(7).get(), ship.delay(7).get()] == [1, 1]
    assert ran == [7]
    assert connection.in_atomic_block


@pytest.mark.django_db(transaction=True)
def test_in_the_database():
    with fresh_store("django://default"):
        row("mine")
        assert [ship.delay(7).get(), ship.delay(7).get()] == [1, 1]
        assert ran == [7]


def test_hooks(db, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        ship.delay_on_commit(7)
        assert ran == []
    assert ran == [7]


def test_without_a_database():
    with pytest.raises(Exception, match="Database access not allowed"):
        ship.delay(7)


@pytest.mark.parametrize("url", ["memory://", "django://default"])
@pytest.mark.django_db(transaction=True)
def test_in_frozen_time(url):
    with fresh_store(url):
        with freeze_time("2031-05-01"):
            assert ship.delay(7).get() == ship.delay(7).get()
        with freeze_time("2019-05-01"):
            assert ship.delay(7).get() == 0
            ship.delay(8)
        ship.delay(8)
    assert ran == [7, 8]


@pytest.mark.parametrize("url", ["memory://", "django://default"])
@pytest.mark.django_db(transaction=True)
def test_a_wait_ends_in_frozen_time(url):
    with fresh_store(url), freeze_time("2031-05-01"), hold(app, EntityLock("order:{order_id}"), order_id=7):
        with pytest.raises(DeferralRefused):
            ship.delay(7)
    assert ran == []
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def settings(request):
    """Lines of settings for a project on a database that its runner makes; SQLite's is in memory."""
    if request.param == "sqlite":
        return "DATABASES['default']['TEST'] = {'NAME': None}\n"
    url = request.getfixturevalue("postgres_url")
    given = databases.postgres(url)
    given["TEST"] = {"NAME": f"test_{os.getpid()}_{request.node.name.partition('[')[0]}"[:60]}
    return f"DATABASES['default'] = {given!r}\n"


def test_by_djangos_runner(tmp_path, settings):
    """A team could not test its tasks, or its runner not drop the database (celery/celery#4511)."""
    project = Project(tmp_path, settings=EAGER + settings, tasks=TASKS, files={"orders/tests.py": UNITTESTS})
    done = project.manage("test", "--noinput")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Ran 9 tests" in done.stderr


def test_by_djangos_runner_in_parallel(tmp_path, settings):
    """Each process of the runner has a database of its own."""
    project = Project(tmp_path, settings=EAGER + settings, tasks=TASKS, files={"orders/tests.py": UNITTESTS})
    done = project.manage("test", "--noinput", "--parallel", "2")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Ran 9 tests" in done.stderr


def test_by_pytest(tmp_path, settings):
    """Most teams run their tests by pytest-django, and freeze time in them."""
    files = {"orders/test_orders.py": PYTEST, "pytest.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = proj.settings\n"}
    project = Project(tmp_path, settings=EAGER + settings, tasks=TASKS, files=files)
    done = project.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "orders")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "9 passed" in done.stdout


def test_sqlite_behind_a_tests_transaction_is_refused_at_once(tmp_path):
    """The test would wait for itself, ten seconds for each task, and fail as if a server were down."""
    project = Project(tmp_path, settings=ON_DATABASE, tasks=TASKS, files={"orders/tests.py": REFUSED})
    done = project.manage("test", timeout_seconds=30)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_without_a_fresh_store_one_test_meets_the_records_of_another(tmp_path):
    """What the tests above would be without it."""
    project = Project(tmp_path, settings=EAGER, tasks=TASKS, files={"orders/tests.py": FORGOTTEN})
    done = project.manage("test")

    assert 1 == done.returncode, done.stdout + done.stderr
    assert "FAILED (failures=1)" in done.stderr


def test_a_store_is_lent_for_the_length_of_a_test(alias, namespace):
    """The tests after it would keep their records in its memory."""
    with Celery("lent", set_as_current=False) as app:
        app.conf.update(safeguards_store_url=f"django://{alias}", safeguards_namespace=namespace)
        with fresh_store(app=app) as first:
            assert Wiring.of(app) is first
        before = Wiring.of(app)
        with fresh_store(app=app), fresh_store(f"django://{alias}", app=app) as inner:
            assert Wiring.of(app) is inner
        assert Wiring.of(app) is before
        assert "memory://" != before.settings.store_url
    connections[alias].close()
