"""
A record as it is kept: for how long, under any name, with any text, at which revision and in which format.
"""

import pytest

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.attempts import FailedAttempt, read_attempts
from celery_safeguards.ledger.record import Record, RecordTooNew, State
from tests.conformance.admission.calls import (
    DONE,
    DYING,
    HOUR_SECONDS,
    KEY,
    RETRY,
    admit,
    change,
    claimed,
    mark_lost,
    taken,
)
from tests.conformance.stores import LEASE_SECONDS

ATTEMPTS = tuple(
    FailedAttempt(number=number, at_seconds=1_700_000_000.125, ended="retried in 2 s", message=text, task_id="t-1")
    for number, text in enumerate(["", 'ä 💳 "\\u0041\\', "\x00 half \ud83d a pair"], 1)
)
ODD_TEXTS = {
    "spaces and lines": "a b\n\r\tc",
    "NUL": "a\x00b",
    "quotes": "'\"\\",
    "braces": "{x}:{y}#z|w*?[a]",
    "not ASCII": "Zürich ☕ 😀",
    "Lua and JSON": "]] .. redis.call('FLUSHALL') -- null [] {}",
    "200 bytes": "k" * 200,
    "201 bytes": "k" * 201,
    "1 MB": "k" * 1_000_000,
}


class Records:
    """`read`, and what is true of every write."""

    @pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
    def test_any_text_is_a_key(self, store, text):
        """Work would be refused, or two keys be one, because of a character or a length."""
        key, other = RecordKey("shop.charge", text), RecordKey("shop.charge", text + "x")

        record = claimed(store, key=key)

        assert record == store.read(key)
        assert None is store.read(other)

    def test_records_are_read_together_as_they_are_alone(self, store):
        keys = [RecordKey("shop.charge", text) for text in ODD_TEXTS.values()]
        for key in keys:
            claimed(store, key=key)

        found = store.read_many([*keys, RecordKey("shop.charge", "absent")])

        assert found == {key: store.read(key) for key in keys}
        assert store.read_many([]) == {}

    @pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
    def test_any_text_is_kept_in_a_record(self, store, text):
        """A result or a failure would come back as another one."""
        record = claimed(store)

        store.settle(KEY, record, State.IN_PROGRESS, change(State.DONE, result=text, failure={"error": text}))

        stored = store.read(KEY)
        assert (text, {"error": text}) == (stored.result, stored.failure)

    def test_every_write_moves_the_revision_on(self, store):
        """A decision that was taken before a write would be carried out after it."""
        seen = [claimed(store)]
        epoch = "older"
        for write in (
            lambda: store.renew({"A": KEY}),
            lambda: store.restore(KEY, seen[0], epoch),
            lambda: store.settle(KEY, seen[0], State.IN_PROGRESS, change(State.IN_PROGRESS), recreate=True),
            lambda: mark_lost(store, "A"),
            lambda: taken(store, "B"),
            lambda: store.settle(KEY, seen[-1], State.IN_PROGRESS, RETRY),
        ):
            write()
            seen.append(store.read(KEY))

        revisions = [record.rev for record in seen]
        assert sorted(set(revisions)) == revisions

    def test_a_lapsed_claim_leaves_its_record(self, under_test):
        """The lease as the key's time to live: a start that nobody finished would read as never begun."""
        claimed(under_test.store)
        under_test.advance(2 * LEASE_SECONDS)

        assert under_test.store.read(KEY).is_live(under_test.store.view().now_us) is False
        assert admit(under_test.store, "B").claimed is False

    def test_a_done_record_lives_as_long_as_its_retention(self, under_test):
        """A duplicate that comes within the retention would run again."""
        under_test.store.settle(KEY, claimed(under_test.store), State.IN_PROGRESS, DONE)

        under_test.advance(HOUR_SECONDS - 10)

        assert under_test.store.read(KEY).state is State.DONE

    def test_a_done_record_expires(self, under_test):
        """The store would grow for ever."""
        under_test.store.settle(KEY, claimed(under_test.store), State.IN_PROGRESS, DONE)

        under_test.advance(HOUR_SECONDS + 10)

        assert None is under_test.store.read(KEY)

    @pytest.mark.parametrize("final", [State.DYING, State.DEAD, State.QUARANTINED])
    def test_buried_work_never_expires(self, under_test, final):
        """A letter would outlive its record, and its replay run as if nothing had been started before."""
        store, record = under_test.store, claimed(under_test.store)
        dying = store.settle(KEY, record, State.IN_PROGRESS, DYING)
        if final is not State.DYING:
            store.settle(KEY, dying, State.DYING, change(final, retention_seconds=None, letter=""))

        under_test.advance(1_000 * HOUR_SECONDS)

        assert store.read(KEY).state is final

    def test_a_record_of_a_newer_format_is_refused_by_name(self, under_test):
        """An old worker would guess what a record means that it cannot know."""
        claimed(under_test.store)

        with pytest.raises(RecordTooNew, match="newer than"):  # noqa: PT012 - memory reads at the write already
            under_test.write_raw(KEY, format=2)
            under_test.store.read(KEY)

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            ("💳 €\n\r\t\x00\x7f", None),
            ('"\\u0041\\', None),
            ("half \ud83d a pair", "half ? a pair"),
            ("x" * 100_000, None),
        ],
        ids=["control", "quoted", "half-a-pair", "long"],
    )
    def test_any_text_of_a_failure_survives_every_write(self, under_test, text, kept):
        """An error's text that one store cannot read again would hold its key for ever."""
        store, record = under_test.store, claimed(under_test.store)
        failed = change(State.RETRY_DUE, failure={"kind": "bug", "error": text}, steps={text: None}, lost_starts=0)
        store.settle(KEY, record, State.IN_PROGRESS, failed)

        again = taken(store)
        store.mark_lost(KEY, "B", {"kind": "worker_lost", "error": text})

        found = {again.failure["error"], store.read(KEY).failure["error"], *again.steps}
        assert found in ({text}, {kept})

    def test_the_history_of_attempts_survives_every_write(self, store):
        """What failed before a worker died would be told by nobody."""
        texts = tuple(attempt.to_text() for attempt in ATTEMPTS)
        store.settle(KEY, claimed(store), State.IN_PROGRESS, change(State.RETRY_DUE, attempt_history=texts))
        assert texts == store.read(KEY).attempt_history

        again = taken(store)
        mark_lost(store, "B")
        store.renew({"B": KEY})

        assert texts == again.attempt_history == store.read(KEY).attempt_history
        assert ATTEMPTS == read_attempts(store.read(KEY).attempt_history)

    def test_a_history_that_was_taken_away_stays_away(self, store):
        """Redis's JSON makes another thing of a list without entries, which every later write would meet."""
        texts = (ATTEMPTS[0].to_text(),)
        store.settle(KEY, claimed(store), State.IN_PROGRESS, change(State.RETRY_DUE, attempt_history=texts))
        store.settle(KEY, taken(store), State.IN_PROGRESS, change(State.RETRY_DUE, attempt_history=()))

        again = taken(store, "C")
        mark_lost(store, "C")

        assert () == again.attempt_history == store.read(KEY).attempt_history
        assert "D" == taken(store, "D", attempt_history=texts).owner
        assert texts == store.read(KEY).attempt_history

    def test_no_record_is_none(self, store):
        """Absence would look like a record."""
        assert None is store.read(KEY)
        assert not isinstance(store.read(KEY), Record)
