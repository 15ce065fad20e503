"""
Calls of a store of records that take and release a lock with a claim, in the few words that its contract needs.
"""

from celery_safeguards.admission.store import Renewal
from celery_safeguards.ledger.record import State
from tests.conformance.admission.calls import DONE, FAILURE, KEY, start
from tests.conformance.locks.calls import LOCK_LEASE_SECONDS, ask, pass_time
from tests.conformance.stores import LEASE_SECONDS


def admit_with(store, owner="A", key=KEY, **options):
    return store.admit(key, owner, start(), unproven=True, epoch=None, lock=ask(owner), **options)


def claimed_with(store, owner="A", key=KEY):
    """Claim a key that has no record, and its lock; return the record and the lock."""
    answer = admit_with(store, owner, key)
    assert answer.claimed
    return answer.record, answer.lock


def take_with(store, rev, owner="B", key=KEY, **fields):
    return store.take(key, rev, owner, start(**fields), lock=ask(owner))


def settle_with(store, record, lock, change=DONE, key=KEY, **options):
    return store.settle(key, record, State.IN_PROGRESS, change, lock=lock, **options)


def mark_lost_with(store, owner, key=KEY):
    return store.mark_lost(key, owner, FAILURE, lock=ask(owner))


def frozen(under_test, owner="A"):
    """Claim a key and its lock, and let both leases end; return the record and the lock."""
    claim = claimed_with(under_test.store, owner)
    pass_time(under_test, max(LEASE_SECONDS, LOCK_LEASE_SECONDS) + 1)
    return claim


def is_renewed(renewed):
    return renewed.renewal is Renewal.RENEWED
