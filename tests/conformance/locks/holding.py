"""
Who holds a lock: one of many, until it is released or has lapsed; and what a late owner may not do.
"""

import pytest

from celery_safeguards.errors import LockLost
from celery_safeguards.locks.store import HeldLock
from tests.conformance.admission.calls import RACERS, SLACK_US, race
from tests.conformance.locks.calls import (
    LOCK_LEASE_SECONDS,
    LOCK_LEASE_US,
    NAME,
    acquired,
    ask,
    is_given,
    lapsed,
    owner_alone,
    pass_time,
)


class Holding:
    """`acquire`, `release` and `read`."""

    def test_a_free_lock_is_taken(self, locks):
        """Nothing that needs the lock would ever run."""
        held = acquired(locks)

        state, now_us = locks.read(NAME)
        assert ("A", held.fence, {"task_id": "A"}) == (state.owner, state.fence, state.holder)
        assert state.is_held(now_us)

    def test_a_lock_is_held_for_its_own_lease(self, under_test):
        """The lease of claims would free the lock of a task that asked for a longer one, or keep a shorter one."""
        acquired(under_test.locks)

        state, now_us = under_test.locks.read(NAME)
        assert SLACK_US > abs(state.lease_until_us - now_us - LOCK_LEASE_US)
        assert SLACK_US > abs(state.since_us - now_us)

    def test_a_held_lock_is_not_given_and_its_owner_is_told(self, locks):
        """Two bodies would work on one entity, and the log of the second would not say who is in its way."""
        held = acquired(locks)

        grant = locks.acquire(ask("B"))

        state, _ = locks.read(NAME)
        assert (None, False) == (grant.held, grant.is_reserved)
        assert (held.fence, state.lease_until_us) == (state.fence, grant.barred_until_us)
        assert state == grant.state

    def test_of_many_callers_one_takes_it(self, under_test):
        """All that wait for a moment when the lock is free would find it so."""
        stores = [under_test.connect_locks() for _ in range(RACERS)]

        given = race(RACERS, lambda number: is_given(stores[number], f"owner-{number}"))

        assert 1 == sum(given)

    def test_of_many_callers_one_takes_a_lapsed_lock(self, under_test):
        """All that found the owner dead would follow it together."""
        lapsed(under_test)
        stores = [under_test.connect_locks() for _ in range(RACERS)]

        given = race(RACERS, lambda number: is_given(stores[number], f"owner-{number}"))

        assert 1 == sum(given)

    def test_locks_of_other_names_do_not_meet(self, locks):
        """All orders would wait for one."""
        acquired(locks)

        assert is_given(locks, "B", "order:8")

    def test_the_same_owner_asking_again_is_told_its_own_lock_with_a_fresh_lease(self, under_test):
        """An owner whose answer was lost would wait for itself; one that counts from its second question, too long."""
        first = acquired(under_test.locks)
        pass_time(under_test, LOCK_LEASE_SECONDS / 2)
        before, _ = under_test.locks.read(NAME)

        again = acquired(under_test.locks)

        state, now_us = under_test.locks.read(NAME)
        assert (first.fence, before.since_us) == (again.fence, state.since_us)
        assert state.lease_until_us >= now_us + LOCK_LEASE_US - SLACK_US

    def test_a_lapsed_lock_is_taken_with_a_higher_fence(self, under_test):
        """The entity of an owner that died would be locked for ever, or its late writes taken for its successor's."""
        first = acquired(under_test.locks)
        pass_time(under_test, LOCK_LEASE_SECONDS - 5)
        assert not is_given(under_test.locks, "B")
        pass_time(under_test, 6)

        second = acquired(under_test.locks, "B")

        assert second.fence > first.fence
        assert {"task_id": "B"} == under_test.locks.read(NAME)[0].holder

    def test_a_lock_that_nobody_had_is_read_as_free(self, locks):
        """A command that asks for a lock by a name that was never used would fail."""
        state, now_us = locks.read(NAME)

        assert ("", 0, {}, False) == (state.owner, state.fence, state.holder, state.is_held(now_us))

    def test_reading_tells_the_stores_time(self, under_test):
        """An age would be counted between two machines' clocks."""
        _, now_us = under_test.locks.read(NAME)

        assert SLACK_US > abs(now_us - under_test.store.view().now_us)


