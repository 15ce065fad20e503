"""
A record without its content: nothing that it held is left, and it still holds a duplicate back.
"""

import threading

import pytest

from celery_safeguards.admission.store import Continuing, Erasure, RecordKey
from celery_safeguards.ledger.record import ResultForm, State
from tests.conformance.admission.calls import HOUR_SECONDS, KEY, RETRY, admit, change, claimed, start
from tests.conformance.stores import LEASE_SECONDS

SENDERS = 8
TEXTS = {"kind": "data", "error": "no order of ann@example.com", "reason": "attempt 4 of 4"}


def finished(store, state=State.DONE, *, key=KEY, **fields):
    """Bring a record to its end, with content wherever one can be."""
    steps = {"order": '"ann@example.com"'}
    given = {"failure": TEXTS, "steps": steps, "series": ("t-1",), "fingerprint": "f-1", **fields}
    given |= {"result": '"ann@example.com"'} if state is State.DONE else {"letter_id": "l-1"}
    return store.settle(key, claimed(store, key=key), State.IN_PROGRESS, change(state, **given))


class Erasing:
    """`erase`."""

    def test_result_steps_and_texts_of_done_work_are_gone(self, store):
        finished(store, attempt=3)

        outcome, record = store.erase(KEY), store.read(KEY)

        assert outcome is Erasure.ERASED
        assert (record.result, record.result_form, record.steps) == ("", ResultForm.WITHHELD, {})
        assert record.failure == {"kind": "data"}
        assert "ann@" not in record.body()

    def test_all_else_stays_so_that_a_duplicate_is_known(self, under_test, store):
        """Without its record the body would run again at the next redelivery."""
        before = finished(store, attempt=3, continued_by=("t-1",))

        store.erase(KEY)
        record = store.read(KEY)

        for name in ("state", "owner", "fence", "attempt", "series", "fingerprint", "continued_by", "task_id"):
            assert getattr(record, name) == getattr(before, name), name
        assert not admit(store, "B").claimed
        assert store.begin_continuing(KEY, "t-1", LEASE_SECONDS) is Continuing.SENT
        under_test.advance(HOUR_SECONDS - 10)
        assert store.read(KEY) is not None
        under_test.advance(20)
        assert store.read(KEY) is None

    @pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
    def test_dead_work_keeps_its_steps_alone(self, store, state):
        """A step that was done has had its effect: a new series must not do it again."""
        finished(store, state)

        outcome, record = store.erase(KEY), store.read(KEY)

        assert outcome is Erasure.ERASED
        assert (record.state, record.failure, record.letter_id) == (state, {"kind": "data"}, "l-1")
        assert record.steps == {"order": '"ann@example.com"'}

    def test_second_time_finds_nothing_and_changes_nothing(self, store):
        finished(store)
        store.erase(KEY)
        once = store.read(KEY)

        assert store.erase(KEY) is Erasure.NOTHING
        assert store.read(KEY) == once

    @pytest.mark.parametrize(
        ("form", "result"),
        [(ResultForm.STORED, "null"), *((form, "") for form in ResultForm if form is not ResultForm.STORED)],
    )
    def test_form_without_a_result_stays(self, store, form, result):
        """A duplicate of what returned None would get a marker for it, and the chain behind it fail."""
        fields = {"result": result, "result_form": form}
        store.settle(KEY, claimed(store), State.IN_PROGRESS, change(State.DONE, **fields))

        assert store.erase(KEY) is Erasure.NOTHING
        assert (store.read(KEY).result_form, store.read(KEY).result) == (form, result)

    def test_work_that_is_under_way_keeps_all(self, store):
        """Its steps and its letter are needed by whoever goes on with it."""
        record = claimed(store)
        assert store.erase(KEY) is Erasure.UNDER_WAY
        store.settle(KEY, record, State.IN_PROGRESS, RETRY)
        before = store.read(KEY)
        assert store.erase(KEY) is Erasure.UNDER_WAY
        assert store.read(KEY) == before

    def test_no_record_is_no_error(self, store):
        assert store.erase(KEY) is Erasure.ABSENT

    def test_claim_on_what_was_seen_before_it_is_asked_again(self, store):
        """Whoever takes a dead record over has read its texts: they must not come back with his write."""
        before = finished(store, State.DEAD)
        seen = store.read(KEY)

        store.erase(KEY)

        assert before.fence == seen.fence
        assert not store.take(KEY, seen.rev, "B", start()).claimed
        assert store.take(KEY, store.read(KEY).rev, "B", start()).claimed

    @pytest.mark.parametrize("key", [RecordKey("shop.charge", f"payment:{number}") for number in range(5)], ids=str)
    def test_marks_that_are_written_meanwhile_stay(self, store, key):
        """A continuation whose mark is lost goes out twice."""
        finished(store, key=key)
        barrier, errors = threading.Barrier(SENDERS + 2), []

        def run(act):
            try:
                barrier.wait(30)
                act()
            except Exception as error:
                errors.append(error)

        acts = [lambda number=number: store.end_continuing(key, f"t-{number}") for number in range(SENDERS)]
        threads = [threading.Thread(target=run, args=(act,)) for act in (*acts, *[lambda: store.erase(key)] * 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        record = store.read(key)
        assert errors == []
        assert sorted(record.continued_by) == [f"t-{number}" for number in range(SENDERS)]
        assert (record.result, record.result_form) == ("", ResultForm.WITHHELD)
