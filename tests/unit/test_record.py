"""The record as text fields: what a hash keeps, and what older and newer versions make of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.ledger.record import FORMAT, Record, RecordTooNew, ResultForm, State

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
RECORDS = st.fixed_dictionaries(
    {each.name: BY_TYPE[each.type] for each in dataclasses.fields(Record) if each.name != "format"}
).map(lambda values: Record(**values))


def in_progress(**changes):
    return Record(**{"state": State.IN_PROGRESS, "owner": "A", "fence": 1, "lease_until_us": 100, **changes})


@given(RECORDS)
def test_a_record_comes_back_from_its_fields_as_it_was(record):
    """A count, a lease or a letter would be lost on the way to the store."""
    assert record == Record.from_fields(record.to_fields())


@given(RECORDS)
def test_fields_are_text(record):
    """A hash keeps text only: a number would come back as something else from each store."""
    assert {str} == {type(part) for pair in record.to_fields().items() for part in pair}


def test_fields_at_their_default_are_left_out():
    """A record of each finished task would carry twenty empty fields for a week."""
    assert {"state", "rev", "format", "owner", "fence"} == set(Record(state=State.DONE).to_fields())


def test_a_field_of_a_newer_minor_version_is_left_out():
    """A fleet that is being upgraded would fail on the first record of a new worker."""
    stored = {**in_progress().to_fields(), "colour": "blue"}

    assert in_progress() == Record.from_fields(stored)


def test_a_record_of_a_newer_format_is_refused_by_name():
    """An old worker would guess what a record means that it cannot know."""
    stored = {**in_progress().to_fields(), "format": str(FORMAT + 1)}

    with pytest.raises(RecordTooNew, match=f"record format {FORMAT + 1} is newer than {FORMAT}: upgrade this worker"):
        Record.from_fields(stored)


def test_a_record_without_a_format_is_read():
    """A record that was written field by field would be unreadable."""
    assert in_progress() == Record.from_fields(
        {"state": "in_progress", "owner": "A", "fence": "1", "lease_until_us": "100"}
    )


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
