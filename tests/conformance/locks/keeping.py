"""
A lock that is kept for an owner, who takes it with its claim a moment later.
"""

from tests.conformance.locks.calls import NAME, acquired, ask, in_line, is_given, lapsed, waiters


class Keeping:
    """`acquire` with `reserve`."""

    def test_a_free_lock_is_kept_and_not_taken(self, locks):
        """It would be held for a delivery whose record may answer that there is nothing to do."""
        grant = locks.acquire(ask("X"), reserve=True)

        state, now_us = locks.read(NAME)
        assert (True, None, "", "X") == (grant.is_reserved, grant.held, state.owner, state.reserved_for)
        assert not state.is_held(now_us)

    def test_a_kept_lock_is_given_to_nobody_else(self, locks):
        """The claim, which comes with the second question, would find the lock busy again, and so on for ever."""
        locks.acquire(ask("X"), reserve=True)

        assert not is_given(locks, "B")
        assert not locks.acquire(ask("C"), reserve=True).is_reserved
        assert is_given(locks, "X")

    def test_a_lapsed_lock_is_kept_too(self, under_test):
        """
        Who waited for a dead owner would be told that it is its turn, and be overtaken.

        t0 A dies   t1 its lease ends   t2 X has the lock kept   t3 C asks   t4 X asks with its claim
        """
        late = lapsed(under_test)
        assert under_test.locks.acquire(ask("X"), reserve=True).is_reserved

        assert not is_given(under_test.locks, "C")
        assert acquired(under_test.locks, "X").fence > late.fence

    def test_a_late_owner_does_not_renew_what_is_kept_for_another(self, under_test):
        """Who is told that it is its turn would find the lock held by an owner that had lost it."""
        late = lapsed(under_test)
        under_test.locks.acquire(ask("X"), reserve=True)

        assert [False] == under_test.locks.renew([late])
        assert is_given(under_test.locks, "X")

    def test_a_late_owner_does_not_free_what_is_kept_for_another(self, under_test):
        """Whoever asks next would overtake the one whose turn it is."""
        late = lapsed(under_test)
        under_test.locks.acquire(ask("X"), reserve=True)

        under_test.locks.release(late)

        assert not is_given(under_test.locks, "C")

    def test_it_is_kept_for_two_seconds(self, under_test):
        """A delivery that died between its two questions would lock the entity."""
        under_test.locks.acquire(ask("X"), reserve=True)
        under_test.advance(1)
        assert not is_given(under_test.locks, "B")
        under_test.advance(1.1)

        assert is_given(under_test.locks, "B")

    def test_asking_again_keeps_it_for_two_more_seconds(self, under_test):
        """The client's second try after a lost answer would find the lock busy, with itself."""
        under_test.locks.acquire(ask("X"), reserve=True)
        under_test.advance(1.1)

        assert under_test.locks.acquire(ask("X"), reserve=True).is_reserved

        under_test.advance(1)
        assert not is_given(under_test.locks, "B")

    def test_a_lock_that_is_held_is_not_kept(self, locks):
        """It would be taken away from its owner two seconds later."""
        acquired(locks)
        before, _ = locks.read(NAME)

        assert not locks.acquire(ask("X"), reserve=True).is_reserved
        assert before == locks.read(NAME)[0]

    def test_its_own_lock_stays_its_own(self, locks):
        """An owner whose answer was lost would free the lock by asking again in another way."""
        held = acquired(locks)

        assert locks.acquire(ask("A"), reserve=True).is_reserved

        assert ("A", held.fence) == (locks.read(NAME)[0].owner, locks.read(NAME)[0].fence)
        assert held.fence == acquired(locks).fence

    def test_who_has_it_kept_after_waiting_waits_no_more(self, under_test):
        """The next release would keep the lock for the one that has had it."""
        held = acquired(under_test.locks)
        for owner in ("X", "B"):
            in_line(under_test.locks, owner, reserve=True)
            under_test.advance(0.1)
        under_test.locks.release(held)

        assert under_test.locks.acquire(ask("X"), reserve=True, wait=True, has_waited=True).is_reserved

        assert ["B"] == waiters(under_test.locks)
        assert is_given(under_test.locks, "X")
