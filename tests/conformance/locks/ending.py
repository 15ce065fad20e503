"""
The outcome of a claim and its lock: written and released together, and refused to who has lost the lock.
"""

import pytest

from celery_safeguards.admission.store import RecordKey, Renewal
from celery_safeguards.errors import LockLost, NotOurs
from celery_safeguards.ledger.record import State
from celery_safeguards.locks.store import HeldLock
from tests.conformance.admission.calls import DONE, DYING, KEY, LEASE_US, RETRY, SLACK_US, taken
from tests.conformance.locks.calls import LOCK_LEASE_US, NAME, acquired, ask, in_line, is_given, owner_alone, pass_time
from tests.conformance.locks.fused import claimed_with, frozen, is_renewed, mark_lost_with, settle_with
from tests.conformance.stores import LEASE_SECONDS

OTHER = RecordKey("shop.charge", "payment:8")
OUTCOMES = pytest.mark.parametrize("change", [DONE, RETRY, DYING], ids=["done", "retry", "dying"])


class EndingWithLocks:
    """`settle`, `mark_lost` and `renew` with locks."""

    @OUTCOMES
    def test_an_outcome_releases_the_lock(self, under_test, change):
        """The next work on the entity would wait for a lease that nobody needs, or for a retry in an hour."""
        record, lock = claimed_with(under_test.store)

        settle_with(under_test.store, record, lock, change)

        assert change.fields["state"] is under_test.store.read(KEY).state
        assert acquired(under_test.locks, "B").fence > lock.fence

    def test_an_outcome_gives_the_lock_to_who_waits_and_wakes_it(self, under_test):
        """Tasks with a key would leave their line standing."""
        record, lock = claimed_with(under_test.store)
        in_line(under_test.locks, "X")

        settle_with(under_test.store, record, lock)

        assert not is_given(under_test.locks, "newcomer")
        assert under_test.locks.read(NAME)[0].fence == under_test.locks.wait(ask("X"), 1.0) > lock.fence

    def test_an_outcome_keeps_the_lock_for_who_takes_it_with_a_claim(self, under_test):
        """Its claim would find the lock busy, with itself."""
        record, lock = claimed_with(under_test.store)
        in_line(under_test.locks, "X", reserve=True)

        settle_with(under_test.store, record, lock)

        assert "X" == under_test.locks.read(NAME)[0].reserved_for
        assert not is_given(under_test.locks, "newcomer")
        assert claimed_with(under_test.store, "X", OTHER)[1].fence > lock.fence

    def test_settling_twice_is_no_error_and_releases_once(self, under_test):
        """The client's second try would throw the outcome away, or free the lock of whoever has it by then."""
        record, lock = claimed_with(under_test.store)
        settle_with(under_test.store, record, lock)
        once = under_test.store.read(KEY)
        acquired(under_test.locks, "B")
        before, _ = under_test.locks.read(NAME)

        again = settle_with(under_test.store, record, lock)

        assert (State.DONE, once) == (again.state, under_test.store.read(KEY))
        assert before == under_test.locks.read(NAME)[0]

    @OUTCOMES
    def test_an_outcome_of_an_owner_that_lost_its_lock_is_refused(self, under_test, change):
        """
        It would be recorded as done what two have done at the same time.

        t0 A has claim and lock   t1 its lock lapses   t2 B works on the entity, by another key   t3 A settles
        """
        record, lock = claimed_with(under_test.store)
        pass_time(under_test, 25)
        acquired(under_test.locks, "B")
        before, lock_before = under_test.store.read(KEY), under_test.locks.read(NAME)[0]

        with pytest.raises(LockLost, match=rf"order:7: lost at fence {lock.fence}: .*B.* at fence {lock_before.fence}"):
            settle_with(under_test.store, record, lock, change)

        assert (before, lock_before) == (under_test.store.read(KEY), under_test.locks.read(NAME)[0])

    def test_an_outcome_is_refused_also_after_the_next_owner_has_released(self, under_test):
        """Nobody holds the lock at that moment, but both have worked."""
        record, lock = claimed_with(under_test.store)
        pass_time(under_test, 25)
        under_test.locks.release(acquired(under_test.locks, "B"))
        before = under_test.store.read(KEY)

        with pytest.raises(LockLost):
            settle_with(under_test.store, record, lock)

        assert before == under_test.store.read(KEY)

    def test_an_outcome_under_a_lapsed_lock_that_nobody_took_is_written(self, under_test):
        """A result that is there would be thrown away because a clock says so."""
        record, lock = frozen(under_test)

        settle_with(under_test.store, record, lock)

        assert State.DONE is under_test.store.read(KEY).state
        assert "" == under_test.locks.read(NAME)[0].owner

    def test_an_outcome_under_a_lapsed_lock_leaves_what_is_kept_for_another(self, under_test):
        """Whoever asks next would overtake the one whose turn it is."""
        record, lock = frozen(under_test)
        under_test.locks.acquire(ask("X"), reserve=True)

        settle_with(under_test.store, record, lock)

        assert State.DONE is under_test.store.read(KEY).state
        assert "X" == under_test.locks.read(NAME)[0].reserved_for
        assert not is_given(under_test.locks, "newcomer")

    def test_an_outcome_is_written_by_who_knows_no_fence(self, under_test):
        """An owner that resumed its own claim, and knows its lock by the owner alone, could record nothing."""
        record, lock = claimed_with(under_test.store)

        settle_with(under_test.store, record, owner_alone(lock))

        assert State.DONE is under_test.store.read(KEY).state
        assert is_given(under_test.locks, "B")

    def test_an_outcome_of_who_knows_no_fence_is_refused_while_somebody_else_has_the_lock(self, under_test):
        """What is not known would count as good."""
        record, lock = frozen(under_test)
        acquired(under_test.locks, "B")
        before = under_test.store.read(KEY)

        with pytest.raises(LockLost):
            settle_with(under_test.store, record, owner_alone(lock))

        assert before == under_test.store.read(KEY)

    def test_an_outcome_of_who_has_lost_the_claim_leaves_the_lock_alone(self, under_test):
        """A late owner would free the lock under the new owner's body."""
        record, lock = frozen(under_test)
        taken(under_test.store, "B")
        acquired(under_test.locks, "B")
        before, lock_before = under_test.store.read(KEY), under_test.locks.read(NAME)[0]

        with pytest.raises(NotOurs):
            settle_with(under_test.store, record, lock)

        assert (before, lock_before) == (under_test.store.read(KEY), under_test.locks.read(NAME)[0])

    def test_an_outcome_whose_record_is_gone_leaves_the_lock_alone(self, under_test):
        """It could not be told from one that was written."""
        record, lock = claimed_with(under_test.store)
        under_test.expire(KEY)
        before, _ = under_test.locks.read(NAME)

        with pytest.raises(NotOurs):
            settle_with(under_test.store, record, lock)

        assert before == under_test.locks.read(NAME)[0]

    def test_an_outcome_is_written_anew_after_a_wipe(self, under_test):
        """The work would run again, and its lock would be no reason against it: nobody else has had it."""
        record, lock = claimed_with(under_test.store)
        under_test.wipe()

        settle_with(under_test.store, record, lock, recreate=True)

        assert State.DONE is under_test.store.read(KEY).state
        assert "" == under_test.locks.read(NAME)[0].owner

    def test_an_outcome_is_written_anew_and_releases_what_was_written_back(self, under_test):
        """The lock that the main process has written back would stay for its lease."""
        record, lock = claimed_with(under_test.store)
        under_test.wipe()
        under_test.locks.renew([lock])

        settle_with(under_test.store, record, lock, recreate=True)

        assert State.DONE is under_test.store.read(KEY).state
        assert is_given(under_test.locks, "B")

    def test_an_outcome_is_not_written_anew_if_somebody_else_has_the_lock(self, under_test):
        """A wipe would make good what is refused without it."""
        record, lock = claimed_with(under_test.store)
        under_test.wipe()
        under_test.store.declare_new()
        acquired(under_test.locks, "B")

        with pytest.raises(LockLost):
            settle_with(under_test.store, record, lock, recreate=True)

        assert None is under_test.store.read(KEY)

    def test_a_mark_of_loss_releases_the_lock(self, under_test):
        """A killed task's entity would be locked for a lease, though everybody knows that it is dead."""
        claimed_with(under_test.store)
        in_line(under_test.locks, "X")

        assert mark_lost_with(under_test.store, "A") is True

        assert under_test.store.read(KEY).lost_us > 0
        assert not is_given(under_test.locks, "newcomer")
        assert is_given(under_test.locks, "X")

    def test_a_second_mark_of_loss_leaves_a_newer_owner_alone(self, under_test):
        """The client's second try would free the lock of whoever has it by then."""
        claimed_with(under_test.store)
        mark_lost_with(under_test.store, "A")
        acquired(under_test.locks, "B")
        before, _ = under_test.locks.read(NAME)

        assert mark_lost_with(under_test.store, "A") is True

        assert before == under_test.locks.read(NAME)[0]

    def test_the_lock_of_a_dead_owner_without_a_claim_is_released(self, under_test):
        """A child that died after its outcome, or before its claim, would leave the lock behind."""
        acquired(under_test.locks, "A")

        assert mark_lost_with(under_test.store, "A") is False

        assert is_given(under_test.locks, "B")

    def test_claims_and_locks_are_renewed_in_one_call(self, under_test):
        """One of the two leases would end under a body that runs."""
        claimed_with(under_test.store)
        acquired(under_test.locks, "alone", "order:8")
        pass_time(under_test, 15)

        view, renewed = under_test.store.renew(
            {"A": KEY}, [owner_alone_of("A", NAME), owner_alone_of("alone", "order:8")]
        )

        assert under_test.store.read(KEY) == renewed["A"].record
        assert renewed["A"].record.lease_until_us >= view.now_us + LEASE_US - SLACK_US
        for owner, name in [("A", NAME), ("alone", "order:8")]:
            state, now_us = under_test.locks.read(name)
            assert state.fence == renewed[owner].lock_fence
            assert state.lease_until_us >= now_us + LOCK_LEASE_US - SLACK_US
        assert (Renewal.ABSENT, None) == (renewed["alone"].renewal, renewed["alone"].record)

    def test_many_claims_and_locks_keep_their_owners_in_one_call(self, under_test):
        """One owner would be told of the loss of another's lock."""
        claims = {f"owner-{number}": RecordKey("shop.charge", str(number)) for number in range(20)}
        locks = []
        for number, (owner, key) in enumerate(claims.items()):
            assert under_test.store.admit(key, owner, DONE, unproven=True, epoch=None).claimed
            if number % 2:
                locks.append(acquired(under_test.locks, owner, f"order:{number}"))
        under_test.locks.release(locks[3])

        _, renewed = under_test.store.renew(claims, locks)

        fences = {each.owner: each.fence for each in locks if each is not locks[3]}
        assert fences == {owner: answer.lock_fence for owner, answer in renewed.items() if answer.lock_fence}

    def test_a_lost_lock_is_told_beside_a_claim_that_holds(self, under_test):
        """The body would go on under a claim that is its own, and a lock that is not."""
        _, lock = claimed_with(under_test.store)
        pass_time(under_test, 25)
        acquired(under_test.locks, "B")
        before, _ = under_test.locks.read(NAME)

        _, renewed = under_test.store.renew({"A": KEY}, [lock])

        assert (True, 0) == (is_renewed(renewed["A"]), renewed["A"].lock_fence)
        assert before == under_test.locks.read(NAME)[0]

    def test_a_lost_claim_is_told_beside_a_lock_that_holds(self, under_test):
        """The lock of a body that must end would lapse before it has ended."""
        _, lock = claimed_with(under_test.store)
        taken(under_test.store, "B")

        _, renewed = under_test.store.renew({"A": KEY}, [lock])

        assert (Renewal.TAKEN, lock.fence) == (renewed["A"].renewal, renewed["A"].lock_fence)

    def test_renewal_of_claims_writes_a_lock_back_into_another_epoch(self, under_test):
        """A worker's locks would be lost with the store, and given to others while its bodies run."""
        _, lock = claimed_with(under_test.store)
        under_test.wipe()

        _, renewed = under_test.store.renew({"A": KEY}, [lock])

        assert lock.fence == renewed["A"].lock_fence == under_test.locks.read(NAME)[0].fence
        pass_time(under_test, 15)
        under_test.store.renew({"A": KEY}, [lock])
        pass_time(under_test, LEASE_SECONDS - 14)
        assert not is_given(under_test.locks, "B")

    def test_renewal_with_locks_shows_that_a_worker_is_alive(self, under_test):
        """A fleet that holds locks and no claims would count as cut off."""
        lock = acquired(under_test.locks)
        for _ in range(6):
            under_test.advance(10)
            under_test.store.renew({}, [lock])

        view = under_test.store.view()
        assert view.takeover_from_us <= view.now_us


def owner_alone_of(owner, name):
    """A lock as a worker's main process knows it before its first renewal."""
    return HeldLock(ask=ask(owner, name))
