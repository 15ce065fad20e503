"""
The outcome of a claim: written by its owner alone, at its fence, out of the state that it expects.
"""

import pytest

from celery_safeguards.clock import to_us
from celery_safeguards.errors import NotOurs
from celery_safeguards.ledger.record import State
from tests.conformance.admission.calls import DONE, DYING, KEY, RETRY, SLACK_US, change, claimed, taken
from tests.conformance.stores import LEASE_SECONDS


class Settlement:
    """`settle`."""

    def test_settling_writes_under_the_claim(self, store):
        """No work would ever be done."""
        record = claimed(store)

        settled = store.settle(KEY, record, State.IN_PROGRESS, DONE)

        stored = store.read(KEY)
        assert (State.DONE, "42", 0) == (stored.state, stored.result, stored.lost_starts)
        assert (State.DONE, "42", 0) == (settled.state, settled.result, settled.lost_starts)

    def test_settling_answers_with_times_of_the_store(self, store):
        """A retry would be published for a time at which the record says that it is not due."""
        settled = store.settle(KEY, claimed(store), State.IN_PROGRESS, RETRY)

        assert settled.not_before_us == store.read(KEY).not_before_us
        assert SLACK_US > abs(settled.not_before_us - store.view().now_us - to_us(60))

    def test_a_lapsed_claim_that_nobody_took_still_settles(self, under_test):
        """A result that is there would be thrown away because a clock says so."""
        record = claimed(under_test.store)
        under_test.advance(10 * LEASE_SECONDS)

        under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE)

        assert under_test.store.read(KEY).state is State.DONE

    def test_a_live_claim_of_somebody_else_does_not_settle(self, under_test):
        """A frozen owner that wakes would write its outcome over the new owner's run."""
        stale = claimed(under_test.store)
        under_test.advance(LEASE_SECONDS + 1)
        current = taken(under_test.store)

        with pytest.raises(NotOurs, match=f"held by B at {current.fence}, in_progress, not A at {stale.fence}"):
            under_test.store.settle(KEY, stale, State.IN_PROGRESS, DONE)

        assert current == under_test.store.read(KEY)

    def test_the_same_owner_at_an_older_fence_does_not_settle(self, store):
        """A write that was on its way while its owner took the record anew would undo the newer start."""
        older = claimed(store)
        newer = taken(store, "A", attempt=2)

        with pytest.raises(NotOurs):
            store.settle(KEY, older, State.IN_PROGRESS, DONE)

        assert newer == store.read(KEY)

    def test_settling_twice_is_no_error(self, store):
        """The client's second try after a lost answer would throw the outcome away."""
        record = claimed(store)
        store.settle(KEY, record, State.IN_PROGRESS, RETRY)
        first = store.read(KEY)

        again = store.settle(KEY, record, State.IN_PROGRESS, RETRY)

        assert (State.RETRY_DUE, first) == (again.state, store.read(KEY))

    def test_settling_from_another_state_is_refused(self, store):
        """A late failure would bury what its own earlier write has recorded as done."""
        record = claimed(store)
        store.settle(KEY, record, State.IN_PROGRESS, DONE)

        with pytest.raises(NotOurs):
            store.settle(KEY, record, State.IN_PROGRESS, RETRY)

        assert store.read(KEY).state is State.DONE

    def test_a_slow_first_burier_does_not_write_over_a_replay(self, store):
        """It would write dead over a replay that has started since."""
        record = claimed(store)
        dying = store.settle(KEY, record, State.IN_PROGRESS, DYING)
        dead = change(State.DEAD, retention_seconds=None, letter="")
        store.settle(KEY, dying, State.DYING, dead)
        replay = taken(store, "B", task_id="t-2")

        with pytest.raises(NotOurs):
            store.settle(KEY, dying, State.DYING, dead)

        assert replay == store.read(KEY)

    def test_a_burial_is_finished_by_anybody_under_its_own_fence(self, store):
        """A burial whose process died would stay unfinished for ever."""
        record = claimed(store)
        store.settle(KEY, record, State.IN_PROGRESS, DYING)
        as_found = store.read(KEY)

        store.settle(KEY, as_found, State.DYING, change(State.DEAD, retention_seconds=None, letter=""))

        assert (State.DEAD, "") == (store.read(KEY).state, store.read(KEY).letter)

    def test_settling_a_record_that_is_gone_is_refused(self, under_test):
        """An outcome without its counts would be written as the first of its key."""
        record = claimed(under_test.store)
        under_test.expire(KEY)

        with pytest.raises(NotOurs, match="gone"):
            under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE)

        assert None is under_test.store.read(KEY)
