"""
Properties of keys and fingerprints over generated arguments.

`normal` says in plain Python what two values must share to be one: types, structure, and the documented rules for
text, numbers and mapping keys. It builds no text, so a mistake in escaping or joining cannot hide in both.
"""

import enum
import inspect
import math
import pickle
import unicodedata
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kombu.utils import json

from celery_safeguards.errors import KeyRefused
from celery_safeguards.ledger.canonical import canonical, fingerprint
from celery_safeguards.ledger.key import KeyTemplate, bind


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


NAIVE = datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001 - what many callers pass
CONFUSABLE = [
    *(None, "None", "null", True, "true", False, 0, -0.0, 0.0, 1, 1.0, "1", "1.0", -1, 12, 2, "", " "),
    *(Decimal(1), Decimal("1.0"), Decimal("1E+2"), Decimal(100), 100, "decimal(1)"),
    *("a", "b", "a:b", 'a"', "\\", '"', "caf\u00e9", "cafe\u0301", "\ud83d", "\ude00", "\U0001f600", "(1)", ",", "{"),
    *(b"a", b"", b"\xff", UUID(int=1), str(UUID(int=1)), date(2026, 1, 2), "2026-01-02", time(3, 4)),
    *(NAIVE, NAIVE.replace(tzinfo=UTC), (NAIVE + timedelta(hours=1)).replace(tzinfo=timezone(timedelta(hours=1)))),
    *("__type__", "__value__", "decimal", "red"),
]
SCALARS = st.one_of(
    st.sampled_from(CONFUSABLE),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.decimals().filter(lambda value: not value.is_snan()),  # which no set can hold
    st.datetimes(timezones=st.none() | st.timezones(), min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1)),  # noqa: DTZ001
    st.uuids(),
)
MAPPING_KEYS = st.sampled_from(
    ["a", "b", "1", 1, 2, True, None, "caf\u00e9", "cafe\u0301", 1.5, "__type__", "__value__"]
)


def nested(scalars, *, sets):
    def containers(inner):
        found = [st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple)]
        found.append(st.dictionaries(MAPPING_KEYS, inner, max_size=3))
        if sets:
            found.append(st.frozensets(scalars, max_size=3))
        return st.one_of(found)

    return st.recursive(scalars, containers, max_leaves=6)


WIRE = nested(SCALARS, sets=False)
ANY = nested(SCALARS | st.sampled_from(Colour), sets=True)
SMALL = nested(st.sampled_from([1, "1", 1.0, True, None, "a", Decimal(1), Decimal("1.0")]), sets=True)


def normal(value):
    """Return what a value is compared by: hashable, typed, and equal exactly for values that mean the same."""
    if isinstance(value, enum.Enum):
        return normal(value.value)
    if isinstance(value, list | tuple):
        return ("array", tuple(normal(item) for item in value))
    if isinstance(value, set | frozenset):
        return ("set", frozenset(normal(item) for item in value))
    if isinstance(value, dict):
        return ("mapping", frozenset((normal(json_key(key)), normal(item)) for key, item in value.items()))
    return normal_scalar(value)


def normal_scalar(value):
    if isinstance(value, str):
        joined = value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return (str, unicodedata.normalize("NFC", joined))
    if isinstance(value, float) and math.isnan(value):
        return (float, "nan")
    if isinstance(value, Decimal) and value.is_nan():
        return (Decimal, str(value))
    if isinstance(value, datetime):
        aware = value.utcoffset() is not None
        return (datetime, aware, value.astimezone(UTC) if aware else value)
    return (type(value), value)


def json_key(key):
    return next(iter(json.loads(json.dumps({key: 0}))))


def form(value):
    """Return the canonical form; None where the value is refused."""
    try:
        return canonical(value)
    except KeyRefused:
        return None


@settings(max_examples=400, deadline=None)
@given(SMALL, SMALL)
@example({1: 2}, {"1": 2})
@example([[], [1]], [[1], []])
def test_two_small_structures_share_a_form_exactly_if_they_are_equal(first, second):
    """A collision hands one call's result to another; a needless difference runs a duplicate."""
    forms = form(first), form(second)

    if None not in forms:
        assert (normal(first) == normal(second)) == (forms[0] == forms[1])


@settings(max_examples=200, deadline=None)
@given(ANY, ANY)
def test_two_values_share_a_form_exactly_if_they_are_equal(first, second):
    """The same over everything that arguments may hold."""
    forms = form(first), form(second)

    if None not in forms:
        assert (normal(first) == normal(second)) == (forms[0] == forms[1])


