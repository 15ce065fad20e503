"""
Waiting for a lock in turn: who has waited longest and lives is given it next, and nobody waits for the dead.
"""

import time

import pytest

from celery_safeguards.locks.store import HeldLock
from tests.conformance.admission.calls import SLACK_US
from tests.conformance.locks.calls import (
    GIVEN_US,
    LOCK_LEASE_SECONDS,
    LOCK_LEASE_US,
    NAME,
    acquired,
    ask,
    in_line,
    is_given,
    pass_time,
    waiters,
)

# What stands behind `waits`: whoever waits is given the lock, or has it kept to take it with a claim.
WAYS = pytest.mark.parametrize("reserve", [False, True], ids=["given", "kept"])


def let_wait(under_test, *owners, reserve=False, apart_seconds=0.1):
    """Let owners wait for a lock that is held, one after another."""
    for owner in owners:
        in_line(under_test.locks, owner, reserve=reserve)
        under_test.advance(apart_seconds)


def next_of(locks):
    """Whose turn it is: who was given the lock, or has it kept."""
    state, _ = locks.read(NAME)
    return state.owner or state.reserved_for


class Lines:
    """`waiting`, and what a release does for who waits."""

    def test_who_waits_is_told_longest_first(self, under_test):
        """A person could not see who is held up, and by what."""
        acquired(under_test.locks)
        let_wait(under_test, "X", "B")
        let_wait(under_test, "M", reserve=True)

        waiting = under_test.locks.waiting(NAME)

        assert [("X", {"task_id": "X"}), ("B", {"task_id": "B"}), ("M", {"task_id": "M"})] == [
            (each.owner, each.holder) for each in waiting
        ]
        assert sorted(each.since_us for each in waiting) == [each.since_us for each in waiting]

    def test_who_asks_without_waiting_is_not_in_the_line(self, locks):
        """The lock would be given to a message that was put off for minutes."""
        held = acquired(locks)

        assert not is_given(locks, "B")

        assert [] == waiters(locks)
        locks.release(held)
        assert "" == next_of(locks)

    def test_nobody_waits_for_a_lock_that_nobody_had(self, locks):
        """A command would fail at a name that was never used."""
        assert [] == waiters(locks)

    @WAYS
    def test_a_released_lock_goes_to_who_has_waited_longest(self, under_test, reserve):
        """Whoever asks at the right moment would overtake all that wait."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B", reserve=reserve)

        under_test.locks.release(held)

        assert "X" == next_of(under_test.locks)
        assert not is_given(under_test.locks, "newcomer")
        assert not is_given(under_test.locks, "B")
        assert acquired(under_test.locks, "X").fence > held.fence

    def test_who_is_given_the_lock_holds_it_with_a_lease_of_two_seconds(self, under_test):
        """Who died waiting would bar all others for a whole lease."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X")

        under_test.locks.release(held)

        state, now_us = under_test.locks.read(NAME)
        assert ("X", {"task_id": "X"}, []) == (state.owner, state.holder, waiters(under_test.locks))
        assert now_us < state.lease_until_us <= now_us + GIVEN_US

    def test_who_was_given_the_lock_is_told_its_fence(self, under_test):
        """A second question would cost as much as polling."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X")
        under_test.locks.release(held)

        fence = under_test.locks.wait(ask("X"), 1.0)

        assert under_test.locks.read(NAME)[0].fence == fence > held.fence

    def test_who_missed_the_word_is_told_when_it_asks(self, under_test):
        """An owner whose answer was lost would wait for itself."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X")
        under_test.locks.release(held)
        fence = under_test.locks.read(NAME)[0].fence

        grant = under_test.locks.acquire(ask("X"), wait=True, has_waited=True)

        state, now_us = under_test.locks.read(NAME)
        assert (fence, LOCK_LEASE_SECONDS) == (grant.held.fence, grant.lease_seconds)
        assert state.lease_until_us >= now_us + LOCK_LEASE_US - SLACK_US

    def test_what_was_given_is_renewed_for_a_whole_lease(self, under_test):
        """Its body would lose the lock after two seconds."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X")
        under_test.locks.release(held)

        assert [True] == under_test.locks.renew([HeldLock(ask=ask("X"), fence=under_test.locks.wait(ask("X"), 1.0))])

        state, now_us = under_test.locks.read(NAME)
        assert state.lease_until_us >= now_us + LOCK_LEASE_US - SLACK_US

    @WAYS
    def test_asking_again_keeps_the_place(self, under_test, reserve):
        """Who shows that it lives would go to the end of the line each second."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B", "X", reserve=reserve)

        assert ["X", "B"] == waiters(under_test.locks)
        under_test.locks.release(held)

        assert "X" == next_of(under_test.locks)

    @WAYS
    def test_who_was_not_heard_lately_is_skipped(self, under_test, reserve):
        """Each release would give the lock to somebody who died while it waited."""
        held = acquired(under_test.locks)
        let_wait(under_test, "dead", "B", reserve=reserve)
        under_test.advance(2)
        in_line(under_test.locks, "B", reserve=reserve)
        under_test.advance(2)

        assert ["B"] == waiters(under_test.locks)
        under_test.locks.release(held)

        assert "B" == next_of(under_test.locks)

    @WAYS
    def test_who_was_heard_within_a_second_is_not_skipped(self, under_test, reserve):
        """A waiter that lives, and was asked for a sign each second, would lose its turn."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B", reserve=reserve, apart_seconds=0.5)

        under_test.locks.release(held)

        assert "X" == next_of(under_test.locks)

    @WAYS
    def test_nobody_lives_in_the_line_then_anybody_gets_the_lock(self, under_test, reserve):
        """A lock would be given to the dead until they are forgotten."""
        held = acquired(under_test.locks)
        let_wait(under_test, "dead", "dead too", reserve=reserve)
        under_test.advance(4)

        under_test.locks.release(held)

        assert is_given(under_test.locks, "newcomer")

    @WAYS
    def test_who_does_not_come_for_its_turn_bars_the_others_for_two_seconds(self, under_test, reserve):
        """A waiter that died after it was woken would keep everybody out."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", reserve=reserve)
        under_test.locks.release(held)
        under_test.advance(1)

        grant = under_test.locks.acquire(ask("newcomer"))
        assert (None, "X") == (grant.held, grant.state.owner or grant.state.reserved_for)
        assert grant.now_us < grant.barred_until_us <= grant.now_us + GIVEN_US
        under_test.advance(1.1)

        assert acquired(under_test.locks, "newcomer").fence > held.fence

    @WAYS
    def test_who_comes_late_for_its_turn_still_gets_a_free_lock(self, under_test, reserve):
        """It would be barred by its own turn."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", reserve=reserve)
        under_test.locks.release(held)
        under_test.advance(5)

        assert is_given(under_test.locks, "X")

    @WAYS
    def test_who_comes_too_late_for_its_turn_finds_the_lock_held(self, under_test, reserve):
        """
        A waiter that was frozen after it was woken would believe the word that it finds.

        t0 X is given the lock, and frozen   t1 two seconds pass   t2 C takes it   t3 X wakes
        """
        held = acquired(under_test.locks)
        let_wait(under_test, "X", reserve=reserve)
        under_test.locks.release(held)
        under_test.advance(3)
        acquired(under_test.locks, "C")
        before, _ = under_test.locks.read(NAME)

        late = HeldLock(ask=ask("X"), fence=under_test.locks.wait(ask("X"), 0.0))

        assert [False] == under_test.locks.renew([late])
        assert not is_given(under_test.locks, "X")
        assert before == under_test.locks.read(NAME)[0]

    @WAYS
    def test_who_was_served_waits_no_more(self, under_test, reserve):
        """The next release would give the lock to the one that has had it."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B", reserve=reserve)
        under_test.locks.release(held)

        served = under_test.locks.acquire(ask("X"), wait=True, has_waited=True).held

        assert ["B"] == waiters(under_test.locks)
        under_test.locks.release(served)
        assert "B" == next_of(under_test.locks)

    @WAYS
    def test_a_release_that_is_sent_twice_serves_one(self, under_test, reserve):
        """The client's second try after a lost answer would say that the lock was lost, or give it away once more."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B", reserve=reserve)
        under_test.locks.release(held)
        once, _ = under_test.locks.read(NAME)

        under_test.locks.release(held)

        assert once == under_test.locks.read(NAME)[0]

    def test_a_lapsed_lock_is_given_to_a_waiter(self, under_test):
        """Who waits would wait for an owner that is dead."""
        acquired(under_test.locks)
        pass_time(under_test, LOCK_LEASE_SECONDS - 1)
        let_wait(under_test, "X")
        under_test.advance(1)

        assert under_test.locks.acquire(ask("X"), wait=True, has_waited=True).held is not None

    def test_who_changes_its_mind_is_served_as_it_asked_last(self, under_test):
        """The lock would be given to who asks for it with its claim, and its claim would come under another fence."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X")
        let_wait(under_test, "X", reserve=True)

        under_test.locks.release(held)

        assert ("", "X") == (under_test.locks.read(NAME)[0].owner, under_test.locks.read(NAME)[0].reserved_for)


