"""
What letters are found by: the terms of their arguments, and what a person's words mean.
"""

import inspect
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.search import MOST_TERMS, Search
from celery_safeguards.deadletter.terms import argument_term, facets_of, terms_of, typed_text
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import ConfigurationError
from tests.conformance.deadletter_contract import letter

SEARCH = Search(arguments=("order_id",))
UUID_TEXT = "cf4db1b4-2d7b-4df5-9113-c0889acca212"


def charge(order_id, amount=1, *rest, customer=None, **more): ...


SIGNATURE = inspect.signature(charge)


def of(*args, body=None, content_type="application/json", **kwargs):
    """Return the letter of a call."""
    written = str(dumps([args, kwargs, {}])).encode() if body is None else body
    return letter(wire=WireMessage(body=written, content_type=content_type, content_encoding="utf-8"))


def finds(letter, text, search=SEARCH, signature=SIGNATURE):
    """Whether a text finds a letter."""
    return bool(set(search.terms_for(text)) & set(search.indexed(letter, signature).terms))


@pytest.mark.parametrize(
    "value, text",
    [
        (4711, "4711"),
        ("4711", "4711"),
        ("4711", "  4711\n"),
        (True, "true"),
        (1.5, "1.5"),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (UUID(UUID_TEXT), UUID_TEXT),
        (UUID(UUID_TEXT), UUID_TEXT.upper().replace("-", "")),
        (UUID_TEXT.upper(), UUID_TEXT),
        ("Ann@Example.com", "ann@example.COM"),
        ("Ängstrom", "A\u0308ngstrom"),
        ([1, [2, "3"]], "3"),
        ("\x00\ud800", "\x00\ud800"),
        ("a=b", "a=b"),
    ],
)
def test_what_a_person_types_finds_the_value(value, text):
    """An order's number is a number in one producer and text in the next."""
    assert finds(of(order_id=value), text)
    assert finds(of(order_id=value), f"order_id={text}")
    assert finds(of(order_id=value), f" order_id = {text}")


@pytest.mark.parametrize(
    "value, text", [("47110", "4711"), ("A-1", "a-1"), (None, "null"), (None, ""), ("", ""), ("true", "True")]
)
def test_another_value_is_not_found(value, text):
    assert not finds(of(order_id=value), text)


def test_a_value_is_found_under_its_own_name_alone():
    search = Search(arguments=("order_id", "amount"))

    assert finds(of(order_id=7), "order_id=7", search)
    assert not finds(of(order_id=7), "amount=7", search)


@pytest.mark.parametrize(
    "call", [of(7), of(order_id=7), of(7, 1, 2, 3), of(7, customer={"email": "x"}, other=1)], ids=range(4)
)
def test_positional_arguments_have_the_signatures_names(call):
    assert finds(call, "order_id=7")


def test_arguments_beyond_the_signatures_are_found_by_their_own_names():
    search = Search(arguments=("rest", "other"))

    found = search.indexed(of(7, 1, 8, 9, other="x"), SIGNATURE)

    assert {argument_term("rest", "8"), argument_term("rest", "9"), argument_term("other", "x")} == set(found.terms)


@pytest.mark.parametrize("signature", [None, inspect.signature(lambda: None)], ids=["unknown", "another"])
def test_without_a_signature_that_fits_only_keywords_have_names(signature):
    """A worker that does not know the task writes its letter all the same, and the letter says what cannot be found."""
    search = Search(arguments=("order_id", "amount"))

    by_keyword, by_place = (search.indexed(call, signature) for call in (of(order_id=7), of(7, amount=2)))

    assert (argument_term("order_id", "7"),) == by_keyword.terms
    assert (argument_term("amount", "2"),) == by_place.terms
    assert "positional" in by_place.terms_note


def test_dots_lead_into_mappings_and_lists():
    search = Search(arguments=("customer.email", "customer.lines.sku"))
    customer = {"email": "ann@example.com", "lines": [{"sku": "A"}, {"sku": "B"}, {"qty": 1}, 7]}

    found = search.indexed(of(7, customer=customer), SIGNATURE)

    wanted = {("customer.email", "ann@example.com"), ("customer.lines.sku", "A"), ("customer.lines.sku", "B")}
    assert {argument_term(*each) for each in wanted} == set(found.terms)
    assert "" == found.terms_note


def test_a_sensitive_value_is_keyed_by_the_secret():
    """Without the secret, whoever reads the index would try all addresses of a list."""
    plain = Search(arguments=("customer.email",))
    keyed, other = (
        Search(arguments=("customer.email",), sensitive=("customer",), secret=secret) for secret in ("one", "two")
    )
    call = of(7, customer={"email": "ann@example.com"})

    terms = [search.indexed(call, SIGNATURE).terms for search in (plain, keyed, other)]

    assert 3 == len(set(terms))
    assert [True, False] == [finds(call, "ann@example.com", keyed), finds(call, "bob@example.com", keyed)]
    assert "one" not in repr(keyed)


