"""
Database connections after a task: what one body leaves behind must not meet the next.

Real workers of a real project, with Celery's own set-up of Django.
"""

import uuid

import psycopg
import pytest
from celery import Celery
from celery.signals import before_task_publish
from django.db import connections, transaction

from celery_safeguards import Idempotent, Safeguards
from celery_safeguards.wiring import Wiring
from django_celery_safeguards import SafeTask
from django_celery_safeguards.after_task import _roll_back_what_is_left, watch_tasks
from django_celery_safeguards.signals import transaction_left_open
from tests.django.project_worker import environment, project_with
from tests.support import databases, postgres
from tests.support.announcements import is_said
from tests.support.bench import Bench
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 90
WITHOUT_THE_GUARD = """
from django_celery_safeguards import after_task
after_task.watch_tasks = lambda: None
"""
STAYS_OPEN = "\nCELERY_DB_REUSE_MAX = 1000\n"
LEAVES = ["leave_atomic", "leave_manual", "leave_raw"]
THREADS = 8
TASKS = 50


@pytest.fixture
def send(producer):
    """Send a task of the project by its name, and return the id."""

    def send(name, *args):
        task_id = uuid.uuid4().hex
        producer.send_task(f"orders.tasks.{name}", args, task_id=task_id)
        return task_id

    return send


@pytest.fixture
def start_project(tmp_path, start_worker, worker_env, namespace):
    """Start a worker of the project on a database, whose store is declared new."""

    def start(database, *, settings="", celery="", **options):
        with databases.added("declares", database) as alias, Celery("declares", set_as_current=False) as app:
            app.conf.update(safeguards_store_url=f"django://{alias}", safeguards_namespace=namespace)
            Wiring.of(app).admission.declare_new()
            Wiring.of(app).admission.house.connection.close()
        project = project_with(tmp_path, database, settings=settings, celery=celery)
        return start_worker("proj", environment(project, worker_env), **options).wait_ready()

    return start


@pytest.fixture
def postgres_database(postgres_url):
    """A migrated database on PostgreSQL, for one test: Django's settings, and its URL."""
    with postgres.fresh_database(postgres_url) as url:
        given = databases.postgres(url)
        with databases.added("being_migrated", given) as alias:
            databases.migrate(alias)
        yield given, url


def end_of(worker, task_id):
    """Wait until a task has ended and return the state that it has then."""
    return worker.wait_for(is_said("task_postrun", task_id=task_id), PATIENCE_SECONDS)["state"]


# --- what a body leaves open


@pytest.mark.redis
@pytest.mark.acceptance
@pytest.mark.parametrize("settings", ["", STAYS_OPEN])
def test_what_a_body_leaves_open_does_not_meet_the_next_task(database, settings, announcements, start_project, send):
    """Every later task of that child would fail, and nobody look for the cause elsewhere (addons-server PR#653)."""
    worker = start_project(database, settings=settings)

    for number, name in enumerate([*LEAVES, "leave_nothing"]):
        # What it wrote is gone: it must not be done.
        assert ("SUCCESS" if name == "leave_nothing" else "FAILURE") == end_of(worker, send(name))
        assert "SUCCESS" == end_of(worker, send("count", number))

    counted = announcements.heard(is_said("counted"))
    assert [0, 0, 0, 1] == [each["rows"] for each in counted]
    assert 1 == len({each["pid"] for each in counted})
    assert 1 == worker.log().count(
        "left database 'default' in an atomic block: what it had not committed is rolled back"
    )


@pytest.mark.redis
@pytest.mark.acceptance
def test_without_the_guard_the_next_task_fails(database, start_project, send):
    """What the test above would be without this package."""
    worker = start_project(database, celery=WITHOUT_THE_GUARD)

    assert "SUCCESS" == end_of(worker, send("leave_atomic"))
    assert "SUCCESS" != end_of(worker, send("count", 1))
    assert "closed" in worker.log()


def test_who_listens_is_told(alias, namespace):
    """The log alone raises no alarm."""
    told = []

    def on_left(sender, task_id, alias, state, **_):
        told.append((sender.name, task_id, alias, state))

    bench = Bench(namespace)
    task = bench.task(lambda self: None, name="shop.leaves")
    transaction_left_open.connect(on_left)
    try:
        transaction.atomic(using=alias).__enter__()
        task.push_request(id="t-1", is_eager=False)
        _roll_back_what_is_left(sender=task, task_id="t-1")
    finally:
        task.pop_request()
        transaction_left_open.disconnect(on_left)
        bench.close()

    assert [("shop.leaves", "t-1", alias, "an atomic block")] == told
    assert not connections[alias].in_atomic_block