class Releasing:
    """`release`."""

    def test_a_released_lock_is_free_at_once(self, locks):
        """The next one would wait for the end of a lease that nobody needs."""
        first = acquired(locks)

        locks.release(first)

        assert not locks.read(NAME)[0].is_held(locks.read(NAME)[1])
        assert acquired(locks, "B").fence > first.fence

    def test_releasing_twice_is_no_error(self, locks):
        """The client's second try after a lost answer would say that the lock was lost."""
        held = acquired(locks)
        locks.release(held)
        once, _ = locks.read(NAME)

        locks.release(held)

        assert once == locks.read(NAME)[0]

    def test_a_second_release_leaves_a_newer_owner_alone(self, locks):
        """It would let a third one in beside it."""
        held = acquired(locks)
        locks.release(held)
        second = acquired(locks, "B")

        locks.release(held)

        assert ("B", second.fence) == (locks.read(NAME)[0].owner, locks.read(NAME)[0].fence)
        assert not is_given(locks, "C")

    def test_a_late_release_is_refused_and_lets_no_third_one_in(self, under_test):
        """
        A lock that is deleted by its name alone is deleted under whoever has it by then.

        t0 A takes it   t1 A is frozen past its lease   t2 B takes it   t3 A wakes and releases   t4 C asks
        """
        late = lapsed(under_test)
        acquired(under_test.locks, "B")
        before, _ = under_test.locks.read(NAME)

        with pytest.raises(LockLost, match=rf"order:7: lost at fence {late.fence}: .*B.* at fence {before.fence}"):
            under_test.locks.release(late)

        assert before == under_test.locks.read(NAME)[0]
        assert not is_given(under_test.locks, "C")

    def test_a_late_release_is_refused_also_after_its_successor_has_released(self, under_test):
        """The late owner would take what it did for protected, since nobody holds the lock at that moment."""
        late = lapsed(under_test)
        under_test.locks.release(acquired(under_test.locks, "B"))
        before, _ = under_test.locks.read(NAME)

        with pytest.raises(LockLost):
            under_test.locks.release(late)

        assert before == under_test.locks.read(NAME)[0]

    def test_a_lapsed_lock_that_nobody_took_is_released(self, under_test):
        """An owner that was only slow would be told that it lost what nobody else had."""
        held = lapsed(under_test)

        under_test.locks.release(held)

        assert "" == under_test.locks.read(NAME)[0].owner

    def test_the_main_process_releases_by_the_owner_alone(self, locks):
        """A child that was killed took the fence with it: its lock would stay for its lease."""
        held = acquired(locks)

        locks.release(owner_alone(held))

        assert is_given(locks, "B")

    def test_a_release_by_another_owner_alone_does_nothing(self, under_test):
        """A main process that is late would free what the next worker holds; it has nobody to tell either."""
        late = lapsed(under_test)
        acquired(under_test.locks, "B")
        before, _ = under_test.locks.read(NAME)

        under_test.locks.release(owner_alone(late))

        assert before == under_test.locks.read(NAME)[0]

    def test_releasing_what_was_never_taken_does_nothing(self, locks):
        """A child that died before it asked would be an error, or would leave a lock behind."""
        locks.release(owner_alone(acquired(locks, "A", "another")))

        assert "" == locks.read(NAME)[0].owner
        assert is_given(locks, "B")


class RenewingLocks:
    """`renew`."""

    def test_renewal_gives_a_whole_lease(self, under_test):
        """A long body would lose its lock while it runs."""
        held = acquired(under_test.locks)
        pass_time(under_test, LOCK_LEASE_SECONDS / 2)

        assert [True] == under_test.locks.renew([held])

        state, now_us = under_test.locks.read(NAME)
        assert state.lease_until_us >= now_us + LOCK_LEASE_US - SLACK_US
        assert (held.fence, "A") == (state.fence, state.owner)

    def test_renewing_twice_is_renewing_once(self, under_test):
        """The client's second try after a lost answer would say that the lock was lost."""
        held = acquired(under_test.locks)
        under_test.locks.renew([held])

        assert [True] == under_test.locks.renew([held])
        state, now_us = under_test.locks.read(NAME)
        assert state.lease_until_us <= now_us + LOCK_LEASE_US

    def test_a_lapsed_lock_that_nobody_took_is_renewed(self, under_test):
        """An owner that was only slow would lose its lock."""
        held = lapsed(under_test)

        assert [True] == under_test.locks.renew([held])
        assert not is_given(under_test.locks, "B")

    def test_a_late_renewal_is_refused_and_gives_nobody_a_longer_lease(self, under_test):
        """
        Renewed by its name alone, the newer owner's lock would outlive that owner, or be the late one's again.

        t0 A takes it   t1 A is frozen past its lease   t2 B takes it   t3 A wakes and renews
        """
        late = lapsed(under_test)
        acquired(under_test.locks, "B")
        before, _ = under_test.locks.read(NAME)

        assert [False, False] == under_test.locks.renew([late, owner_alone(late)])

        assert before == under_test.locks.read(NAME)[0]

    def test_a_released_lock_is_not_renewed(self, locks):
        """A renewal that was on its way when the lock was released would hold it for nobody."""
        held = acquired(locks)
        locks.release(held)

        assert [False, False] == locks.renew([held, owner_alone(held)])
        assert is_given(locks, "B")

    def test_the_main_process_renews_by_the_owner_alone(self, under_test):
        """It hears the fence from nobody: the child's lock would lapse under it."""
        held = acquired(under_test.locks)
        pass_time(under_test, LOCK_LEASE_SECONDS / 2)

        assert [True] == under_test.locks.renew([owner_alone(held)])

        state, now_us = under_test.locks.read(NAME)
        assert state.lease_until_us >= now_us + LOCK_LEASE_US - SLACK_US

    def test_what_was_not_taken_yet_is_not_renewed(self, locks):
        """The main process renews from before its child asks: it would take the lock for it."""
        assert [False] == locks.renew([HeldLock(ask=ask("A"))])
        assert "" == locks.read(NAME)[0].owner

    def test_many_locks_are_renewed_in_one_call_and_answered_in_their_order(self, under_test):
        """One lock that is lost would be told to the owner of another."""
        held = [acquired(under_test.locks, f"owner-{number}", f"order:{number}") for number in range(40)]
        under_test.locks.release(held[3])

        renewed = under_test.locks.renew(held)

        assert [number != 3 for number in range(40)] == renewed

    def test_renewing_nothing_answers_nothing(self, locks):
        """A process whose last lock was released meanwhile would fail."""
        assert [] == locks.renew([])
