"""
What is over is deleted by `purge`, and nothing else is.
"""

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger.record import State
from celery_safeguards.locks.store import LockAsk
from tests.conformance.admission.calls import DONE, DYING, HOUR_SECONDS, admit, claimed
from tests.conformance.deadletter_contract import letter

DAY_SECONDS = 24 * HOUR_SECONDS


def keys(count):
    return [RecordKey("shop.charge", str(number)) for number in range(count)]


def done(store, key):
    store.settle(key, claimed(store, "A", key), State.IN_PROGRESS, DONE)


def rows_of(under_test, name):
    table = getattr(under_test.house.tables, name)

    def act(cursor):
        cursor.execute(f"SELECT count(*) FROM {table.name} WHERE namespace = %s", [under_test.namespace])
        return cursor.fetchone()[0]

    return under_test.house.connection.run(act)


def test_records_past_their_retention_are_deleted_in_batches(under_test):
    """The table would grow for ever, or one long transaction hold up every claim."""
    for key in keys(7):
        done(under_test.store, key)
    under_test.advance(HOUR_SECONDS + 10)
    done(under_test.store, RecordKey("shop.charge", "new"))

    assert 7 == under_test.store.purge(batch=3)

    assert (1, 0) == (rows_of(under_test, "records"), under_test.store.purge())


def test_buried_work_is_never_deleted(under_test):
    """A letter would outlive its record, and its replay run as if nothing had been started before."""
    (key,) = keys(1)
    under_test.store.settle(key, claimed(under_test.store, "A", key), State.IN_PROGRESS, DYING)
    under_test.letters.bury(letter())
    under_test.advance(1_000 * DAY_SECONDS)

    assert 0 == under_test.store.purge()

    assert under_test.store.read(key).state is State.DYING
    assert under_test.letters.get("l-1") is not None


def test_a_record_past_its_retention_is_claimed_anew_before_it_is_deleted(under_test):
    """Nobody could use a key again until somebody has tidied up."""
    (key,) = keys(1)
    done(under_test.store, key)
    under_test.advance(HOUR_SECONDS + 10)

    assert admit(under_test.store, "B", key).claimed

    assert (0, "B") == (under_test.store.purge(), under_test.store.read(key).owner)


def test_locks_and_counts_go_when_nobody_needs_them(under_test):
    """A fence that is forgotten too early may be given again; one that is kept for ever fills the table."""
    locks = under_test.store.locks
    locks.release(locks.acquire(LockAsk(name="free", owner="A", lease_seconds=30.0)).held)
    locks.acquire(LockAsk(name="held", owner="A", lease_seconds=3 * DAY_SECONDS))
    locks.acquire(LockAsk(name="held", owner="B", lease_seconds=30.0), wait=True)
    under_test.starts.begin("t-1", 3)
    under_test.advance(DAY_SECONDS / 2)
    assert 1 == under_test.store.purge()
    assert (2, 0) == (rows_of(under_test, "locks"), rows_of(under_test, "waiters"))

    under_test.advance(8 * DAY_SECONDS / 6)
    under_test.store.purge()
    assert (["held"], 1) == (list(locks.names()), under_test.starts.read("t-1"))
    under_test.advance(7 * DAY_SECONDS)

    assert 2 == under_test.store.purge()
    assert 0 == under_test.starts.read("t-1")


def test_another_namespace_is_left_alone(under_test):
    """One environment would delete what another one has kept for longer."""
    (key,) = keys(1)
    done(under_test.store, key)
    under_test.advance(HOUR_SECONDS + 10)
    other = under_test.connect()
    other.house.namespace = "other"

    assert 0 == other.purge()

    assert 1 == rows_of(under_test, "records")
    other.house.connection.close()
