"""
The fence of a claim: it only grows, whatever happens to the store or to its clock.
"""

from tests.conformance.admission.calls import HOUR_SECONDS, KEY, SLACK_US, claimed, taken


class Fences:
    """What tells two claims apart."""

    def test_the_fence_is_at_least_the_servers_time(self, store):
        """A store that was wiped would hand out fences that old owners hold already."""
        assert claimed(store).fence >= store.view().now_us - SLACK_US

    def test_the_fence_never_goes_back_after_a_wipe(self, under_test):
        """An owner from before the wipe would be accepted after it."""
        before = claimed(under_test.store).fence
        under_test.wipe()
        under_test.advance(0.001)
        under_test.store.declare_new()

        assert claimed(under_test.store, "B").fence > before

    def test_the_fence_never_goes_back_with_the_servers_clock(self, under_test):
        """A failover to a machine whose clock is behind would let an old owner's write through."""
        under_test.advance(1)
        before = claimed(under_test.store).fence
        under_test.set_clock_back(HOUR_SECONDS)
        seen = under_test.store.read(KEY)

        assert taken(under_test.store).fence > seen.fence >= before
