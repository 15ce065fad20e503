"""
A claim and its lock: taken together or not at all.
"""

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger.record import State
from tests.conformance.admission.calls import DONE, KEY, RACERS, RETRY, SLACK_US, admit, mark_lost, race, start
from tests.conformance.locks.calls import LOCK_LEASE_US, NAME, acquired, ask, in_line, is_given, lapsed, pass_time
from tests.conformance.locks.fused import admit_with, claimed_with, frozen, settle_with, take_with
from tests.conformance.stores import LEASE_SECONDS

OTHER = RecordKey("shop.charge", "payment:8")


class ClaimsWithLocks:
    """`admit` and `take` with a lock."""

    def test_a_key_is_claimed_with_its_lock(self, under_test):
        """The body would run without the lock that its task asks for."""
        record, lock = claimed_with(under_test.store)

        state, now_us = under_test.locks.read(NAME)
        assert record == under_test.store.read(KEY)
        assert ("A", lock.fence, {"task_id": "A"}) == (state.owner, state.fence, state.holder)
        assert (under_test.store.view().epoch, NAME) == (lock.epoch, lock.name)
        assert SLACK_US > abs(state.lease_until_us - now_us - LOCK_LEASE_US)

    def test_a_claim_whose_lock_is_busy_is_none(self, under_test):
        """A start would be counted, and after three of them work that never began would be called poison."""
        acquired(under_test.locks, "other")
        before, _ = under_test.locks.read(NAME)

        answer = admit_with(under_test.store)

        assert (False, None, None) == (answer.claimed, answer.record, answer.lock)
        assert (None, before) == (answer.barred.held, answer.barred.state)
        assert before.lease_until_us == answer.barred.barred_until_us > answer.barred.now_us
        assert None is under_test.store.read(KEY)
        assert before == under_test.locks.read(NAME)[0]

    def test_a_key_that_was_barred_is_claimed_later(self, under_test):
        """The first refusal would be the last word."""
        other = acquired(under_test.locks, "other")
        admit_with(under_test.store)
        under_test.locks.release(other)

        record, _ = claimed_with(under_test.store)

        assert (1, 1) == (record.attempt, record.lost_starts)

    def test_a_lock_stays_free_when_the_key_is_not_claimed(self, under_test):
        """A duplicate of work that is done would lock the entity, and nobody would release it."""
        under_test.store.settle(KEY, admit(under_test.store, "A").record, State.IN_PROGRESS, DONE)

        answer = admit_with(under_test.store, "B")

        assert (False, None, State.DONE) == (answer.claimed, answer.barred, answer.record.state)
        assert is_given(under_test.locks, "C")

    def test_a_message_that_claims_nothing_takes_no_lock(self, under_test):
        """It would be put off and hold the entity meanwhile."""
        answer = under_test.store.admit(KEY, "A", start(), unproven=False, epoch=None, lock=ask("A"))

        assert (False, None) == (answer.claimed, answer.lock)
        assert is_given(under_test.locks, "C")

    def test_a_duplicate_is_answered_although_the_lock_is_busy(self, under_test):
        """The result that is there would wait for an owner that has nothing to do with it."""
        record, lock = claimed_with(under_test.store)
        settle_with(under_test.store, record, lock)
        acquired(under_test.locks, "other")

        answer = admit_with(under_test.store, "B")

        assert (None, State.DONE) == (answer.barred, answer.record.state)

    def test_the_same_owner_asking_again_is_told_its_own_claim_and_lock(self, under_test):
        """An owner whose answer was lost would wait for itself, or count a lease that has begun before."""
        record, lock = claimed_with(under_test.store)
        pass_time(under_test, 10)

        again = admit_with(under_test.store)

        state, now_us = under_test.locks.read(NAME)
        assert (None, "A", record.fence, 1) == (
            again.barred,
            again.record.owner,
            again.record.fence,
            again.record.lost_starts,
        )
        assert lock.fence == state.fence
        if again.claimed:
            assert lock == again.lock
            assert state.lease_until_us >= now_us + LOCK_LEASE_US - SLACK_US

    def test_the_same_owner_asking_again_does_not_claim_what_has_lost_its_lock(self, under_test):
        """Its body would run while somebody else holds the lock."""
        claimed_with(under_test.store)
        pass_time(under_test, 25)
        acquired(under_test.locks, "other")
        before, _ = under_test.locks.read(NAME)

        again = admit_with(under_test.store)

        assert (False, None, "A") == (again.claimed, again.lock, again.record.owner)
        assert before == under_test.locks.read(NAME)[0]

    def test_of_many_callers_one_claims_and_has_the_lock(self, under_test):
        """A claim would be one owner's and its lock another's, and neither could run."""
        stores = [under_test.connect() for _ in range(RACERS)]

        answers = race(RACERS, lambda number: admit_with(stores[number], f"owner-{number}"))

        assert 1 == sum(answer.claimed for answer in answers)
        assert under_test.store.read(KEY).owner == under_test.locks.read(NAME)[0].owner

    def test_of_many_keys_that_share_a_lock_one_is_claimed(self, under_test):
        """Two operations on one entity would run together."""
        stores = [under_test.connect() for _ in range(RACERS)]
        keys = [RecordKey("shop.charge", str(number)) for number in range(RACERS)]

        answers = race(RACERS, lambda number: admit_with(stores[number], f"owner-{number}", keys[number]))

        assert 1 == sum(answer.claimed for answer in answers)
        assert 1 == sum(under_test.store.read(key) is not None for key in keys)

    def test_a_lapsed_lock_of_another_key_is_taken_with_a_claim(self, under_test):
        """The entity of an owner that died would be locked for ever."""
        late = lapsed(under_test, "other")

        _, lock = claimed_with(under_test.store)

        assert lock.fence > late.fence

    def test_a_lock_that_is_kept_for_this_owner_is_taken_with_its_claim(self, under_test):
        """Who has waited for its turn would be barred by it."""
        held = acquired(under_test.locks, "other")
        in_line(under_test.locks, "A", reserve=True)
        under_test.locks.release(held)
        assert under_test.locks.acquire(ask("A"), reserve=True, wait=True, has_waited=True).is_reserved

        assert admit_with(under_test.store, "B", OTHER).barred is not None
        assert claimed_with(under_test.store)[1].fence > held.fence

    def test_nobody_claims_with_a_lapsed_lock_after_the_store_was_away(self, under_test):
        """Whoever reconnects first would take the lock of an owner that works."""
        acquired(under_test.locks, "other")
        under_test.advance(LEASE_SECONDS)

        assert admit_with(under_test.store).barred is not None
        assert None is under_test.store.read(KEY)
        pass_time(under_test, LEASE_SECONDS + 1)
        assert admit_with(under_test.store).claimed

    def test_a_record_is_taken_with_its_lock(self, under_test):
        """A rerun would run without the lock that its task asks for."""
        record, lock = frozen(under_test)

        answer = take_with(under_test.store, under_test.store.read(KEY).rev, attempt=2)

        assert (True, "B", 2) == (answer.claimed, answer.record.owner, answer.record.attempt)
        assert answer.record == under_test.store.read(KEY)
        assert ("B", answer.lock.fence) == (under_test.locks.read(NAME)[0].owner, under_test.locks.read(NAME)[0].fence)
        assert (answer.lock.fence > lock.fence, answer.record.fence > record.fence) == (True, True)

    def test_a_record_whose_lock_is_busy_is_not_taken(self, under_test):
        """A start would be counted for a body that does not run."""
        record, lock = claimed_with(under_test.store)
        settle_with(under_test.store, record, lock, RETRY)
        acquired(under_test.locks, "other")
        before, lock_before = under_test.store.read(KEY), under_test.locks.read(NAME)[0]

        answer = take_with(under_test.store, before.rev, attempt=2, lost_starts=1)

        assert (False, None) == (answer.claimed, answer.lock)
        assert lock_before == answer.barred.state
        assert (before, lock_before) == (under_test.store.read(KEY), under_test.locks.read(NAME)[0])

    def test_no_record_is_taken_while_the_lock_is_busy(self, under_test):
        """A record would be made for a body that does not run."""
        acquired(under_test.locks, "other")

        assert take_with(under_test.store, 0).barred is not None

        assert None is under_test.store.read(KEY)

    def test_a_record_that_has_moved_gives_no_lock(self, under_test):
        """The entity would be locked for a delivery that asks again, and may have nothing to do."""
        seen = admit(under_test.store).record
        mark_lost(under_test.store, "A")

        answer = take_with(under_test.store, seen.rev)

        assert (False, None, None) == (answer.claimed, answer.lock, answer.barred)
        assert is_given(under_test.locks, "C")

    def test_a_record_that_has_moved_is_told_although_the_lock_is_busy(self, under_test):
        """A delivery whose work was done meanwhile would wait for a lock that it does not need."""
        seen = admit(under_test.store).record
        under_test.store.settle(KEY, seen, State.IN_PROGRESS, DONE)
        acquired(under_test.locks, "other")

        answer = take_with(under_test.store, seen.rev)

        assert (None, State.DONE) == (answer.barred, answer.record.state)

    def test_taking_twice_tells_the_owner_that_it_holds_claim_and_lock(self, under_test):
        """An owner whose answer was lost would be told that somebody else was faster."""
        frozen(under_test)
        seen = under_test.store.read(KEY)
        first = take_with(under_test.store, seen.rev, attempt=2)

        again = take_with(under_test.store, seen.rev, attempt=2)

        assert (True, first.record, first.lock) == (again.claimed, again.record, again.lock)

    def test_taking_twice_does_not_claim_what_has_lost_its_lock(self, under_test):
        """
        The second try would throw out whoever has the lock by then.

        t0 B takes claim and lock, the answer is lost   t1 the lock lapses   t2 C takes it   t3 B's second try arrives
        """
        frozen(under_test)
        seen = under_test.store.read(KEY)
        take_with(under_test.store, seen.rev, attempt=2)
        pass_time(under_test, 25)
        acquired(under_test.locks, "C")
        before, _ = under_test.locks.read(NAME)

        again = take_with(under_test.store, seen.rev, attempt=2)

        assert (False, None) == (again.claimed, again.lock)
        assert before == under_test.locks.read(NAME)[0]
