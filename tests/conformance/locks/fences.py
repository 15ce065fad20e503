"""
The fence of a lock: it only grows, whatever happens to the store or to its clock.
"""

from tests.conformance.admission.calls import HOUR_SECONDS, SLACK_US
from tests.conformance.locks.calls import NAME, acquired, pass_time


class LockFences:
    """What tells two owners apart."""

    def test_the_fence_is_at_least_the_servers_time(self, under_test):
        """A store that was wiped would hand out fences that old owners hold already."""
        assert acquired(under_test.locks).fence >= under_test.store.view().now_us - SLACK_US

    def test_each_owner_has_a_higher_fence_than_all_before(self, locks):
        """A write under an old token would be taken for the newest owner's."""
        fences = []
        for number in range(20):
            held = acquired(locks, f"owner-{number}")
            fences.append(held.fence)
            locks.release(held)

        assert sorted(set(fences)) == fences

    def test_the_fence_never_goes_back_after_a_wipe(self, under_test):
        """An owner from before the wipe could write over its successor's work."""
        before = acquired(under_test.locks).fence
        under_test.wipe()
        under_test.advance(0.001)
        under_test.store.declare_new()

        assert acquired(under_test.locks, "B").fence > before

    def test_the_fence_never_goes_back_with_the_servers_clock(self, under_test):
        """A failover to a machine whose clock is behind would let an old owner's write through."""
        held = acquired(under_test.locks)
        under_test.set_clock_back(HOUR_SECONDS)
        seen, _ = under_test.locks.read(NAME)
        pass_time(under_test, HOUR_SECONDS + 60)

        assert acquired(under_test.locks, "B").fence > seen.fence >= held.fence

    def test_a_released_lock_keeps_its_fence(self, under_test):
        """With the clock gone back, the next owner would begin below the last one."""
        held = acquired(under_test.locks)
        under_test.locks.release(held)
        under_test.set_clock_back(HOUR_SECONDS)
        seen, _ = under_test.locks.read(NAME)

        assert acquired(under_test.locks, "B").fence > seen.fence >= held.fence
