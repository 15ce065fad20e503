"""
Which children a worker's main process ends, and which it leaves alone.
"""

from types import SimpleNamespace

import pytest

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.store import RecordKey, Renewal, RenewedClaim
from celery_safeguards.worker.keeper import Keeper

LEASE_SECONDS = 30.0
KEY = RecordKey("shop.pay", "order-1")


class Worker:
    """A keeper without its thread: it ticks when the test says so."""

    def __init__(self):
        self.now, self.answer, self.ended = 1_000.0, Renewal.ABSENT, []
        settings = SimpleNamespace(lease_seconds=LEASE_SECONDS, store_timeout_seconds=2.0, namespace="n")
        clock = SimpleNamespace(monotonic_seconds=lambda: self.now)
        admission = SimpleNamespace(renew=self._renew)
        wiring = SimpleNamespace(settings=settings, clock=clock, admission=admission, spool=None)
        self.keeper = Keeper(wiring, self.ended.append)
        self.keeper.tick()

    def _renew(self, claims, _locks):
        return StoreView(now_us=1, epoch="e"), {owner: RenewedClaim(self.answer) for owner in claims}

    def ended_after(self, seconds, answer):
        """Return which children are ended when so much time has passed and the store answers so."""
        self.now, self.answer = self.now + seconds, answer
        self.keeper.tick()
        return self.ended


@pytest.fixture
def worker():
    worker = Worker()
    worker.keeper.keep("owner", KEY, "t1", 4711, 3_600.0)
    return worker


@pytest.mark.parametrize("answer", [Renewal.ABSENT, Renewal.TAKEN])
def test_child_that_has_not_claimed_yet_is_left_alone(worker, answer):
    """It waits for the store, or is about to be told that another one runs."""
    for _ in range(10):
        assert [] == worker.ended_after(LEASE_SECONDS / 3, answer)


def test_child_that_was_frozen_before_its_first_renewal_is_ended_when_its_claim_is_taken(worker):
    """It may have claimed before the pause, and its body went on beside its successor's, to the end."""
    assert [4711] == worker.ended_after(2 * LEASE_SECONDS, Renewal.TAKEN)


def test_child_that_was_frozen_without_a_claim_is_left_alone(worker):
    assert [] == worker.ended_after(2 * LEASE_SECONDS, Renewal.ABSENT)