@pytest.mark.parametrize("is_eager", [True, False])
def test_the_transaction_of_a_caller_or_a_test_is_left_alone(alias, namespace, is_eager):
    """An eager task would end its caller's transaction; a task in a `TestCase` all that the test has set up."""
    bench = Bench(namespace)
    task = bench.task(lambda self: None)
    task.push_request(is_eager=is_eager)
    block = transaction.atomic(using=alias)
    block._from_testcase = not is_eager
    with block:
        _roll_back_what_is_left(sender=task, task_id="t-1")
        assert connections[alias].in_atomic_block
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1")
    task.pop_request()
    bench.close()


# --- children


@pytest.mark.redis
@pytest.mark.postgres
@pytest.mark.acceptance
@pytest.mark.parametrize("settings", ["", STAYS_OPEN])
def test_children_inherit_no_connection(postgres_database, settings, announcements, start_project, send):
    """Two processes on one socket: every later task of both reads the other's answers (celery/celery#5483, #4878)."""
    given, _url = postgres_database
    worker = start_project(given, settings=settings, concurrency=THREADS, extra_args=["--max-tasks-per-child=1"])
    hung = [send("hang") for _ in range(THREADS)]
    for each in hung:
        worker.wait_for(is_said("task_failure", task_id=each), PATIENCE_SECONDS)

    ids = [send("count", number) for number in range(TASKS)]

    assert {"SUCCESS"} == {end_of(worker, each) for each in ids}
    assert set(range(TASKS)) == {each["number"] for each in announcements.heard(is_said("counted"))}
    assert TASKS == len({each["pid"] for each in announcements.heard(is_said("counted"))})
    log = worker.log()
    assert [] == [word for word in ("OperationalError", "InterfaceError", "SSL", "bad file") if word in log]


# --- publishers


@pytest.mark.postgres
def test_a_publisher_keeps_no_connection(postgres_database, namespace):
    """Each thread of each web process would hold one, for a question that it asks twice a minute."""
    # A worker that ran in this process, as Celery's own fixtures start one, has made it a worker's.
    watch_tasks()
    given, url = postgres_database
    with (
        databases.added("publishes", given) as alias,
        Celery(namespace, broker="memory://", set_as_current=False) as app,
    ):
        app.conf.update(safeguards_store_url=f"django://{alias}", task_default_queue=namespace)
        options = {"base": SafeTask, "safeguards": Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))}

        @app.task(shared=False, **options)
        def pay(number):
            pass

        seen = []

        def look(**_):
            seen.append(connected(url))

        before_task_publish.connect(look, sender=pay.name)
        pay.delay(7)

        assert [1] == seen
        wait_until(lambda: connected(url) == 0, PATIENCE_SECONDS, "the connection is closed")


# --- threads and greenlets


def connected(url):
    """Return how many sessions a database has, beside the one that asks."""
    with psycopg.connect(url, autocommit=True) as asks:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return asks.execute(asked).fetchone()[0]


@pytest.mark.redis
@pytest.mark.postgres
@pytest.mark.acceptance
@pytest.mark.parametrize(("pool", "guard"), [("threads", ""), ("gevent", ""), ("threads", WITHOUT_THE_GUARD)])
def test_idle_threads_keep_no_connection(postgres_database, pool, guard, announcements, start_project, send):
    """A server's connections would be held by threads that do nothing (dimagi/commcare-hq PR#37013)."""
    given, url = postgres_database
    announcements.hold("counting")
    worker = start_project(given, celery=guard, pool=pool, concurrency=THREADS)
    ids = [send("count", number) for number in range(THREADS)]
    announcements.wait_for(is_said("counting"), PATIENCE_SECONDS, count=THREADS)
    busy = connected(url)
    announcements.open("counting")

    assert {"SUCCESS"} == {end_of(worker, each) for each in ids}

    assert busy >= THREADS
    if guard:
        assert connected(url) >= THREADS
    else:
        # Those of the main process, which renews claims.
        wait_until(lambda: connected(url) <= 2, PATIENCE_SECONDS, "the connections of idle threads are closed")
