"""
A store that is new or was away: nobody is admitted, or nothing taken over, for one lease.
"""

from celery_safeguards.clock import to_us
from tests.conformance.admission.calls import KEY, LEASE_US, SLACK_US, admit, claimed
from tests.conformance.stores import LEASE_SECONDS


class Epochs:
    """`view`, `declare_new`, and the pauses that they tell of."""

    def test_a_new_store_admits_nobody_for_one_lease(self, under_test):
        """Owners whose records were lost would be doubled before they have written them back."""
        under_test.wipe()
        assert admit(under_test.store).claimed is False

        under_test.advance(LEASE_SECONDS - 5)
        assert admit(under_test.store).claimed is False

        under_test.advance(10)
        assert admit(under_test.store).claimed is True

    def test_looking_at_a_new_store_begins_its_epoch(self, under_test):
        """Each caller would see another epoch, and no message would ever match."""
        before = under_test.store.view().epoch
        under_test.wipe()
        views = [under_test.store.view(), under_test.store.renew({})[0], admit(under_test.store).view]

        assert 1 == len({view.epoch for view in views})
        assert before != views[0].epoch

    def test_the_epoch_stays(self, under_test):
        """Every message would be taken for one from before a wipe."""
        before = under_test.store.view().epoch
        under_test.advance(100 * LEASE_SECONDS)
        admit(under_test.store)

        assert before == under_test.store.view().epoch

    def test_a_store_that_was_declared_new_admits_at_once(self, under_test):
        """The first start of a system would wait half a minute for owners that cannot exist."""
        under_test.wipe()
        under_test.store.declare_new()

        assert admit(under_test.store).claimed is True

    def test_after_an_outage_the_view_tells_a_pause_of_one_lease(self, under_test):
        """All workers were cut off at once: whoever comes back first would take over what the others run."""
        claimed(under_test.store)
        under_test.advance(LEASE_SECONDS / 2 + 5)

        view, _ = under_test.store.renew({})

        assert SLACK_US > abs(view.takeover_from_us - view.now_us - LEASE_US)

    def test_the_pause_after_an_outage_is_the_same_for_all_who_come_back(self, under_test):
        """The second worker to reconnect would see no pause and take over."""
        under_test.advance(LEASE_SECONDS)
        first, _ = under_test.store.renew({})
        under_test.advance(5)

        second = admit(under_test.connect()).view

        left_us = [view.takeover_from_us - view.now_us for view in (first, second)]
        assert SLACK_US > abs(left_us[0] - left_us[1] - to_us(5))

    def test_while_others_are_heard_one_owners_silence_is_no_outage(self, under_test):
        """A partitioned worker's claims would never be taken over."""
        claimed(under_test.store)
        for _ in range(9):
            under_test.advance(LEASE_SECONDS / 3)
            view, _ = under_test.store.renew({"B": KEY})

        assert view.takeover_from_us <= view.now_us

    def test_looking_is_not_being_heard(self, under_test):
        """A web process that reads the epoch would hide that every worker was cut off."""
        for _ in range(9):
            under_test.advance(LEASE_SECONDS / 3)
            under_test.store.view()

        view, _ = under_test.store.renew({})

        assert view.takeover_from_us > view.now_us
