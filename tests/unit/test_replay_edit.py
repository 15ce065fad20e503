"""
What a person may change in a copy: read, written and compared without losing a type.
"""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay.copies.edit import Edit, EditRefused, as_sent, as_text, changed_fields, in_words, opened

TYPED = {
    "at": datetime(2025, 3, 1, 12, 30, 5, 123456, tzinfo=UTC),
    "naive": datetime.fromisoformat("2025-03-01T12:30"),
    "day": date(2025, 3, 1),
    "hour": time(12, 30),
    "amount": Decimal("10.10"),
    "id": UUID("5c1f8a3e-0000-4000-8000-000000000001"),
    "text bytes": b"abc",
    "raw": b"\x00\xff",
    "nested": [{"deep": Decimal("0.1")}, [date(2025, 3, 2)]],
}


def letter(*body, raw=None, **wire):
    given = {
        "body": raw if raw is not None else str(dumps(list(body))).encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {"task": "shop.note", "id": "t-1"},
    }
    return Letter(
        id="letter-1",
        task="shop.note",
        task_id="t-1",
        wire=WireMessage(**{**given, **wire}),
        kind=FailureKind.BUG,
        effect_possible=False,
        reason="",
        first_seen_seconds=0.0,
        last_failed_seconds=0.0,
    )


def typed(value):
    """Return a value with the types of all that it holds, since 1 == True == 1.0."""
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [typed(each) for each in value]
    return type(value), repr(value)


def test_values_keep_their_types_on_the_way_through_a_form():
    """A date that comes back as text, or a Decimal as a float, is another order."""
    found = opened(letter([Decimal("1.50")], TYPED, {}))

    args, kwargs = found.args_of(as_text(found.edit.args)), found.kwargs_of(as_text(found.edit.kwargs))

    assert (typed(args), typed(kwargs)) == (typed([Decimal("1.50")]), typed(TYPED))
    assert changed_fields(found.edit, Edit(args=args, kwargs=kwargs)) == ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.decimals(allow_nan=False) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _JSON, max_size=4))
def test_whatever_json_carries_comes_back_from_the_form_as_it_was(kwargs):
    found = opened(letter([], kwargs, {}))

    again = found.kwargs_of(as_text(found.edit.kwargs))

    assert dumps(again) == dumps(found.edit.kwargs)


def test_what_cannot_be_printed_is_escaped_in_the_text_and_nothing_else():
    """A mark that turns the line round hides what is edited; an umlaut that is escaped hides a name."""
    shown = as_text({"näme": "Müller \u202e \ud800 \x7f \u2028 \U000e0001 شكرا", "nul": "\x00"})

    assert "Müller" in shown
    assert "شكرا" in shown
    assert all(each.isprintable() or each == "\n" for each in shown)
    assert json.loads(shown)["näme"] == "Müller \u202e \ud800 \x7f \u2028 \U000e0001 شكرا"


def test_envelope_that_this_process_cannot_open_goes_out_as_it_came():
    """The desk need not register the types of every worker's project."""
    money, broken = {"__type__": "money", "__value__": "1 EUR"}, {"__type__": "datetime", "__value__": "soon"}
    found = opened(letter(raw=json.dumps([[money], {"when": broken, "a": 1}, {}]).encode()))

    kwargs = found.kwargs_of(as_text({**found.edit.kwargs, "a": 2}))

    assert (found.args_of(as_text(found.edit.args)), kwargs["when"]) == ([money], broken)
    assert changed_fields(found.edit, Edit(args=[money], kwargs=kwargs)) == ("kwargs.a",)
    with pytest.raises(EditRefused, match="money"):
        found.args_of(json.dumps([{"__type__": "money", "__value__": "2 EUR"}]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nine", "no JSON"),
        ("", "no JSON"),
        ('[{"a": 1, "a": 2}]', "stands twice"),
        ('[{"__type__": "decimal", "__value__": "x"}]', "'decimal'"),
        ('[{"__type__": ["a"], "__value__": 1}]', "no value of type"),
        ('{"a": 1}', "array"),
        ("[" * 102 + "]" * 102, "deeper"),
        ("[" * 100_000, "no JSON"),
        ("1" * 5000, "no JSON"),
    ],
)
def test_text_that_is_no_value_is_refused(text, why):
    with pytest.raises(EditRefused, match=why):
        opened(letter([], {}, {})).args_of(text)


def test_depth_that_a_fingerprint_takes_is_taken():
    found = opened(letter([], {}, {}))

    assert found.args_of("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    "changes",
    [
        {"content_type": "application/x-python-serialize", "raw": b"\x80\x04."},
        {"content_type": None},
        {"headers": {"id": "t-1"}},
        {"raw": b"\xff"},
        {"raw": b"[]"},
        {"raw": b"[{}, [], {}]"},
        {"raw": b"null"},
        {"raw": b"[[], {}, {}]", "content_encoding": "no-such-encoding"},
        {"raw": b"[" * 100_000},
    ],
)
def test_message_that_is_none_of_celerys_json_is_refused(changes):
    raw = changes.pop("raw", b"[[], {}, {}]")
    with pytest.raises(EditRefused):
        opened(letter(raw=raw, **changes))


def test_changed_fields_are_names_without_values():
    """What was personal in an argument must not stand in a history for ever."""
    before = Edit(args=[1, 2], kwargs={"a": 1, "same": 0, "gone": 1})
    after = Edit(args=[1, True, 3], kwargs={"a": 1.0, "same": 0, "new": None}, queue="q", countdown_seconds=1)

    changed = changed_fields(before, after)

    assert changed == ("args[1]", "args[2]", "kwargs.a", "kwargs.gone", "kwargs.new", "queue", "eta")
    assert changed_fields(Edit(args=[1]), Edit(args=[True])) == ("args[0]",)


def test_names_of_strangers_are_clean_and_few():
    many = changed_fields(Edit(), Edit(kwargs={f"\x1b{number}" + "x" * 90: 1 for number in range(12)}))

    assert "\x1b" not in "".join(many)
    assert max(map(len, many)) < 60
    assert in_words(many).endswith("and 2 more")


def test_what_a_worker_gets_is_what_is_checked():
    sent = as_sent(Edit(args=(1, (2,)), kwargs={"a": (Decimal(1),)}))

    assert (sent.args, sent.kwargs) == ([1, [2]], {"a": [Decimal(1)]})
    for odd in (object(), {1, 2}):
        with pytest.raises(EditRefused, match="JSON cannot carry"):
            as_sent(Edit(kwargs={"a": odd}))
