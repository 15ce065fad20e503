"""The idempotency key: one text for one business operation, in every process."""

import enum
import inspect
import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from celery import Celery

from celery_safeguards.errors import ConfigurationError, KeyRefused
from celery_safeguards.ledger.key import KeyTemplate, bind, body_signature, check_fingerprint

NAIVE = datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001 - what many callers pass


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()

    def __str__(self):
        return "something else"


class Number(int):
    def __repr__(self):
        return "something else"


def charge(order_id, amount=0, *rest, note=None, **options):
    """Stand for a task's body."""


CHARGE = inspect.signature(charge)


def key(value):
    return KeyTemplate("payment:{order_id}").render({"order_id": value})


# --- signatures


def test_a_bound_task_leaves_self_out():
    """A key that holds `self` holds its address, which differs in every process (cameronmaske/celery-once#93)."""
    app = Celery(set_as_current=False)

    @app.task(bind=True, shared=False)
    def pay(self, order_id): ...

    expected = ["order_id"]

    assert expected == list(body_signature(pay.run).parameters)


def test_an_unbound_task_keeps_all_parameters():
    """Dropping the first argument of an unbound task would make all its calls one operation."""
    app = Celery(set_as_current=False)

    @app.task(shared=False)
    def pay(order_id, amount): ...

    expected = ["order_id", "amount"]

    assert expected == list(body_signature(pay.run).parameters)


def test_a_class_based_task_leaves_self_out_of_the_unbound_function():
    """A signature read from the class would ask callers for `self`."""

    class Pay:
        def run(self, order_id): ...

    expected = ["order_id"]

    assert expected == list(body_signature(Pay.run).parameters)


def test_a_task_wrapped_for_automatic_retry_keeps_its_signature():
    """Celery's autoretry replaces `run` by a wrapper of `*args, **kwargs`: its keys would all be refused."""
    app = Celery(set_as_current=False)

    @app.task(bind=True, autoretry_for=(OSError,), shared=False)
    def pay(self, order_id): ...

    expected = ["order_id"]

    assert expected == list(body_signature(pay.run).parameters)


def test_a_body_without_signature_is_a_configuration_error():
    """A body that nobody can bind arguments to must fail at import, not at the first publish."""
    with pytest.raises(ConfigurationError, match="no signature"):
        body_signature(42)


# --- binding


@pytest.mark.parametrize("args, kwargs", [((1,), None), ((1,), {}), (None, {"order_id": 1}), ([1, 0], {"note": None})])
def test_every_way_to_write_a_call_binds_the_same(args, kwargs):
    """Omitted and explicit defaults, or `kwargs=None`, made two keys of one call (cameronmaske/celery-once#11)."""
    expected = {"order_id": 1, "amount": 0, "rest": (), "note": None, "options": {}}

    assert expected == bind(CHARGE, args, kwargs)


def test_surplus_arguments_are_bound_under_their_own_names():
    """A key or fingerprint must see all that the body sees."""
    expected = {"order_id": 1, "amount": 2, "rest": (3,), "note": None, "options": {"x": 4}}

    assert expected == bind(CHARGE, (1, 2, 3), {"x": 4})


@pytest.mark.parametrize("args, kwargs", [((), {}), ((1,), {"order_id": 1}), ((1,), {2: 3})])
def test_arguments_that_do_not_fit_are_refused_with_pythons_own_reason(args, kwargs):
    """A publish that the body cannot take must fail where it is written."""
    with pytest.raises(KeyRefused, match="do not fit") as caught:
        bind(CHARGE, args, kwargs)

    assert isinstance(caught.value.__cause__, TypeError)


# --- templates


def test_a_template_lists_each_field_once_in_order():
    """The policy shows people what a key is made of."""
    expected = ("b", "a")

    assert expected == KeyTemplate("x:{b}:{a}:{b}").fields


def test_a_template_survives_pickle_and_compares_by_text():
    """A policy travels to spawned workers and is compared by tests."""
    template = KeyTemplate("payment:{order_id}")

    assert template == pickle.loads(pickle.dumps(template))


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "give a template"),
        ("  ", "give a template"),
        (None, "give a template"),
        (["order_id"], "give a template"),
        ("payment", "no field"),
        ("{{order_id}}", "no field"),
        ("payment:{order_id", "literal braces"),
        ("payment:order_id}", "literal braces"),
        ("payment:{}", "positional"),
        ("payment:{0}", "positional"),
        ("payment:{!r}", "positional"),
        ("payment:{order_id!r}", "conversion"),
        ("payment:{order_id!s}", "conversion"),
        ("payment:{order_id:>5}", "format"),
        ("payment:{amount:{width}}", "format"),
        ("payment:{order.id}", "pass the identifier itself"),
        ("payment:{order[id]}", "pass the identifier itself"),
        ("payment:{ order_id }", "no parameter's name"),
    ],
)
def test_a_template_that_cannot_hold_is_refused_with_the_reason(text, reason):
    """A key that is empty, constant, positional or formatted merges operations: duplicates that are none."""
    with pytest.raises(ConfigurationError, match=reason):
        KeyTemplate(text)


def test_a_template_whose_fields_are_parameters_passes():
    """The check must not refuse what works."""
    KeyTemplate("payment:{order_id}:{note}").check(CHARGE, "shop.charge")


def test_a_misspelt_field_names_the_nearest_parameter():
    """A typing error in a key must be found at import, with its fix."""
    with pytest.raises(ConfigurationError, match=r"shop\.charge.*'order_di' is no parameter.*'order_id'"):
        KeyTemplate("payment:{order_di}").check(CHARGE, "shop.charge")


