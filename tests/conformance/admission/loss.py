"""
An owner that was seen to die: its claim stays as evidence, and is told from one that lives.
"""

import pytest

from celery_safeguards.ledger.record import State
from tests.conformance.admission.calls import DONE, KEY, RETRY, claimed, mark_lost, start, taken


class Loss:
    """`mark_lost`."""

    def test_a_mark_of_loss_keeps_the_claim_as_evidence(self, store):
        """The start would be forgotten with its owner, and the next delivery would run as the first."""
        before = claimed(store)

        assert mark_lost(store, "A") is True

        after = store.read(KEY)
        assert (State.IN_PROGRESS, "A", before.fence, 1, 1) == (
            after.state,
            after.owner,
            after.fence,
            after.attempt,
            after.lost_starts,
        )
        assert after.lost_us > 0

    def test_a_second_mark_of_loss_keeps_the_first_time(self, under_test):
        """The quiet period would begin anew, and the client's second try would say that there was no claim."""
        claimed(under_test.store)
        mark_lost(under_test.store, "A")
        under_test.advance(5)
        first = under_test.store.read(KEY)

        assert mark_lost(under_test.store, "A") is True
        assert first == under_test.store.read(KEY)

    def test_who_has_seen_a_claim_before_its_loss_cannot_take_it(self, store):
        """A decision on the live claim would be carried out on the lost one."""
        seen = claimed(store)
        mark_lost(store, "A")

        assert store.take(KEY, seen.rev, "B", start()).claimed is False

    @pytest.mark.parametrize("settle", [DONE, RETRY], ids=["done", "retry"])
    def test_a_settled_record_is_not_marked_lost(self, store, settle):
        """A child that dies after it has settled would turn an outcome into a doubt."""
        store.settle(KEY, claimed(store), State.IN_PROGRESS, settle)

        assert mark_lost(store, "A") is False
        assert 0 == store.read(KEY).lost_us

    def test_a_claim_that_was_taken_is_not_marked_lost(self, store):
        """The late parent of the first owner would declare the second one dead."""
        claimed(store)
        current = taken(store)

        assert mark_lost(store, "A") is False
        assert current == store.read(KEY)

    def test_an_owner_without_a_claim_holds_none(self, store):
        """A child that died before it claimed would be an error."""
        assert mark_lost(store, "nobody") is False
