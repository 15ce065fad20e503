"""
What the safeguards cost a database: statements, beside the beginning and the end of transactions.
"""

import pytest
from django.db.backends.sqlite3.features import DatabaseFeatures

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger.record import State
from celery_safeguards.locks.store import HeldLock, LockAsk
from tests.conformance import stores
from tests.conformance.admission.calls import DONE, KEY, RETRY, admit, claimed, start
from tests.django.conftest import counted

ASK = LockAsk(name="order:7", owner="A", lease_seconds=30.0)


def admit_with(store, owner="A"):
    ask = LockAsk(name="order:7", owner=owner, lease_seconds=30.0)
    return store.admit(KEY, owner, start(), unproven=True, epoch=None, lock=ask)


def test_a_sqlite_that_cannot_return_what_it_wrote_is_not_asked_to(sqlite_alias, monkeypatch):
    """Every claim would fail as if the store were away (SQLite before 3.35)."""
    monkeypatch.setattr(DatabaseFeatures, "can_return_columns_from_insert", False)
    with stores.orm_under_test(sqlite_alias) as under_test, counted(under_test) as statements:
        answer = admit_with(under_test.store)
        settled = under_test.store.settle(KEY, answer.record, State.IN_PROGRESS, DONE, lock=answer.lock)

    assert (State.DONE, True) == (settled.state, answer.lock.fence > 0)
    assert not [each for each in statements.all if "RETURNING" in each]


@pytest.mark.parametrize("outcome", [DONE, RETRY], ids=["done", "retry"])
def test_a_first_delivery_costs_two_statements_and_no_transaction(under_test, statements, outcome):
    """A third one would cost every task of every user its time."""
    store = under_test.store

    store.settle(KEY, claimed(store), State.IN_PROGRESS, outcome)

    assert (2, 2) == (len(statements.all), len(statements.work))


@pytest.mark.parametrize("is_used", [False, True], ids=["new lock", "used lock"])
def test_a_first_delivery_with_a_lock_costs_four_statements_in_two_transactions(under_test, statements, is_used):
    """Its lock would cost as much again as the claim."""
    store = under_test.store
    if is_used:
        store.locks.release(store.locks.acquire(ASK).held)
    statements.clear()

    answer = admit_with(store)
    store.settle(KEY, answer.record, State.IN_PROGRESS, DONE, lock=answer.lock)

    assert (4, 8) == (len(statements.work), len(statements.all))
    assert "" == store.locks.read("order:7")[0].owner


@pytest.mark.parametrize("state", [DONE, RETRY, None], ids=["done", "retry", "busy"])
def test_a_duplicate_costs_three_statements_and_no_transaction(under_test, statements, state):
    """A flood of duplicates would hold rows that the work needs."""
    record = claimed(under_test.store)
    if state is not None:
        under_test.store.settle(KEY, record, State.IN_PROGRESS, state)
    statements.clear()

    admit(under_test.store, "B")

    assert (3, 3) == (len(statements.all), len(statements.work))


def test_a_tick_of_200_owners_costs_a_handful_of_statements(under_test, statements):
    """A worker with many children could not renew them all in time."""
    claims = {f"owner-{number}": RecordKey("shop.charge", str(number)) for number in range(200)}
    locks = []
    for owner, key in claims.items():
        ask = LockAsk(name=f"order:{key.key}", owner=owner, lease_seconds=30.0)
        answer = under_test.store.admit(key, owner, start(), unproven=True, epoch=None, lock=ask)
        locks.append(HeldLock(ask=ask, fence=answer.lock.fence, epoch=answer.lock.epoch))
    statements.clear()

    _, renewed = under_test.store.renew(claims, locks)

    assert all(each.lock_fence for each in renewed.values())
    # The store's state, the rows of each table, and one batch of updates for each.
    assert 5 == len(statements.work)


def test_an_unkeyed_delivery_costs_nothing(under_test, statements):
    """A store that is made for an app asks nothing before it is asked."""
    under_test.connect()

    assert [] == statements.all
