"""
Results in the form a record keeps: the first reader and every duplicate see the same value.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.ledger.record import Record, ResultForm, State
from celery_safeguards.pipeline.results import encode_result, stored_result


def there_and_back(value, *, store_result=True, max_bytes=1000):
    """Return what the first reader sees, the form, and what a duplicate gets."""
    seen, ending = encode_result(value, store_result=store_result, max_bytes=max_bytes)
    record = Record(state=State.DONE, key="op:1", result_form=ending.form, result=ending.text)
    return seen, ending.form, stored_result(record)


class Colour(Enum):
    """A plain enum, which JSON does not carry."""

    RED = "red"


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        "",
        "grün \ud83d\ude00",
        [1, [2]],
        {"a": {"b": None}},
        (1, (2, 3)),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        date(2026, 1, 2),
        Decimal("1.10"),
        UUID(int=7),
        b"\x00\xff",
    ],
)
def test_first_reader_and_duplicate_see_the_same_value(value):
    """A chain must not depend on whether its first task ran or was a duplicate."""
    seen, form, duplicate = there_and_back(value)

    assert (seen, type(seen), form) == (duplicate, type(duplicate), ResultForm.STORED)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_any_json_value_is_seen_alike_by_both(value):
    """Whatever shape a result has, the two paths must not differ."""
    seen, form, duplicate = there_and_back(value, max_bytes=10**9)

    assert (repr(seen), form) == (repr(duplicate), ResultForm.STORED)


def test_second_round_trip_changes_nothing():
    """A duplicate of a duplicate continues its chain with the same value."""
    seen, _, _ = there_and_back((1, {"a": (2,)}))

    assert there_and_back(seen)[0] == seen


@pytest.mark.parametrize("value", [object(), {1, 2} - {1}, Colour.RED, {object(): 1}, float])
def test_value_that_json_cannot_carry_is_seen_once_and_marked(value):
    """It must not fail the settle: the work is done."""
    seen, form, duplicate = there_and_back(value)

    if form is ResultForm.NOT_ENCODABLE:
        assert (seen is value, duplicate) == (True, {"sg_result": "not_encodable", "key": "op:1"})
    else:
        assert seen == duplicate


def test_value_that_holds_itself_is_marked():
    """Encoding must end, and must not take the worker with it."""
    value = []
    value.append(value)

    assert there_and_back(value)[1] is ResultForm.NOT_ENCODABLE


class Broken:
    """Claims to be encodable and fails at it, as a lazy object without its database does."""

    def __json__(self):
        raise RuntimeError("no database")


def test_value_whose_encoder_fails_is_marked():
    """The body has run: whatever its result's class does, the success must be recorded."""
    assert there_and_back({"order": Broken()})[1] is ResultForm.NOT_ENCODABLE


@pytest.mark.parametrize(("limit", "form"), [(12, ResultForm.STORED), (11, ResultForm.TOO_LARGE)])
def test_limit_counts_bytes_of_the_stored_text(limit, form):
    """Ten characters and two quotes: the limit is about the store, not about Python."""
    seen, found, _ = there_and_back("a" * 10, max_bytes=limit)

    assert (seen, found) == ("a" * 10, form)


def test_withheld_result_is_seen_by_the_first_reader_only():
    """A secret must not be in the record, also not its size."""
    seen, form, duplicate = there_and_back("token", store_result=False)

    assert (seen, form) == ("token", ResultForm.WITHHELD)
    assert duplicate == {"sg_result": "withheld", "key": "op:1"}


def test_result_of_a_task_that_returns_nothing_is_none_for_a_duplicate_too():
    """Most tasks return None: withheld or not, there is nothing to hide."""
    assert there_and_back(None, store_result=False) == (None, ResultForm.STORED, None)
