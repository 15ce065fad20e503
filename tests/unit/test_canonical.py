"""The canonical form of arguments and the fingerprint made of it."""

import enum
import inspect
import pickle
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, localcontext
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from kombu.utils import json

from celery_safeguards.errors import KeyRefused
from celery_safeguards.ledger.canonical import canonical, fingerprint
from tests.support.growth import growth

Point = namedtuple("Point", "x y")  # noqa: PYI024 - the form that old task code passes

NAIVE = datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001 - what many callers pass


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Opaque:
    """No value of its own."""


@dataclass
class Money:
    amount: int


class Reduced:
    """What kombu sends through `__json__`."""

    def __json__(self):
        return {"sku": 7}


def body(a, b=2, *rest, c=None, **options):
    """Stand for a task's body."""


BODY = inspect.signature(body)


def digest(*args, **kwargs):
    return fingerprint(BODY, args, kwargs)


# --- one call, one fingerprint


def test_positional_keyword_and_defaulted_arguments_are_one_call():
    """Omitted and explicit defaults made two keys of one call, and two payments (cameronmaske/celery-once#11)."""
    expected = [digest(1)] * 3

    assert expected == [digest(a=1), digest(1, 2), digest(1, b=2, c=None)]


def test_no_keyword_arguments_and_none_are_the_same():
    """`apply_async((1,))` passes None where `delay(1)` passes an empty dict (steinitzu/celery-singleton PR#39)."""
    assert fingerprint(BODY, (1,), {}) == fingerprint(BODY, [1], None)


def test_a_new_parameter_with_a_default_changes_nothing():
    """A deploy between publish and redelivery must not turn a duplicate into a conflict."""

    def later(a, b=2, *rest, c=None, currency="EUR", **options): ...

    assert digest(1, c=3) == fingerprint(inspect.signature(later), (1,), {"c": 3})


@pytest.mark.parametrize("default", [(1, 2), 10**6, "some text", {"a": [1]}, Decimal("1.10"), Colour.RED])
def test_a_default_that_came_over_the_wire_is_still_the_default(default):
    """The worker gets an equal copy of a written-out default, never the object of the signature."""

    def with_default(a, b=default): ...

    signature = inspect.signature(with_default)
    copy = "red" if default is Colour.RED else json.loads(json.dumps(default))

    assert fingerprint(signature, (1,), None) == fingerprint(signature, (1, copy), None)


def test_parameters_in_another_order_change_nothing():
    """A deploy that sorts keyword parameters must not turn duplicates into conflicts."""

    def earlier(*, b, a): ...
    def later(*, a, b): ...

    digests = [fingerprint(inspect.signature(run), None, {"a": 1, "b": 2}) for run in (earlier, later)]

    assert digests[0] == digests[1]


def test_another_type_than_the_default_is_not_the_default():
    """A body may treat 2.0 or "2" differently from the 2 that a caller left out."""
    assert digest(1) not in {digest(1, 2.0), digest(1, "2"), digest(1, True)}


def test_a_sentinel_default_does_not_stop_other_calls():
    """A default that has no canonical form matters only to calls that pass something."""
    missing = Opaque()

    def with_sentinel(a, b=missing): ...

    signature = inspect.signature(with_sentinel)

    assert fingerprint(signature, (1,), None) == fingerprint(signature, (1, missing), None)
    assert fingerprint(signature, (1,), None) != fingerprint(signature, (1, 2), None)


def test_variadic_keywords_have_no_order():
    """Call sites list keywords in any order."""
    assert digest(1, x=1, y=2) == digest(1, y=2, x=1)


def test_variadic_positions_keep_their_order():
    """`f(1, 2, 3, 4)` and `f(1, 2, 4, 3)` are different calls."""
    assert digest(1, 2, 3, 4) != digest(1, 2, 4, 3)


def test_a_value_under_another_parameter_is_another_call():
    """Arguments are compared by name, not as a bag of values."""
    assert digest(1, c=5) != digest(1, 5)


def test_only_the_named_fields_are_compared():
    """A trace id among the arguments must not make a conflict of a true duplicate."""
    first = fingerprint(BODY, (1,), {"trace": "x"}, fields=("a", "b"))
    second = fingerprint(BODY, (1,), {"trace": "y"}, fields=("a", "b"))

    assert first == second


def test_fields_that_are_not_compared_may_hold_anything():
    """Choosing fields is the way out for a task that takes an object."""
    assert digest(1) == fingerprint(BODY, (1,), {"c": Opaque()}, fields=("a",))


