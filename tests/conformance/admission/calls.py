"""
Calls of a store of records, in the few words that its contract needs.
"""

import threading

from celery_safeguards.admission.store import Change, RecordKey
from celery_safeguards.clock import to_us
from celery_safeguards.ledger.record import State
from tests.conformance.stores import LEASE_SECONDS

RACERS = 12
KEY = RecordKey("shop.charge", "payment:7")
HOUR_SECONDS = 3_600.0
LEASE_US = to_us(LEASE_SECONDS)
# A real server's clock moves on while a test looks at it.
SLACK_US = to_us(5)
FAILURE = {"kind": "worker_lost", "error": "killed"}


def start(**changes):
    """The change that a first start writes."""
    fields = {
        "state": State.IN_PROGRESS,
        "asking": False,
        "attempt": 1,
        "lost_starts": 1,
        "task_id": "t-1",
        "series": ("t-1",),
        **changes,
    }
    return Change(fields=fields, after_seconds={"series_began_us": 0.0}, retention_seconds=HOUR_SECONDS)


def change(state, *, retention_seconds=HOUR_SECONDS, after_seconds=None, **fields):
    return Change(
        fields={"state": state, **fields}, after_seconds=after_seconds or {}, retention_seconds=retention_seconds
    )


DONE = change(State.DONE, result="42", lost_starts=0)
RETRY = change(State.RETRY_DUE, after_seconds={"not_before_us": 60.0}, lost_starts=0)
DYING = change(State.DYING, retention_seconds=None, final="dead", letter_id="l-1", letter="{}")


def admit(store, owner="A", key=KEY, *, unproven=True, epoch=None, **fields):
    return store.admit(key, owner, start(**fields), unproven=unproven, epoch=epoch)


def claimed(store, owner="A", key=KEY, **fields):
    """Claim a key that has no record, and return its record."""
    answer = admit(store, owner, key, **fields)
    assert answer.claimed
    return answer.record


def done(store, record):
    """Settle a claim as done."""
    change = Change(fields={"state": State.DONE}, retention_seconds=HOUR_SECONDS)
    return store.settle(KEY, record, State.IN_PROGRESS, change)


def taken(store, owner="B", key=KEY, **fields):
    """Take a record as it stands, and return it."""
    answer = store.take(key, store.read(key).rev, owner, start(**fields))
    assert answer.claimed
    return answer.record


def renewal(store, owner, key=KEY):
    return store.renew({owner: key})[1][owner].renewal


def mark_lost(store, owner, key=KEY):
    return store.mark_lost(key, owner, FAILURE)


def race(count, call):
    """Call from `count` threads at the same instant and return the results in the order of their numbers."""
    barrier, results = threading.Barrier(count), {}

    def run(number):
        barrier.wait()
        results[number] = call(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(count)]
