"""
A store that was wiped: live claims and outcomes are written back, and nothing else comes to life again.
"""

import pytest

from celery_safeguards.admission.store import Renewal
from celery_safeguards.errors import NotOurs
from celery_safeguards.ledger.record import State
from tests.conformance.admission.calls import DONE, KEY, RETRY, claimed, renewal, start


class WritingBack:
    """`restore`, and `settle` with `recreate`."""

    def test_a_claim_is_written_back_into_another_epoch(self, under_test):
        """The body that runs would be doubled once the store admits again."""
        copy, epoch = claimed(under_test.store, attempt=2), under_test.store.view().epoch
        under_test.wipe()

        assert under_test.store.restore(KEY, copy, epoch) is True

        stored = under_test.store.read(KEY)
        assert ("A", copy.fence, 2, ("t-1",)) == (stored.owner, stored.fence, stored.attempt, stored.series)
        assert stored.is_live(under_test.store.view().now_us)

    def test_a_claim_that_was_written_back_is_renewed(self, under_test):
        """It would lapse one lease later although its owner lives."""
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.restore(KEY, copy, epoch)

        assert Renewal.RENEWED is renewal(under_test.store, "A")

    def test_writing_back_twice_is_no_error(self, under_test):
        """The client's second try after a lost answer would say that the claim is gone."""
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.restore(KEY, copy, epoch)

        assert under_test.store.restore(KEY, copy, epoch) is True

    def test_nothing_is_written_back_into_the_same_epoch(self, under_test):
        """A record that a person discarded, or that has expired, would come to life again."""
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.expire(KEY)

        assert under_test.store.restore(KEY, copy, epoch) is False
        assert None is under_test.store.read(KEY)

    def test_nothing_is_written_back_over_another_owner(self, under_test):
        """An owner that was cut off since before the wipe would fence out the one that runs now."""
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.declare_new()
        current = claimed(under_test.store, "B")

        assert under_test.store.restore(KEY, copy, epoch) is False
        assert current == under_test.store.read(KEY)

    def test_nothing_is_written_back_over_the_owners_own_outcome(self, under_test):
        """
        Work that is done would become a claim again, and run a second time once that lapses.

        t0 the store is wiped   t1 A settles, its record is written anew: done   t2 A's parent renews, finds no claim
        """
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.settle(KEY, copy, State.IN_PROGRESS, DONE, recreate=True)

        assert under_test.store.restore(KEY, copy, epoch) is False
        assert under_test.store.read(KEY).state is State.DONE

    def test_settling_with_recreate_writes_the_record_back(self, under_test):
        """Work that is done would run again because the store was wiped a second before."""
        record = claimed(under_test.store, attempt=2)
        under_test.wipe()

        under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE, recreate=True)

        stored = under_test.store.read(KEY)
        assert (State.DONE, "A", record.fence, 2, ("t-1",)) == (
            stored.state,
            stored.owner,
            stored.fence,
            stored.attempt,
            stored.series,
        )

    def test_recreate_changes_nothing_where_the_record_is_there(self, store):
        """
        The owner's copy is older than the record: renewals have moved its revision on.

        t0 A claims, revision 1   t1 B sees revision 1   t2 A is renewed, settles   t3 B takes revision 1 → refused
        """
        record = claimed(store)
        store.renew({"A": KEY})
        store.settle(KEY, record, State.IN_PROGRESS, RETRY, recreate=True)

        assert store.take(KEY, record.rev, "B", start(attempt=2)).claimed is False
        assert store.read(KEY).state is State.RETRY_DUE

    def test_a_record_that_is_written_back_has_a_new_revision(self, under_test):
        """
        A take-over that was decided before the wipe would hit the live claim that was written back after it.

        t0 B sees A's lapsed claim, revision 1   t1 the store is wiped   t2 A is back   t3 B takes revision 1 → refused
        """
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.restore(KEY, copy, epoch)

        assert under_test.store.take(KEY, copy.rev, "B", start()).claimed is False

    def test_recreate_does_not_write_over_another_owner(self, under_test):
        """An owner from before a wipe would undo what was admitted after it."""
        stale = claimed(under_test.store)
        under_test.wipe()
        under_test.store.declare_new()
        current = claimed(under_test.store, "B")

        with pytest.raises(NotOurs):
            under_test.store.settle(KEY, stale, State.IN_PROGRESS, DONE, recreate=True)

        assert current == under_test.store.read(KEY)
