"""
A worker on a store that is new, or was wiped: it stands still for a lease, and says so.
"""

import logging

import pytest

from celery_safeguards.admission.memory import MemoryAdmissionStore
from celery_safeguards.worker.keeper import Keeper
from tests.support.bench import LEASE_SECONDS, Bench


@pytest.fixture
def bench():
    bench = Bench("new-store")
    yield bench
    bench.close()


def test_pause_of_a_new_store_is_told_once(bench, caplog):
    """Somebody who has just installed it would see a worker that does nothing, for half a minute."""
    bench.store._store = MemoryAdmissionStore(LEASE_SECONDS, bench.clock.wall_seconds)
    keeper = Keeper(bench.wiring, None)

    with caplog.at_level(logging.WARNING):
        keeper.tick()
        keeper.tick()

    (told,) = caplog.messages
    assert "keyed work waits 30 s" in told
    assert "safeguards store init" in told


def test_store_that_was_declared_new_is_not_spoken_of(bench, caplog):
    """A line at every start is read by nobody."""
    with caplog.at_level(logging.WARNING):
        Keeper(bench.wiring, None).tick()

    assert [] == caplog.messages
