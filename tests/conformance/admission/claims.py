"""
Who gets a claim: one of many, on a key without a record or on a record as it was seen.
"""

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger.record import State
from tests.conformance.admission.calls import (
    KEY,
    LEASE_US,
    RACERS,
    SLACK_US,
    admit,
    claimed,
    mark_lost,
    race,
    start,
    taken,
)
from tests.conformance.stores import LEASE_SECONDS


class Claims:
    """`admit` and `take`."""

    def test_a_key_without_a_record_is_claimed(self, store):
        """Nothing would ever run."""
        answer = admit(store)

        assert (True, "A", State.IN_PROGRESS) == (answer.claimed, answer.record.owner, answer.record.state)

    def test_admit_answers_with_the_record_as_it_is_stored(self, store):
        """A decision on what only this process believes would be written onto something else."""
        answer = admit(store)

        assert answer.record == store.read(KEY)

    def test_a_key_with_a_record_is_not_claimed(self, store):
        """A second delivery would start the body again."""
        first = claimed(store)

        answer = admit(store, "B")

        assert (False, first) == (answer.claimed, answer.record)

    def test_of_many_callers_one_claims_by_admit(self, under_test):
        """Two deliveries of one message would both run the body."""
        stores = [under_test.connect() for _ in range(RACERS)]

        answers = race(RACERS, lambda number: admit(stores[number], f"owner-{number}"))

        assert 1 == sum(answer.claimed for answer in answers)
        assert {under_test.store.read(KEY).owner} == {answer.record.owner for answer in answers}

    def test_the_same_owner_asking_again_is_told_its_own_record(self, store):
        """An owner whose answer was lost would wait for itself until the lease ends."""
        first = claimed(store)

        again = admit(store).record

        assert (first.owner, first.fence, first.attempt) == (again.owner, again.fence, again.attempt)

    def test_an_owner_that_is_told_that_it_claimed_has_a_whole_lease(self, under_test):
        """It counts its lease from its own question, and would call the outside after others may take over."""
        claimed(under_test.store)
        under_test.advance(LEASE_SECONDS / 2)

        again = admit(under_test.store)

        left_us = under_test.store.read(KEY).lease_until_us - again.view.now_us
        assert not again.claimed or left_us >= LEASE_US - SLACK_US

    def test_a_message_that_proves_an_earlier_start_claims_nothing(self, store):
        """The store has forgotten that start, and its effect would be doubled."""
        answer = admit(store, unproven=False)

        assert (False, None) == (answer.claimed, answer.record)

    def test_a_message_of_another_epoch_claims_nothing(self, store):
        """It may have been started before the store lost its data."""
        assert admit(store, epoch="older").claimed is False

    def test_a_message_of_this_epoch_claims(self, store):
        """Every stamped message would be taken for one that may have been started."""
        assert admit(store, epoch=store.view().epoch).claimed is True

    def test_keys_of_different_scopes_do_not_meet(self, store):
        """Two tasks that use order numbers as keys would answer each other's duplicates."""
        claimed(store)

        assert admit(store, "B", RecordKey("shop.refund", KEY.key)).claimed is True

    def test_a_separator_in_a_name_does_not_make_two_keys_one(self, store):
        """One of two operations would be answered with the other's result, and never run."""
        claimed(store, key=RecordKey("a|b", "c"))

        assert admit(store, "B", RecordKey("a", "b|c")).claimed is True

    def test_a_record_as_it_was_seen_is_taken(self, under_test):
        """The work of an owner that vanished would never be done."""
        seen = claimed(under_test.store)
        under_test.advance(LEASE_SECONDS + 1)

        answer = under_test.store.take(KEY, seen.rev, "B", start(attempt=2))

        assert (True, "B", 2) == (answer.claimed, answer.record.owner, answer.record.attempt)
        assert answer.record == under_test.store.read(KEY)

    def test_a_record_that_has_moved_is_not_taken(self, store):
        """The owner renewed between the question and the answer: its running body would be doubled."""
        seen = claimed(store)
        store.renew({"A": KEY})

        answer = store.take(KEY, seen.rev, "B", start())

        assert (False, "A") == (answer.claimed, answer.record.owner)

    def test_no_record_is_taken_at_revision_0(self, store):
        """Work of which the store has lost the record could not be started by `verify`."""
        assert store.take(KEY, 0, "B", start()).claimed is True

    def test_a_record_that_is_gone_is_not_taken(self, under_test):
        """A decision on an old record would be written as a new one's."""
        seen = claimed(under_test.store)
        under_test.expire(KEY)

        assert under_test.store.take(KEY, seen.rev, "B", start()).claimed is False

    def test_of_many_callers_at_one_revision_one_takes(self, under_test):
        """Two deliveries that both found a lapsed claim would both run the body."""
        seen = claimed(under_test.store)
        stores = [under_test.connect() for _ in range(RACERS)]

        answers = race(RACERS, lambda number: stores[number].take(KEY, seen.rev, f"owner-{number}", start()))

        assert 1 == sum(answer.claimed for answer in answers)
        assert {under_test.store.read(KEY).owner} == {answer.record.owner for answer in answers}

    def test_of_many_callers_without_a_record_one_takes(self, under_test):
        """After a wipe all duplicates ask at once."""
        stores = [under_test.connect() for _ in range(RACERS)]

        answers = race(RACERS, lambda number: stores[number].take(KEY, 0, f"owner-{number}", start()))

        assert 1 == sum(answer.claimed for answer in answers)

    def test_taking_gives_a_higher_fence_and_a_whole_lease(self, under_test):
        """The old owner's writes would be accepted, or the new one's claim be over at once."""
        first = claimed(under_test.store)
        under_test.advance(LEASE_SECONDS + 1)

        second = taken(under_test.store)

        assert second.fence > first.fence
        assert second.lease_until_us >= under_test.store.view().now_us + LEASE_US - SLACK_US

    def test_taking_clears_the_mark_of_loss(self, store):
        """The new owner would count as dead from its first moment."""
        claimed(store)
        mark_lost(store, "A")

        assert 0 == taken(store).lost_us

    def test_taking_twice_tells_the_owner_that_it_holds_the_claim(self, store):
        """An owner whose answer was lost would be told that somebody else was faster."""
        seen = claimed(store)

        first = store.take(KEY, seen.rev, "B", start(attempt=2))
        again = store.take(KEY, seen.rev, "B", start(attempt=2))

        assert (True, first.record) == (again.claimed, again.record)

    def test_taking_to_ask_is_not_taking_to_start(self, store):
        """An owner that asked `verify` would be told that its start was counted already."""
        seen = claimed(store)
        store.take(KEY, seen.rev, "B", start(asking=True))

        assert store.take(KEY, seen.rev, "B", start(asking=False)).claimed is False
