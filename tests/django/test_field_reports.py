"""
What people have reported of keys, locks and failures, with the records in a database: PostgreSQL and SQLite.

Tests of the Redis or the memory store are collected here once more, with the fixtures below.
"""

import contextlib

import pytest
from celery import Celery

from celery_safeguards import EntityLock, RetryPolicy, Safeguards, hold
from celery_safeguards.errors import DeadLettered, LockBusy
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.wiring import Wiring
from tests.conformance.admission.calls import KEY, RACERS, admit, race
from tests.django.atomic.conftest import AtomicBench, create_effects
from tests.django.conftest import migrated
from tests.integration.locks.test_shared_lock import (  # noqa: F401 - collected here once more
    test_late_end_in_one_thread_leaves_the_lock_of_the_other,
    test_same_lock_is_not_reentrant_and_says_who_has_it,
)
from tests.integration.test_keyed_messages import (  # noqa: F401 - collected here once more
    test_same_key_with_other_arguments_is_a_conflict_and_is_not_run,
)
from tests.support import databases, postgres
from tests.support.sockets import Cutter

HUGE_CHARS = 5 * 1024 * 1024
NO_RETRY = RetryPolicy(attempts=1)


@pytest.fixture
def bench(alias):
    """A bench whose safeguards are in a database."""
    create_effects(alias)
    with contextlib.closing(AtomicBench(alias)) as bench:
        yield bench


@contextlib.contextmanager
def app_on(alias, namespace):
    """Yield an app whose locks are in a database."""
    with Celery("locks", broker="memory://", set_as_current=False) as app:
        app.conf.update(safeguards_store_url=f"django://{alias}", safeguards_namespace=namespace)
        Wiring.of(app).admission.declare_new()
        yield app
        Wiring.of(app).admission.house.connection.close()


def stands(app, name):
    """Return how a lock stands."""
    return Wiring.of(app).locks.read(name)[0]


@pytest.fixture
def app(alias, namespace):
    """An app whose locks are in a database."""
    with app_on(alias, namespace) as app:
        yield app


@pytest.fixture
def state(app):
    """Read how a lock stands, as `state("order:7")`."""
    return lambda name: stands(app, name)


# --- keys and locks


def test_of_many_who_insert_a_key_at_once_one_runs(under_test):
    """mhayk/Overpass#16: who looks first and inserts then runs beside whoever has looked at the same time."""
    answers = race(RACERS, lambda number: admit(under_test.store, f"owner-{number}"))

    (winner,) = [answer.record.owner for answer in answers if answer.claimed]
    assert {winner} == {answer.record.owner for answer in answers}
    assert winner == under_test.store.read(KEY).owner


@pytest.mark.postgres
def test_release_that_failed_leaves_the_handle_valid(postgres_url, namespace):
    """
    redis/redis-py#416: a release that failed wiped the token; nobody could release the lock any more, and people
    deleted it by hand.
    """
    slow = EntityLock("order:{order_id}", lease_seconds=30)
    with (
        postgres.fresh_database(postgres_url) as url,
        Cutter(postgres_url) as line,
        databases.added("line", migrated({**databases.postgres(url), "PORT": str(line.port)})) as alias,
        app_on(alias, namespace) as app,
    ):
        with hold(app, slow, order_id=7) as lock:
            line.refuse()
        line.allow()
        assert lock.token == stands(app, "order:7").fence
        with pytest.raises(LockBusy), hold(app, slow, order_id=7):
            pass

        lock._release()

        assert "" == stands(app, "order:7").owner


# --- failures that are hard to write down


class Verbose(Exception):
    """Says what no column takes, and more than anybody reads."""

    def __init__(self):
        super().__init__("\x00" + "\x00 \ud800 out of \U0001f4a5 " + "x" * HUGE_CHARS)


def fail_deeply(number):
    """Fail with a text of megabytes in every line of a long traceback."""
    if number:
        fail_deeply(number - 1)
    raise Verbose


@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "unkeyed"])
def test_failure_with_nul_and_five_megabytes_becomes_a_letter(bench, is_keyed):
    """
    celery/django-celery-results#82, #74, celery/django-celery#20: a NUL or an over-long text in the traceback made
    recording the failure fail, and the task hung for ever.
    """
    body = lambda self, number: fail_deeply(100)  # noqa: E731
    task = (
        bench.keyed(body, retry=NO_RETRY) if is_keyed else bench.task(body, Safeguards(repeatable=True, retry=NO_RETRY))
    )
    task.delay(7)

    delivered = bench.deliver()

    assert ("acknowledged", "FAILURE", DeadLettered) == (delivered.fate, delivered.state, type(delivered.result))
    (letter,) = bench.all_letters()
    assert (delivered.result.letter_id, task.name, FailureKind.BUG) == (letter.id, letter.task, letter.kind)
    if is_keyed:
        assert State.DEAD is bench.record(task, 7).state


def test_retry_of_a_failure_with_nul_is_recorded(bench):
    """The outcome could not be written, and nothing would be acknowledged, again and again."""

    def body(self, number):
        if self.safe.attempt == 1:
            raise ConnectionRefusedError("\x00\ud800" + "x" * HUGE_CHARS)
        return number

    task = bench.keyed(body, retry=RetryPolicy(attempts=2, base_seconds=0.01, cap_seconds=0.01))
    task.delay(7)

    first, second = bench.drain()

    assert ("acknowledged", "SUCCESS") == (first.fate, second.state)
    record = bench.record(task, 7)
    assert (State.DONE, 2, 0) == (record.state, record.attempt, record.lost_starts)
