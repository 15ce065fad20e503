"""
Who waits for a lock is woken, and asks the database nothing meanwhile.
"""

import threading
import time

import pytest

from celery_safeguards.clock import SystemClock
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.locks.turn import acquire_in_turn


def ask(owner):
    return LockAsk(name="order:7", owner=owner, lease_seconds=30.0)


class Waiter:
    """Somebody who waits in a thread of its own, for at most half a minute."""

    def __init__(self, under_test):
        self._under_test = under_test
        self._thread = threading.Thread(target=self._wait)
        self.grant = self.woken_at = None

    def __enter__(self):
        self._thread.start()
        while not self._under_test.store.locks.waiting("order:7"):
            time.sleep(0.005)
        return self

    def __exit__(self, *error):
        self._thread.join()

    def _wait(self):
        self.grant = acquire_in_turn(self._under_test.store.locks, SystemClock(), ask("B"), 30.0)
        self.woken_at = time.monotonic()


def test_a_release_wakes_who_waits(under_test):
    """Every lock that is waited for would be free for a second after each release."""
    late_seconds = []
    for _ in range(3):
        held = under_test.store.locks.acquire(ask("A")).held
        with Waiter(under_test) as waiter:
            # In the midst of its second: not when it would ask by itself.
            time.sleep(0.3)
            released_at = time.monotonic()
            under_test.store.locks.release(held)
        assert waiter.grant.held.fence > held.fence
        under_test.store.locks.release(waiter.grant.held)
        late_seconds.append(waiter.woken_at - released_at)

    # A busy machine may be late, but not each time.
    assert min(late_seconds) < 0.4


@pytest.mark.postgres
def test_who_waits_on_postgres_asks_nothing(on_postgres, counted_on_postgres):
    """Waiting by asking would load the database with every message that waits."""
    locks = on_postgres.store.locks
    locks.acquire(ask("A"))
    locks.acquire(ask("B"), wait=True)
    counted_on_postgres.clear()

    assert 0 == locks.wait(ask("B"), 0.2)

    assert [] == counted_on_postgres.all


@pytest.mark.postgres
def test_who_was_served_listens_no_more(on_postgres):
    """A connection would collect the words of every lock that its thread ever waited for."""
    locks = on_postgres.store.locks
    held = locks.acquire(ask("A")).held
    locks.acquire(ask("B"), wait=True)
    assert 1 == len(channels(on_postgres))
    locks.release(held)

    locks.wait(ask("B"), 1.0)

    assert [] == channels(on_postgres)


def channels(under_test):
    def act(cursor):
        cursor.execute("SELECT pg_listening_channels()")
        return cursor.fetchall()

    return under_test.house.connection.run(act)
