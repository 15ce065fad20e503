"""
A store that is new or was away: who holds a lock keeps it, and nobody else gets it for one lease.
"""

from dataclasses import replace

import pytest

from celery_safeguards.errors import LockLost
from tests.conformance.admission.calls import SLACK_US
from tests.conformance.locks.calls import (
    LOCK_LEASE_US,
    NAME,
    acquired,
    ask,
    is_given,
    lapsed,
    owner_alone,
    pass_time,
    waiters,
)
from tests.conformance.stores import LEASE_SECONDS


class Outages:
    """The store was away: owners could not renew, and live."""

    def test_a_lapsed_lock_is_not_given_for_one_lease_after_the_store_was_away(self, under_test):
        """Whoever reconnects first would take the lock of an owner that works."""
        acquired(under_test.locks)
        under_test.advance(LEASE_SECONDS)

        grant = under_test.locks.acquire(ask("B"))

        assert grant.held is None
        assert SLACK_US > abs(grant.barred_until_us - grant.now_us - LEASE_SECONDS * 1_000_000)
        pass_time(under_test, LEASE_SECONDS - 5)
        assert not is_given(under_test.locks, "B")
        pass_time(under_test, 6)
        assert is_given(under_test.locks, "B")

    def test_its_owner_renews_it_in_that_pause(self, under_test):
        """The pause would be for nothing."""
        held = acquired(under_test.locks)
        under_test.advance(LEASE_SECONDS)
        assert not is_given(under_test.locks, "B")

        assert [True] == under_test.locks.renew([held])

        assert held.fence == under_test.locks.read(NAME)[0].fence

    def test_its_owner_releases_it_in_that_pause(self, under_test):
        """What nobody holds any more would be kept from everybody."""
        held = acquired(under_test.locks)
        under_test.advance(LEASE_SECONDS)
        under_test.locks.release(held)

        assert is_given(under_test.locks, "B")

    def test_a_free_lock_is_given_at_once_after_the_store_was_away(self, under_test):
        """All work would stand still for a lease, for no owner."""
        under_test.locks.release(acquired(under_test.locks))
        under_test.advance(LEASE_SECONDS)

        assert is_given(under_test.locks, "B")

    def test_who_waits_in_that_pause_is_in_the_line(self, under_test):
        """It would be overtaken at its end."""
        held = acquired(under_test.locks)
        under_test.advance(LEASE_SECONDS)
        under_test.locks.acquire(ask("B"), wait=True)

        assert ["B"] == waiters(under_test.locks)
        under_test.locks.release(held)
        assert not is_given(under_test.locks, "C")

    def test_while_workers_are_heard_one_owners_silence_is_no_outage(self, under_test):
        """The lock of a worker that burned down would never be given to anybody."""
        lapsed(under_test)

        assert is_given(under_test.locks, "B")