def test_a_fingerprint_is_the_same_in_another_process():
    """Hash seeds and addresses differ by process; the web process and the worker must agree."""
    program = (
        "import inspect; from celery_safeguards.ledger.canonical import fingerprint\n"
        "print(fingerprint(inspect.signature(lambda a: 0), ({'k': {'x', 'y', 'z'}},), None))"
    )

    digests = {
        subprocess.check_output([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, text=True)
        for seed in ("1", "2")
    }

    assert len(digests) == 1


def test_a_fingerprint_does_not_change_between_releases():
    """Stored fingerprints are compared for a week: a changed form would call every duplicate a conflict."""
    value = {"n": [1, 1.5, True, None, "é"], "d": Decimal("1.10"), "u": UUID(int=1), "t": date(2026, 1, 2)}

    expected = "657332d8a5ce7d1d17f191da6472686077152d316d9a05b72220ff5d9b1e0811"

    assert expected == fingerprint(BODY, (value,), None)


# --- values


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, "null"),
        (True, "true"),
        (1, "1"),
        (1.0, "1.0"),
        ("1", '"1"'),
        ((1, [2]), "[1,[2]]"),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ({2: "x", None: "y", True: "z", 1.5: "w"}, '{"1.5":"w","2":"x","null":"y","true":"z"}'),
        (Decimal("1.10"), '{"__type__":"decimal","__value__":"1.1"}'),
        ({"b", "a"}, '{"__type__":"set","__value__":["a","b"]}'),
        (b"\xff", '{"__type__":"bytes","__value__":"ff"}'),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), '{"__type__":"datetime","__value__":"2026-01-02T03:00:00+00:00"}'),
    ],
)
def test_the_form_is_sorted_and_tagged_json(value, expected):
    """The form is stored as a digest: it must never drift."""
    assert expected == canonical(value)


@pytest.mark.parametrize(
    "first, second",
    [
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        ({1: "x"}, {"1": "x"}),
        (-0.0, 0.0),
        (Decimal("1.10"), Decimal("1.1")),
        (Decimal("1E+2"), Decimal("100.00")),
        (Decimal("-0.00"), Decimal(0)),
        ("caf\u00e9", "cafe\u0301"),
        ({"caf\u00e9": 1}, {"cafe\u0301": 1}),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ud804\udc99\ud804\udcba", "\U0001109a"),
        ({"\ud83d\ude00": 1, "\uffff": 2}, {"\U0001f600": 1, "\uffff": 2}),
        (Text("x"), "x"),
        (Word.RED, "red"),
        (Level.HIGH, 3),
        (Colour.RED, "red"),
        ({Word.RED: 1, Level.HIGH: 2}, {"red": 1, "3": 2}),
        ({1, 2}, frozenset({2, 1})),
        (datetime(2026, 7, 1, 14, tzinfo=ZoneInfo("Europe/Paris")), datetime(2026, 7, 1, 12, tzinfo=UTC)),
        (NAIVE.replace(fold=1), NAIVE),
        (Reduced(), {"sku": 7}),
        (float("nan"), -float("nan")),
    ],
)
def test_equal_values_have_one_form(first, second):
    """A publisher's spelling of a value must not make another operation of it."""
    assert canonical(first) == canonical(second)


@pytest.mark.parametrize(
    "first, second",
    [
        (1, "1"),
        (1, True),
        (1, 1.0),
        (1, Decimal(1)),
        ("1.1", Decimal("1.1")),
        (None, "null"),
        ([], {}),
        ([], None),
        ([[1], 2], [1, [2]]),
        ("a", b"a"),
        ({"a"}, ["a"]),
        (date(2026, 1, 2), "2026-01-02"),
        (date(2026, 1, 2), NAIVE),
        (NAIVE, NAIVE.replace(tzinfo=UTC)),
        (UUID(int=1), str(UUID(int=1))),
        (Decimal("1.0000000000000000000000000000000000001"), Decimal(1)),
        (10**30 + 1, 10**30),
        (float("inf"), float("-inf")),
        ({"a": {"b": 1}}, {"a.b": 1}),
    ],
)
def test_different_values_have_different_forms(first, second):
    """Two payloads under one fingerprint: the second would silently get the first one's result."""
    assert canonical(first) != canonical(second)


def test_the_decimal_context_does_not_change_the_form():
    """A process that computes with four digits must not round other people's amounts."""
    value = Decimal("123456.7890")
    expected = canonical([value, Decimal("1E-20")])

    with localcontext(prec=4, capitals=0):
        assert expected == canonical([value, Decimal("1E-20")])


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, {2: None}), "b": [datetime(2026, 1, 2, tzinfo=ZoneInfo("Asia/Tokyo")), time(1, 2, 3)]},
        {True: 1, None: 2, 1.5: 3, -0.0: 4, Level.HIGH: Level.HIGH},
        [Decimal("1.10"), Decimal("NaN"), UUID(int=5), b"\xff\x00", b"text", date(2026, 1, 2), Word.RED],
        ["\ud83d", "\ud83d\ude00", float("nan"), float("inf"), -0.0, Reduced()],
    ],
)
def test_kombus_json_does_not_change_the_form(value):
    """The worker sees lists for tuples and text for integer keys; it must still see the same call."""
    assert canonical(value) == canonical(json.loads(json.dumps(value)))