class Leaving:
    """`leave`."""

    @WAYS
    def test_who_leaves_waits_no_more(self, under_test, reserve):
        """The lock would be given to a message that was put off."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B", reserve=reserve)

        under_test.locks.leave(ask("X"))

        assert ["B"] == waiters(under_test.locks)
        under_test.locks.release(held)
        assert "B" == next_of(under_test.locks)

    @WAYS
    def test_leaving_passes_a_kept_lock_on_to_the_next(self, under_test, reserve):
        """Those behind it would lose two seconds, and then their order."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", reserve=True)
        let_wait(under_test, "B", "C", reserve=reserve)
        under_test.locks.release(held)

        under_test.locks.leave(ask("X"))

        assert "B" == next_of(under_test.locks)
        assert not is_given(under_test.locks, "C")
        assert is_given(under_test.locks, "B")

    def test_leaving_frees_a_kept_lock_that_nobody_waits_for(self, under_test):
        """The next one would wait two seconds for nobody."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", reserve=True)
        under_test.locks.release(held)

        under_test.locks.leave(ask("X"))

        assert is_given(under_test.locks, "newcomer")

    def test_leaving_twice_passes_the_lock_on_once(self, under_test):
        """The client's second try after a lost answer would give the turn of the next one away."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B", "C", reserve=True)
        under_test.locks.release(held)
        under_test.locks.leave(ask("X"))
        once, _ = under_test.locks.read(NAME)

        under_test.locks.leave(ask("X"))

        assert once == under_test.locks.read(NAME)[0]

    def test_leaving_is_not_releasing(self, locks):
        """An owner that gives up its place by habit would lose the lock under its body."""
        acquired(locks)
        before, _ = locks.read(NAME)

        locks.leave(ask("A"))

        assert before == locks.read(NAME)[0]

    def test_who_leaves_and_releases_gives_back_what_it_was_given_meanwhile(self, under_test):
        """Whoever gives up at the very moment of its turn would hold the lock for two seconds more."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B")
        under_test.locks.release(held)

        under_test.locks.leave(ask("X"))
        under_test.locks.release(HeldLock(ask=ask("X")))

        assert "B" == next_of(under_test.locks)

    def test_who_was_never_in_the_line_leaves_nothing(self, locks):
        """Giving up after an answer that was lost would be an error."""
        locks.leave(ask("nobody"))

        assert "" == next_of(locks)


class Waking:
    """`wait`. A word that was there before the wait began wakes as well as one that comes: none is missed."""

    @WAYS
    def test_whose_turn_it_is_is_woken(self, under_test, reserve):
        """It would find out a second later, and the lock would be nobody's meanwhile."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", reserve=reserve)
        under_test.locks.release(held)

        assert 0.5 > seconds_of(lambda: under_test.locks.wait(ask("X"), 1.0))

    @WAYS
    def test_who_comes_next_by_a_leaving_is_woken(self, under_test, reserve):
        """The lock would be kept for somebody who does not know."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", reserve=True)
        let_wait(under_test, "B", reserve=reserve)
        under_test.locks.release(held)
        under_test.locks.leave(ask("X"))

        assert 0.5 > seconds_of(lambda: under_test.locks.wait(ask("B"), 1.0))

    @WAYS
    def test_who_is_not_next_waits_on(self, under_test, reserve):
        """All would ask at each release: with a thousand in the line, a thousand questions for one lock."""
        held = acquired(under_test.locks)
        let_wait(under_test, "X", "B", reserve=reserve)
        under_test.locks.release(held)

        assert 0.2 <= seconds_of(lambda: under_test.locks.wait(ask("B"), 0.2)) + 0.01

    def test_who_waits_while_nothing_happens_is_told_to_ask_again(self, under_test):
        """It would take the end of its patience for the lock."""
        acquired(under_test.locks)
        let_wait(under_test, "X")

        assert 0 == under_test.locks.wait(ask("X"), 0.05)

    def test_nobody_waits_for_more_than_a_second(self, under_test):
        """Who waits could show no sign of life, and would be skipped."""
        acquired(under_test.locks)
        let_wait(under_test, "X")

        assert 10 > seconds_of(lambda: under_test.locks.wait(ask("X"), 60.0))

    def test_waiting_for_no_time_returns(self, under_test):
        """A patience that is just over would become one without end."""
        acquired(under_test.locks)
        let_wait(under_test, "X")

        assert 10 > seconds_of(lambda: under_test.locks.wait(ask("X"), 0.0))


def seconds_of(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began