def test_every_pair_of_confusable_scalars_is_told_apart():
    """The pairs that real keys confused, all of them."""
    for first in CONFUSABLE:
        for second in CONFUSABLE:
            assert (normal(first) == normal(second)) == (canonical(first) == canonical(second)), (first, second)


@settings(max_examples=200, deadline=None)
@given(WIRE, st.integers(1, 3))
def test_the_form_is_the_same_after_each_trip_over_the_wire(value, trips):
    """The publisher, the worker and the third retry must speak of one call."""
    before = form(value)
    if before is None:
        return

    for _ in range(trips):
        value = json.loads(json.dumps(value))

    assert before == canonical(value)


@settings(max_examples=100, deadline=None)
@given(ANY)
def test_the_form_is_the_same_after_pickle(value):
    """Projects on pickle get the same promise."""
    assert form(value) == form(pickle.loads(pickle.dumps(value)))


def body(a, b=1, *rest, c="1", **options):
    """Stand for a task's body."""


BODY = inspect.signature(body)
ARGS = st.lists(st.sampled_from([1, "1", True, [1]]), min_size=1, max_size=4)
KWARGS = st.dictionaries(st.sampled_from(["c", "x", "y"]), st.sampled_from([1, "1", True, None]), max_size=3)


@settings(max_examples=300, deadline=None)
@given(ARGS, KWARGS, ARGS, KWARGS)
def test_two_calls_share_a_fingerprint_exactly_if_all_their_arguments_are_equal(args, kwargs, args2, kwargs2):
    """Whether a default was written out, and in which order keywords came, is not part of a call."""
    same = normal(bind(BODY, args, kwargs)) == normal(bind(BODY, args2, kwargs2))

    assert same == (fingerprint(BODY, args, kwargs) == fingerprint(BODY, args2, kwargs2))


@settings(max_examples=200, deadline=None)
@given(st.lists(WIRE, min_size=1, max_size=3), st.dictionaries(st.sampled_from("cxy"), WIRE, max_size=2))
def test_a_fingerprint_is_the_same_after_the_wire(args, kwargs):
    """The worker computes it again for messages of foreign producers, and compares."""
    try:
        before = fingerprint(BODY, args, kwargs)
    except KeyRefused:
        return

    wire_args, wire_kwargs = json.loads(json.dumps((args, kwargs)))

    assert before == fingerprint(BODY, wire_args, wire_kwargs)


TEMPLATES = st.sampled_from(
    [
        "{a}:{b}",
        "{a}{b}",
        "{a}0{b}",
        "{a}.{b}",
        "{a}-{b}",
        "{a}e{b}",
        '{a}"{b}',
        "{a}({b})",
        "{b}{a}",
        "{{{a}}}{b}",
        "{a}, {b}",
    ]
)
FIELDS = st.one_of(
    st.sampled_from([value for value in CONFUSABLE if value not in {None, "", " ", b""}]),
    st.integers(-120, 120),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.text(alphabet='01.-e":(), \\', min_size=1, max_size=4).filter(str.strip),
    st.uuids(),
    st.datetimes(),
)


@settings(max_examples=500, deadline=None)
@given(TEMPLATES, FIELDS, FIELDS, FIELDS, FIELDS)
@example("{a}:{b}", "1:2", "3", "1", "2:3")
@example("{a}e{b}", 1, 5, 1e5, 5)
@example("{a}-{b}", 1e-5, 5, 1, 5)
def test_two_pairs_of_fields_share_a_key_exactly_if_they_are_equal(text, a, b, a2, b2):
    """A key that two operations share swallows the second one."""
    template = KeyTemplate(text)
    same = (normal(a), normal(b)) == (normal(a2), normal(b2))

    assert same == (template.render({"a": a, "b": b}) == template.render({"a": a2, "b": b2}))


@settings(max_examples=300, deadline=None)
@given(TEMPLATES, st.integers(1, 999), st.integers(1, 999), st.integers(1, 999), st.integers(1, 999))
def test_pairs_of_numbers_never_share_a_key(text, a, b, a2, b2):
    """Numbers are the commonest identifiers, and have no quotes to hold them apart."""
    template = KeyTemplate(text)

    assert ((a, b) == (a2, b2)) == (template.render({"a": a, "b": b}) == template.render({"a": a2, "b": b2}))


@settings(max_examples=200, deadline=None)
@given(FIELDS, st.integers(1, 3))
def test_a_key_is_the_same_after_each_trip_over_the_wire(value, trips):
    """A retry publishes under the key of the first publish, whoever computes it."""
    template = KeyTemplate("payment:{a}")
    before = template.render({"a": value})

    for _ in range(trips):
        value = json.loads(json.dumps(value))

    assert before == template.render({"a": value})
