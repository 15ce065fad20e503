"""
A claim that goes on: renewed while nobody has taken it, many in one call.
"""

from celery_safeguards.admission.store import RecordKey, Renewal
from celery_safeguards.ledger.record import State
from tests.conformance.admission.calls import DYING, KEY, LEASE_US, RETRY, SLACK_US, claimed, mark_lost, renewal, taken
from tests.conformance.stores import LEASE_SECONDS


class Renewing:
    """`renew`."""

    def test_renewal_of_a_claim_gives_a_whole_lease_and_tells_the_record(self, under_test):
        """A long body would be taken over while it runs."""
        claimed(under_test.store)
        under_test.advance(LEASE_SECONDS / 2)

        view, renewed = under_test.store.renew({"A": KEY})

        assert (Renewal.RENEWED, under_test.store.read(KEY)) == (renewed["A"].renewal, renewed["A"].record)
        assert renewed["A"].record.lease_until_us >= view.now_us + LEASE_US - SLACK_US

    def test_a_lapsed_claim_that_nobody_took_is_renewed(self, under_test):
        """An owner that was only slow would lose its work."""
        claimed(under_test.store)
        under_test.advance(2 * LEASE_SECONDS)

        assert Renewal.RENEWED is renewal(under_test.store, "A")

    def test_renewal_of_an_owner_without_a_claim_is_absent(self, store):
        """A parent would take its child for fenced out before the child has claimed anything."""
        assert Renewal.ABSENT is renewal(store, "nobody")

    def test_renewal_of_a_record_that_is_gone_is_absent(self, under_test):
        """A parent would not write back what a wiped store has lost."""
        claimed(under_test.store)
        under_test.expire(KEY)

        assert Renewal.ABSENT is renewal(under_test.store, "A")

    def test_renewal_of_a_claim_that_was_taken_is_taken(self, store):
        """A fenced owner would go on as if it held the claim."""
        claimed(store)
        current = taken(store)

        assert Renewal.TAKEN is renewal(store, "A")
        assert current == store.read(KEY)

    def test_renewal_of_a_claim_that_was_marked_lost_is_taken(self, store):
        """A mark of loss would be undone by a renewal that was on its way."""
        claimed(store)
        mark_lost(store, "A")
        marked = store.read(KEY)

        assert Renewal.TAKEN is renewal(store, "A")
        assert marked == store.read(KEY)

    def test_renewal_during_a_burial_is_absent(self, store):
        """An owner that is burying its own work would be reported as having lost it to another."""
        store.settle(KEY, claimed(store), State.IN_PROGRESS, DYING)

        assert Renewal.ABSENT is renewal(store, "A")

    def test_many_owners_are_renewed_in_one_call(self, store):
        """A worker with many children would need a round trip for each, every few seconds."""
        claims = {f"owner-{number}": RecordKey("shop.charge", str(number)) for number in range(200)}
        for owner, key in claims.items():
            claimed(store, owner, key)

        _, renewed = store.renew({**claims, "nobody": KEY})

        assert [*claims, "nobody"] == list(renewed)
        assert {Renewal.RENEWED} == {renewed[owner].renewal for owner in claims}
        assert list(claims) == [renewed[owner].record.owner for owner in claims]
        assert Renewal.ABSENT is renewed["nobody"].renewal

    def test_renewal_of_nobody_only_tells_the_time(self, store):
        """An idle worker could not show that it is alive."""
        view, renewed = store.renew({})

        assert ({}, store.view().epoch) == (renewed, view.epoch)

    def test_a_settled_owner_is_renewed_no_more(self, store):
        """The lease of a retry that waits would be renewed as if its body ran."""
        store.settle(KEY, claimed(store), State.IN_PROGRESS, RETRY)

        assert Renewal.ABSENT is renewal(store, "A")
