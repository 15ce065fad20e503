"""
Calls of a store of locks, in the few words that its contract needs.
"""

from celery_safeguards.clock import to_us
from celery_safeguards.locks.store import HeldLock, LockAsk
from tests.conformance.stores import LEASE_SECONDS

NAME = "order:7"
# Not that of claims, so that a test tells which of the two runs out.
LOCK_LEASE_SECONDS = 20.0
LOCK_LEASE_US = to_us(LOCK_LEASE_SECONDS)
GIVEN_US = to_us(2.0)


def ask(owner="A", name=NAME, **holder):
    """One acquisition; unless told otherwise its holder is the owner's name."""
    return LockAsk(name=name, owner=owner, lease_seconds=LOCK_LEASE_SECONDS, holder=holder or {"task_id": owner})


def acquired(locks, owner="A", name=NAME):
    """Take a lock that is free, and return it."""
    held = locks.acquire(ask(owner, name)).held
    assert held is not None
    return held


def is_given(locks, owner, name=NAME):
    """Ask for a lock; whether it was given."""
    return locks.acquire(ask(owner, name)).held is not None


def in_line(locks, owner, name=NAME, *, reserve=False):
    """Ask for a lock that is somebody else's, and wait from now on; asked again, a sign of life."""
    grant = locks.acquire(ask(owner, name), wait=True, reserve=reserve)
    assert (None, False) == (grant.held, grant.is_reserved)
    return grant


def waiters(locks, name=NAME):
    """The owners that wait, in their order."""
    return [each.owner for each in locks.waiting(name)]


def owner_alone(held):
    """A lock as the main process of a worker knows it: by its owner, without a fence."""
    return HeldLock(ask=held.ask)


def pass_time(under_test, seconds):
    """Let time pass while some worker is heard, so that the store does not count as having been away."""
    while seconds > 0:
        some = min(seconds, LEASE_SECONDS / 3)
        seconds -= some
        under_test.advance(some)
        under_test.store.renew({})


def lapsed(under_test, owner="A", name=NAME):
    """Take a lock and let its lease end."""
    held = acquired(under_test.locks, owner, name)
    pass_time(under_test, LOCK_LEASE_SECONDS + 1)
    return held
