"""
Atomic tasks on a bench: real messages, real transactions, PostgreSQL and SQLite.
"""

import time
import uuid

import pytest
from django.db import connections, transaction

from celery_safeguards import Idempotent, RetryPolicy, Safeguards
from celery_safeguards.clock import SystemClock
from celery_safeguards.conf import Settings
from celery_safeguards.pipeline import atomic_body, continuing
from django_celery_safeguards.stores import open_stores
from tests.support.bench import Bench, Killed

AT_ONCE = RetryPolicy(attempts=3, base_seconds=0.01, factor=1, cap_seconds=0.01)


class RealClock(SystemClock):
    """Time as it passes; whoever takes a message before it is due waits for it."""

    ahead_seconds = 0.0
    """By how much this process has been asleep, for all it can tell."""

    def monotonic_seconds(self):
        return super().monotonic_seconds() + self.ahead_seconds

    def wait_until(self, wall_seconds):
        time.sleep(max(0.0, wall_seconds - self.wall_seconds()))


class AtomicBench(Bench):
    """A bench whose safeguards are in a database, with a table of effects beside them."""

    clock_of = RealClock

    def __init__(self, alias, lease_seconds=30.0, **settings):
        self.alias = alias
        self._lease_seconds = lease_seconds
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        deferral = {"safeguards_deferral_base_seconds": 0.01, "safeguards_deferral_cap_seconds": 0.02}
        super().__init__(self.namespace, **deferral, **settings)

    def open_stores(self):
        url, most_seconds = f"django://{self.alias}", self._lease_seconds / 4
        given = {"lease_seconds": self._lease_seconds, "store_timeout_seconds": min(2.0, most_seconds)}
        return open_stores(Settings(store_url=url, namespace=self.namespace, **given))

    def atomic(self, body, **safeguards):
        """Register a task with the key `op:{number}`, in one transaction with its record."""
        key = Idempotent("op:{number}", atomic=self.alias)
        return self.task(body, Safeguards(idempotent=key, **{"retry": AT_ONCE, **safeguards}))

    def has_effect(self, number):
        """Have an effect in the database, by the connection that the body's code uses."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute("INSERT INTO effects (namespace, number) VALUES (%s, %s)", [self.namespace, number])

    def effects(self):
        """Return the numbers of the effects that are committed."""
        with transaction.atomic(using=self.alias), connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT number FROM effects WHERE namespace = %s ORDER BY number", [self.namespace])
            return [number for (number,) in cursor.fetchall()]

    def children(self):
        """Return the numbers of the messages in the queue, without running them; they stay there."""
        numbers = []
        while self.waiting():
            numbers.append(self.receive().payload[0][0])
        return numbers


@pytest.fixture
def effects(alias):
    create_effects(alias)


def create_effects(alias):
    """Create the table of effects, once for a database."""
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS effects (namespace varchar(40), number integer)")


@pytest.fixture
def bench(alias, effects):
    bench = AtomicBench(alias)
    yield bench
    bench.close()


@pytest.fixture
def killed_before_it_sends(monkeypatch):
    """The first delivery is killed between its COMMIT and its publishes."""
    lives = [False]
    send_kept = continuing.send_kept

    def send_unless_killed(app, messages):
        if lives:
            lives.pop()
            raise Killed
        send_kept(app, messages)

    for each in (continuing, atomic_body):
        monkeypatch.setattr(each, "send_kept", send_unless_killed)


@pytest.fixture
def child(bench):
    """A task that notes what it got."""
    got = []

    def body(self, *args, **kwargs):
        got.append(args[0] if args else kwargs)

    task = bench.task(body, Safeguards(repeatable=True))
    task.got = got
    return task
