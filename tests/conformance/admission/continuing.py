"""
The right to send what follows a success: one sender at a time for each id, and none for ever.
"""

from celery_safeguards.admission.store import Change, Continuing
from celery_safeguards.ledger.record import State
from tests.conformance.admission.calls import FAILURE, HOUR_SECONDS, KEY, claimed, done
from tests.conformance.stores import LEASE_SECONDS


class WhatFollows:
    """`begin_continuing` and `end_continuing`."""

    def test_one_of_many_may_send_what_follows(self, under_test, store):
        """A duplicate that comes while the first one sends would send the rest of the chain, too."""
        done(store, claimed(store))

        answers = [store.begin_continuing(KEY, task_id, LEASE_SECONDS) for task_id in ("t-1", "t-1", "t-2")]

        assert [Continuing.GO, Continuing.BUSY, Continuing.BUSY] == answers

    def test_what_was_sent_for_an_id_is_not_sent_again_and_another_id_goes_next(self, store):
        """A chain would run twice, or the canvas of a second publication would wait for ever."""
        done(store, claimed(store))
        store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

        store.end_continuing(KEY, "t-1")

        assert Continuing.SENT == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)
        assert Continuing.GO == store.begin_continuing(KEY, "t-2", LEASE_SECONDS)

    def test_marks_of_two_ids_stand_side_by_side(self, store):
        """The later mark would wipe out the earlier one, and its continuation be sent again."""
        done(store, claimed(store))

        for task_id in ("t-1", "t-2", "t-1"):
            store.end_continuing(KEY, task_id)

        assert ("t-1", "t-2") == store.read(KEY).continued_by

    def test_mark_of_one_id_leaves_another_its_right_to_send(self, store):
        """A failure is marked late, when a replay has succeeded and is sending: what it has not sent would be lost."""
        record = claimed(store)
        fields = {"state": State.DONE, "continuing": "t-1", "publishes": ("a message",)}
        change = Change(fields=fields, after_seconds={"lease_until_us": LEASE_SECONDS}, retention_seconds=HOUR_SECONDS)
        store.settle(KEY, record, State.IN_PROGRESS, change)

        store.end_continuing(KEY, "t-2")

        assert Continuing.BUSY == store.begin_continuing(KEY, "t-3", LEASE_SECONDS)
        assert ("a message",) == store.read(KEY).publishes

    def test_sender_that_died_leaves_its_lease(self, under_test, store):
        """The rest of a chain would be lost with the process that was about to send it."""
        done(store, claimed(store))
        store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

        under_test.advance(LEASE_SECONDS + 1)

        assert Continuing.GO == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

    def test_owner_seen_to_die_after_its_outcome_gives_up_its_right_to_send_at_once(self, store):
        """Its successor would wait for a whole lease although everybody knows."""
        record = claimed(store)
        fields = {"state": State.DONE, "continuing": "t-1"}
        lease = {"lease_until_us": LEASE_SECONDS}
        change = Change(fields=fields, after_seconds=lease, retention_seconds=HOUR_SECONDS)
        store.settle(KEY, record, State.IN_PROGRESS, change)
        assert Continuing.BUSY == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

        assert not store.mark_lost(KEY, record.owner, FAILURE)

        assert Continuing.GO == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)
        assert State.DONE is store.read(KEY).state

    def test_record_that_is_gone_lets_its_sender_go(self, store):
        """After its retention nobody knows whether it was sent; not to send would lose the chain."""
        assert Continuing.GO == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

        store.end_continuing(KEY, "t-1")

        assert store.read(KEY) is None
