"""The record as one text, and what older and newer versions make of it."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.ledger.record import FORMAT, Record, RecordTooNew, RecordUnreadable, ResultForm, State
from tests.support.record_text import text_of

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
WHOLE = st.integers(min_value=0, max_value=2**53)
BY_TYPE = {
    int: WHOLE,
    bool: st.booleans(),
    str: TEXT,
    State: st.sampled_from(State),
    ResultForm: st.sampled_from(ResultForm),
    tuple[str, ...]: st.lists(TEXT, max_size=4).map(tuple),
    Mapping[str, Any]: st.dictionaries(TEXT, st.none() | TEXT, max_size=3),
}
# An owner is a token of this package's own making.
OWNERS = st.text("0123456789abcdef", max_size=32)
RECORDS = st.fixed_dictionaries(
    {each.name: BY_TYPE[each.type] for each in dataclasses.fields(Record) if each.name != "format"} | {"owner": OWNERS}
).map(lambda values: Record(**values))


def in_progress(**changes):
    return Record(**{"state": State.IN_PROGRESS, "owner": "A", "fence": 1, "lease_until_us": 100, **changes})


@given(RECORDS)
def test_a_record_comes_back_from_its_text_as_it_was(record):
    """A count, a lease or a letter would be lost on the way to the store."""
    assert record == Record.from_text(text_of(record))


def test_only_what_was_set_is_written():
    """A record of each finished task would carry twenty empty fields for a week."""
    read = Record.from_text("1 in_progress A 7 1 0 0 0 0 0 0\n{}")

    assert json.loads(read.having(result="1").body()) == {"result": "1"}


def test_a_record_that_was_read_knows_its_defaults():
    """A field that nobody wrote would be missing where a decision asks for it."""
    read = Record.from_text("1 done A 7 1 0 0 0 0 0 0\n{}")

    assert (read.attempt, read.steps, read.series, read.result_form) == (0, {}, (), ResultForm.STORED)


@given(RECORDS, st.integers(min_value=0, max_value=9))
def test_having_is_replace(record, attempt):
    """Two ways to change a record would differ in what they keep."""
    assert record.having(attempt=attempt) == dataclasses.replace(record, attempt=attempt)


def test_a_field_of_a_newer_minor_version_is_left_out():
    """A fleet that is being upgraded would fail on the first record of a new worker."""
    text = text_of(in_progress())

    assert in_progress() == Record.from_text(text[:-1] + ',"colour":"blue"}')


def test_a_record_of_a_newer_format_is_refused_by_name():
    """An old worker would guess what a record means that it cannot know; the newer head may have any shape."""
    with pytest.raises(RecordTooNew, match=f"record format {FORMAT + 1} is newer than {FORMAT}: upgrade this worker"):
        Record.from_text(f"{FORMAT + 1} whatever\n...")


@pytest.mark.parametrize(
    "damaged",
    ["", "\n", "no record", "1 done", "{}", "x done - 1 2 3 4 5 6 7 0\n{}"]
    + [text_of(in_progress())[:-1], text_of(in_progress()).replace("in_progress", "in_a_hurry", 1)]
    + [text_of(in_progress()).partition("\n")[0] + body for body in ("", "\n", "\n[]", "\n" + "[" * 100_000)],
)
def test_a_damaged_record_is_refused_by_name(damaged):
    """Any other error would be taken for one of the message, or of the page."""
    with pytest.raises(RecordUnreadable, match="the record is damaged: "):
        Record.from_text(damaged)


def test_a_record_cannot_be_changed_in_place():
    """A decision would be taken on one record and written onto another."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        in_progress().attempt = 7


def test_a_claim_lives_until_its_lease_ends():
    """Two owners, or none, would count themselves in at the very end of a lease."""
    assert (True, False) == (in_progress().is_live(99), in_progress().is_live(100))


def test_a_claim_whose_owner_was_lost_is_not_live():
    """Its work would wait for the lease of a process that is known to be dead."""
    assert in_progress(lost_us=50).is_live(60) is False


@pytest.mark.parametrize("state", [state for state in State if state is not State.IN_PROGRESS])
def test_only_a_record_in_progress_is_live(state):
    """A retry that waits would look like a body that runs."""
    assert in_progress(state=state).is_live(60) is False