def test_a_type_registered_with_kombu_keeps_its_form_over_the_wire(monkeypatch):
    """Projects teach kombu's JSON their own types, and pass them to tasks."""
    monkeypatch.setattr(json, "_encoders", dict(json._encoders))
    monkeypatch.setattr(json, "_decoders", dict(json._decoders))
    json.register_type(timedelta, "timedelta", lambda it: it.total_seconds(), lambda it: timedelta(seconds=it))
    value = [timedelta(days=1), 86_400.0]

    assert canonical(value) == canonical(json.loads(json.dumps(value)))
    assert canonical(value[0]) != canonical(value[1])


@pytest.mark.parametrize("value", [{1, "1", None}, Colour.RED, frozenset({(1, 2), (2, 1)}), Point(1, 2)])
def test_pickle_does_not_change_the_form(value):
    """Projects on pickle pass sets and enums."""
    assert canonical(value) == canonical(pickle.loads(pickle.dumps(value)))


# --- refusals


@pytest.mark.parametrize("value", [Opaque(), Money(1), object, len, iter([1]), bytearray(b"a"), timedelta(1), 1j])
def test_a_type_without_its_own_value_is_refused_by_parameter_and_type(value):
    """An address in a key differs in every process (cameronmaske/celery-once#93)."""
    kind = type(value).__qualname__

    with pytest.raises(KeyRefused, match=rf"argument 'c': of type .*{kind}"):
        digest(1, c={"deep": [value]})


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, {None: 1, "null": 2}, {"caf\u00e9": 1, "cafe\u0301": 2}])
def test_keys_that_become_one_are_refused(value):
    """JSON sends both and loads the last: the publisher would see another payload than the worker."""
    with pytest.raises(KeyRefused, match="two keys"):
        canonical(value)


@pytest.mark.parametrize("key", [(1, 2), UUID(int=1), b"a", Colour.RED])
def test_mapping_keys_that_json_cannot_carry_are_refused(key):
    """Such a publish fails in kombu anyway; here the parameter is named."""
    with pytest.raises(KeyRefused, match="mapping key of type"):
        canonical({key: 1})


def test_a_mapping_that_kombu_reads_as_another_type_is_refused():
    """`{"__type__": "uuid", ...}` leaves as a dict and arrives as a UUID, or not at all."""
    with pytest.raises(KeyRefused, match="reads it as another type"):
        canonical({"__type__": "uuid", "__value__": {"hex": "0" * 32}})


def test_a_structure_that_contains_itself_is_refused():
    """A cycle must be a refusal by name, not a RecursionError deep inside."""
    cycle = []
    cycle.append({"again": cycle})

    with pytest.raises(KeyRefused, match="argument 'a': nested deeper than 100 levels, or containing itself"):
        digest(cycle)


def test_nesting_has_a_limit():
    """A hostile payload must not exhaust the publisher's stack."""
    deep = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(KeyRefused, match="nested deeper"):
        canonical(deep)


def test_nesting_up_to_the_limit_has_a_form():
    """Real documents are nested, and must pass."""
    deep = 1
    for _ in range(100):
        deep = [deep]

    expected = "[" * 100 + "1" + "]" * 100

    assert expected == canonical(deep)


def test_a_stack_that_is_nearly_used_up_is_a_refusal():
    """Deep inside a caller's own recursion the answer is still ours."""
    deep = 1
    for _ in range(90):
        deep = [deep]

    def at_the_bottom(left):
        return canonical(deep) if not left else at_the_bottom(left - 1)

    free = sys.getrecursionlimit() - len(inspect.stack(0)) - 60
    with pytest.raises(KeyRefused, match="too deep for the stack"):
        at_the_bottom(free)


def test_an_integer_that_no_process_writes_out_is_refused():
    """Python's own limit on digits is a ValueError that names no argument."""
    with pytest.raises(KeyRefused, match="argument 'a': an integer"):
        digest(10**5000)


def test_a_refusal_does_not_show_the_value():
    """Arguments may be secrets, and errors end in logs."""

    class Card:
        def __repr__(self):
            return "4242"

    with pytest.raises(KeyRefused) as caught:
        digest(Card())

    assert "4242" not in str(caught.value)


def rows(count):
    return [{"id": number, "sku": [number, str(number)]} for number in range(count)]


@pytest.mark.parametrize(
    ("small", "large"),
    [("text" * 100_000, "text" * 800_000), ("é" * 200_000, "é" * 1_600_000), (rows(2_000), rows(16_000))],
    ids=["text", "é", "rows"],
)
def test_eight_times_the_arguments_cost_eight_times_as_much(small, large):
    """A publish of a megabyte must not stall a web request: by the square, it would cost 64 times as much."""
    assert growth(digest, small, large) < 24