class Wipes:
    """The store has lost everything: owners write back what they hold."""

    def test_nobody_gets_a_lock_for_one_lease_after_a_new_epoch(self, under_test):
        """The lock of an owner that works would be given away before it was written back."""
        under_test.wipe()
        grant = under_test.locks.acquire(ask("B"))
        assert grant.held is None
        assert SLACK_US > abs(grant.barred_until_us - grant.now_us - LEASE_SECONDS * 1_000_000)

        pass_time(under_test, LEASE_SECONDS - 5)
        assert not is_given(under_test.locks, "B")
        assert not under_test.locks.acquire(ask("B"), reserve=True).is_reserved

        pass_time(under_test, 6)
        assert is_given(under_test.locks, "B")

    def test_a_store_that_was_declared_new_gives_locks_at_once(self, under_test):
        """The first start of a system would wait for owners that cannot exist."""
        under_test.wipe()
        under_test.store.declare_new()

        assert is_given(under_test.locks, "B")

    def test_renewal_writes_a_lock_back_into_another_epoch(self, under_test):
        """A body that runs would be joined by a second one as soon as the store gives locks again."""
        held = acquired(under_test.locks)
        under_test.wipe()

        assert [True] == under_test.locks.renew([held])

        state, now_us = under_test.locks.read(NAME)
        assert ("A", held.fence, {"task_id": "A"}) == (state.owner, state.fence, state.holder)
        assert state.lease_until_us >= now_us + LOCK_LEASE_US - SLACK_US
        pass_time(under_test, 15)
        under_test.locks.renew([held])
        pass_time(under_test, 16)
        assert not is_given(under_test.locks, "B")

    def test_writing_back_twice_is_no_error(self, under_test):
        """The client's second try after a lost answer would say that the lock was lost."""
        held = acquired(under_test.locks)
        under_test.wipe()
        under_test.locks.renew([held])

        assert [True] == under_test.locks.renew([held])

    def test_a_lock_that_was_written_back_is_released(self, under_test):
        """It would stay for its lease although its body has ended."""
        held = acquired(under_test.locks)
        under_test.wipe()
        under_test.locks.renew([held])

        under_test.locks.release(held)

        assert is_given(under_test.locks, "B")

    def test_nothing_is_written_back_into_the_same_epoch(self, under_test):
        """A lock that is not there was not lost with the store: somebody has removed it, and may have another one."""
        held = acquired(under_test.locks)
        under_test.lose_lock(NAME)

        assert [False] == under_test.locks.renew([held])
        assert "" == under_test.locks.read(NAME)[0].owner

    def test_nothing_is_written_back_by_the_owner_alone(self, under_test):
        """A child that has not asked yet would be given the lock by its main process, without a fence."""
        held = replace(owner_alone(acquired(under_test.locks)), epoch="older")
        under_test.wipe()

        assert [False] == under_test.locks.renew([held])
        assert "" == under_test.locks.read(NAME)[0].owner

    def test_nothing_is_written_back_over_another_owner(self, under_test):
        """An owner that was cut off since before the wipe would throw out the one that works now."""
        late = acquired(under_test.locks)
        under_test.wipe()
        under_test.store.declare_new()
        acquired(under_test.locks, "B")
        before, _ = under_test.locks.read(NAME)

        assert [False] == under_test.locks.renew([late])
        assert before == under_test.locks.read(NAME)[0]

    def test_of_two_that_write_back_the_newer_owner_has_the_lock(self, under_test):
        """
        An owner that lost the lock before the wipe would have it again, and its successor would be told that it lost.

        t0 A is frozen past its lease   t1 B takes it   t2 the store is wiped   t3 A wakes and renews   t4 B renews
        """
        late = lapsed(under_test)
        current = acquired(under_test.locks, "B")
        under_test.wipe()
        under_test.locks.renew([late])

        assert [True] == under_test.locks.renew([current])

        assert ("B", current.fence) == (under_test.locks.read(NAME)[0].owner, under_test.locks.read(NAME)[0].fence)
        assert [False] == under_test.locks.renew([late])
        with pytest.raises(LockLost):
            under_test.locks.release(late)

    def test_of_two_that_write_back_the_older_owner_comes_too_late(self, under_test):
        """The order in which they renew would decide."""
        late = lapsed(under_test)
        current = acquired(under_test.locks, "B")
        under_test.wipe()
        under_test.locks.renew([current])

        assert [False] == under_test.locks.renew([late])

        assert ("B", current.fence) == (under_test.locks.read(NAME)[0].owner, under_test.locks.read(NAME)[0].fence)

    def test_what_a_wiped_store_does_not_know_is_released_without_an_error(self, under_test):
        """A body that has ended well would be called fenced, though nobody else has had its lock."""
        held = acquired(under_test.locks)
        under_test.wipe()

        under_test.locks.release(held)

        assert "" == under_test.locks.read(NAME)[0].owner

    def test_a_release_does_not_shorten_the_pause_of_a_new_epoch(self, under_test):
        """
        A late owner would let a third one in beside its successor, which has not written back yet.

        t0 A is frozen past its lease   t1 B takes it   t2 the store is wiped   t3 A wakes and releases   t4 C asks
        """
        late = lapsed(under_test)
        acquired(under_test.locks, "B")
        under_test.wipe()

        under_test.locks.release(late)
        under_test.locks.leave(late.ask)

        assert not is_given(under_test.locks, "C")