@pytest.mark.parametrize("field", ["task_id", "id", "uuid", "now", "time"])
def test_a_field_that_names_the_delivery_is_explained(field):
    """A key made of the task id never meets its duplicate: the customer is charged twice."""
    with pytest.raises(ConfigurationError, match="business operation, not the delivery"):
        KeyTemplate(f"payment:{{{field}}}").check(CHARGE, "shop.charge")


def test_a_parameter_that_is_called_id_is_a_field_like_any_other():
    """Only names that the task does not have are taken for the delivery's."""
    KeyTemplate("payment:{id}").check(inspect.signature(lambda id: None), "shop.charge")  # noqa: A006


@pytest.mark.parametrize("field", ["rest", "options"])
def test_a_variadic_parameter_cannot_be_a_field(field):
    """An operation's identifier is one argument, not whatever came along."""
    with pytest.raises(ConfigurationError, match="any number of arguments"):
        KeyTemplate(f"payment:{{{field}}}").check(CHARGE, "shop.charge")


# --- rendering


@pytest.mark.parametrize(
    "value, expected",
    [
        (42, "payment:42"),
        ("42", 'payment:"42"'),
        (True, "payment:true"),
        (1.0, "payment:1.0"),
        (-0.0, "payment:0.0"),
        (Decimal("1.10"), "payment:decimal(1.1)"),
        (Decimal("1E+2"), "payment:decimal(100)"),
        (UUID(int=1), "payment:uuid(00000000-0000-0000-0000-000000000001)"),
        (date(2026, 1, 2), "payment:date(2026-01-02)"),
        (time(3, 4), "payment:time(03:04:00)"),
        (NAIVE, "payment:datetime(2026-01-02T03:04:00)"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "payment:datetime(2026-01-02T03:04:00+00:00)"),
        (b"\x00\xff", "payment:bytes(00ff)"),
        (Colour.RED, 'payment:"red"'),
        (Word.RED, 'payment:"red"'),
        (Level.HIGH, "payment:3"),
        (Text("42"), 'payment:"42"'),
        (Number(42), "payment:42"),
        ("caf\u00e9", 'payment:"caf\\u00e9"'),
        ("cafe\u0301", 'payment:"caf\\u00e9"'),
    ],
)
def test_a_field_is_rendered_by_its_type_and_value(value, expected):
    """Stored keys outlive a deploy: another rendering would forget every operation that was ever done."""
    assert expected == key(value)


def test_an_instant_gives_one_key_in_every_time_zone():
    """Publishers in two zones must meet in one record."""
    paris = datetime(2026, 1, 2, 4, 4, tzinfo=timezone(timedelta(hours=1)))

    assert key(datetime(2026, 1, 2, 3, 4, tzinfo=UTC)) == key(paris)


def test_text_with_a_separator_inside_does_not_move_into_the_next_field():
    """Without quoting, order "1:2" part "3" would swallow order "1" part "2:3"."""
    template = KeyTemplate("{a}:{b}")

    assert template.render({"a": "1:2", "b": "3"}) != template.render({"a": "1", "b": "2:3"})


@pytest.mark.parametrize(
    "text, first, second",
    [("{a}{b}", (1, 23), (12, 3)), ("{a}0{b}", (1, 105), (101, 5)), ("{a}.{b}", (1, 2.5), (1.2, 5))],
)
def test_numbers_without_a_separator_do_not_merge(text, first, second):
    """A template that forgot its separator must not make two orders one."""
    template = KeyTemplate(text)

    keys = [template.render(dict(zip("ab", pair, strict=True))) for pair in (first, second)]

    assert keys[0] != keys[1]


def test_literal_braces_are_kept():
    """The template reads as it is written."""
    expected = "{42}"

    assert expected == KeyTemplate("{{{a}}}").render({"a": 42})


@pytest.mark.parametrize(
    "value, reason",
    [
        (None, "missing or None"),
        ("", "empty"),
        (" \t\n", "empty"),
        (b"", "empty"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (Decimal("NaN"), "NaN"),
        (Decimal("Infinity"), "Infinity"),
        (object(), "builtins.object"),
        ([1], "builtins.list"),
        ((1,), "builtins.tuple"),
        ({"a": 1}, "builtins.dict"),
        ({1}, "builtins.set"),
        (timedelta(1), "datetime.timedelta"),
        pytest.param(10**5000, "4,000 digits", id="huge"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "UTC cannot express"),
    ],
)
def test_a_field_without_a_stable_value_is_refused_by_name(value, reason):
    """A key of None or of an address names nothing, or something else in every process."""
    with pytest.raises(KeyRefused, match=f"'order_id' is .*{reason}"):
        key(value)


def test_a_missing_field_is_refused():
    """A key with a hole would be shared by unrelated calls."""
    with pytest.raises(KeyRefused, match="'order_id' is missing"):
        KeyTemplate("payment:{order_id}").render({})


def test_a_refusal_does_not_show_the_value():
    """Arguments may be secrets, and errors end in logs."""
    with pytest.raises(KeyRefused) as caught:
        key(["secret"])

    assert "secret" not in str(caught.value)


# --- the fingerprint's fields


def test_fingerprint_fields_that_are_parameters_pass():
    """Any parameter may be compared, the variadic ones too."""
    check_fingerprint(("order_id", "options"), CHARGE, "shop.charge")


@pytest.mark.parametrize("fields", [("order_di",), (), "order_id", ["order_id"]])
def test_fingerprint_fields_that_compare_nothing_are_refused(fields):
    """An empty or misspelt list would let another payload pass as a duplicate (cameronmaske/celery-once PR#128)."""
    with pytest.raises(ConfigurationError, match=r"shop\.charge: fingerprint="):
        check_fingerprint(fields, CHARGE, "shop.charge")
