"""
A body that holds a lock of its own, by `hold`, and loses it: the claim and the lock of its delivery stand.
"""

import contextlib

import pytest

from celery_safeguards import EntityLock, Idempotent, Outcome, Safeguards, hold
from celery_safeguards.errors import LockLost
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.wiring import Wiring
from tests.support.bench import Bench

INNER, OUTER = EntityLock("stock:{number}", lease_seconds=1), EntityLock("order:{number}", lease_seconds=30)
KEY = Idempotent("ship:{number}", on_unknown="rerun")
POLICIES = {
    "keyed": Safeguards(idempotent=KEY),
    "keyed, with a lock": Safeguards(idempotent=KEY, lock=OUTER),
    "unkeyed, with a lock": Safeguards(repeatable=True, lock=OUTER),
    "unkeyed": Safeguards(repeatable=True),
}


@pytest.fixture
def bench(namespace):
    with contextlib.closing(Bench(namespace)) as bench:
        yield bench


def outlasted(bench, number):
    """Wait within a lock of its own for longer than its lease, until somebody else has it."""
    with hold(bench.app, INNER, number=number):
        bench.clock.sleep(2)
        ask = LockAsk(name=f"stock:{number}", owner="another", lease_seconds=1)
        assert Wiring.of(bench.app).locks.acquire(ask).held


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_body_that_loses_a_lock_of_its_own_is_retried(bench, policy):
    """Dropped as if its claim were gone, the message would come back after a visibility timeout, if at all."""
    starts = []

    def body(self, number):
        starts.append(number)
        if len(starts) == 1:
            outlasted(bench, number)
        return "shipped"

    bench.task(body, policy).delay(1)

    first, *_, last = bench.drain()

    assert (first.fate, last.fate, last.result) == ("acknowledged", "acknowledged", "shipped")
    assert ([1, 1], Outcome.FENCED in bench.outcomes) == (starts, False)


@pytest.mark.parametrize("policy", [POLICIES["keyed, with a lock"], POLICIES["unkeyed, with a lock"]])
def test_body_whose_own_delivery_has_lost_its_lock_is_dropped(bench, policy):
    """The control: what it wrote may be refused, and it has no right to acknowledge."""

    def body(self, number):
        for _ in range(9):
            # Other workers are seen by the store all the while.
            bench.store.renew({})
            bench.clock.sleep(OUTER.lease_seconds / 3)
        ask = LockAsk(name=f"order:{number}", owner="another", lease_seconds=30)
        assert Wiring.of(bench.app).locks.acquire(ask).held
        try:
            self.safe.checkpoint()
        except LockLost:
            outlasted(bench, number)

    bench.task(body, policy).delay(1)

    assert (bench.deliver().fate, bench.outcomes) == ("kept", [Outcome.FENCED])