@pytest.mark.parametrize(
    "call, why",
    [
        (of(body=b"\x80\x04K\x01.", content_type="application/x-python-serialize"), "only JSON is read"),
        (of(body=b"{"), "no task message"),
        (of(body=b"[1, 2, 3]"), "no list and no mapping"),
        (of(body=b"[[], {}]"), "no task message"),
        (of(body=b"[" * 100_000), "no task message"),
        (of(body=b'[[], {"order_id": ' + b"[" * 50 + b"]" * 50 + b"}, {}]"), "nested deeper"),
        (of(order_id={"id": 7}), "a mapping"),
        (of(order_id="x" * 5_000_000), "a text of 5000000 characters"),
        (of(order_id=list(range(10_000))), f"more than {MOST_TERMS} values"),
        (of(body=b"[[], {}, {}]", content_type="application/json").capped(100), "not whole"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_read_is_left_out_and_said(call, why):
    """A failure must be recorded whatever its arguments are."""
    found = SEARCH.indexed(call, SIGNATURE)

    assert len(found.terms) in {0, MOST_TERMS}
    assert why in found.terms_note


def test_one_argument_that_cannot_be_read_hides_no_other():
    search = Search(arguments=("customer", "order_id"))

    found = search.indexed(of(7, customer={"email": "ann@example.com"}), SIGNATURE)

    assert (argument_term("order_id", "7"),) == found.terms
    assert "ann" not in found.terms_note


def test_a_signature_that_raises_fails_no_burial():
    class Odd:
        def bind(self, *args, **kwargs):
            raise RuntimeError("a decorator's")

    found = SEARCH.indexed(of(7), Odd())

    assert ((), "its arguments cannot be read: RuntimeError") == (found.terms, found.terms_note)


def test_an_argument_that_is_not_searchable_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match="order_id"):
        SEARCH.argument_terms("order", "7")


def test_what_was_found_is_said_by_name():
    search = Search(arguments=("order_id", "amount"))
    found = search.indexed(letter(key="7", wire=of(7, 7).wire, root_id="r-1"), SIGNATURE)

    assert ("key", "order_id", "amount") == search.matches(found, "7")
    assert ("amount",) == search.matches(found, "amount=7")
    assert ("root_id",) == search.matches(found, "r-1")
    assert () == search.matches(found, "8")


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ("queue:payments", "queue"),
        ("queue: payments ", "queue"),
        ("error:shop.errors.Declined", "error"),
        ("error:Declined", "error"),
        ("error:other.Declined", "error"),
    ],
)
def test_letter_is_found_by_its_queue_and_its_error(words, label):
    """What an outage has in common is seldom one task."""
    wire = WireMessage(body=b"[]", delivery_info={"exchange": "", "routing_key": "payments"})
    found = letter(wire=wire, error_type="shop.errors.Declined")

    assert Search().matches(found, words) == (label,)
    assert set(Search().terms_for(words)) & set(terms_of(found))


@pytest.mark.parametrize("words", ["queue:", "error: ", "queue:Payments", "payments", "error:declined", "kind:queue"])
def test_other_words_find_no_queue_and_no_error(words):
    wire = WireMessage(body=b"[]", delivery_info={"exchange": "", "routing_key": "payments"})
    found = letter(wire=wire, error_type="shop.errors.Declined")

    assert not set(Search().terms_for(words)) & set(terms_of(found))


@pytest.mark.parametrize("info", [{}, {"routing_key": None}, {"routing_key": 7}, {"routing_key": " "}])
def test_letter_without_a_queue_and_an_error_has_no_term_of_them(info):
    found = letter(wire=WireMessage(body=b"[]", delivery_info=info), error_type="")

    assert facets_of(found) == []


def test_terms_survive_the_letters_json_and_bear_no_value():
    found = SEARCH.indexed(of(order_id="a-rare-value"), SIGNATURE)

    assert found == Letter.from_json(found.to_json())
    assert all(len(term) == 32 and set(term) <= set("0123456789abcdef") for term in terms_of(found))


def test_letter_of_an_older_version_has_no_terms_of_arguments():
    text = letter().to_json()
    for name in ("terms", "terms_note", "earlier_task_ids"):
        text = text.replace(f'"{name}":[],', "").replace(f',"{name}":""', "").replace(f',"{name}":[]', "")

    assert "terms" not in text
    assert letter() == Letter.from_json(text)


@given(st.text())
def test_one_form_is_its_own_form(text):
    """Else a value that was written by a person would not be found by being copied from a page."""
    form = typed_text(text)

    assert form is None or form == typed_text(form)
