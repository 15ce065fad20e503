"""
The headers of a guarded message: what is absent or odd proves nothing, and what lives inside a worker stays there.
"""

import pytest

from celery_safeguards import headers as h
from celery_safeguards.headers import Lineage, outgoing

FULL = {
    h.VERSION: 1,
    h.KEY: "op:1",
    h.FINGERPRINT: "f1",
    h.EPOCH: "e1",
    h.SEEN: 7,
    h.DEFERRALS: 2,
    h.DEFERRED_SINCE: 12.5,
    h.BEGAN: 11,
    h.LETTER: "l1",
    h.EDITED_FROM: "l0",
    h.VERDICT: {"happened": True, "result": 3},
}


def test_lineage_reads_what_a_message_says_of_its_past():
    """Each of these decides whether a body may start."""
    assert Lineage.from_headers(FULL) == Lineage(
        key="op:1",
        fingerprint="f1",
        epoch="e1",
        seen=7,
        deferrals=2,
        deferred_since=12.5,
        began=11.0,
        letter_id="l1",
        edited_from="l0",
        verdict={"happened": True, "result": 3},
    )


@pytest.mark.parametrize("headers", [None, {}, {"x-other": 1}])
def test_message_without_our_headers_has_no_past(headers):
    """A foreign producer's message is a first delivery, not an error."""
    assert Lineage.from_headers(headers) == Lineage()


@pytest.mark.parametrize("odd", [None, "", 0, -1, True, [], {}, "7", 1.5, object()])
@pytest.mark.parametrize(
    ("name", "field", "nothing"),
    [(h.KEY, "key", None), (h.SEEN, "seen", 0), (h.DEFERRALS, "deferrals", 0), (h.VERDICT, "verdict", None)],
)
def test_header_of_another_shape_proves_nothing(name, field, nothing, odd):
    """A header that a proxy or another release wrote must not stop a worker, nor claim a start that never was."""
    fits = {h.KEY: isinstance(odd, str) and odd, h.VERDICT: isinstance(odd, dict)}.get(name, False)

    found = getattr(Lineage.from_headers({name: odd}), field)

    assert found == (odd if fits else nothing)


def test_whole_number_that_is_a_flag_is_none():
    """`True` is an int in Python: as a fence it would prove an earlier start."""
    assert Lineage.from_headers({h.SEEN: True, h.BEGAN: True}) == Lineage()


def test_copies_carry_everything_but_what_is_inside_the_worker():
    """The raw message in its own copy would double with every retry; the owner is this worker's only."""
    headers = {**FULL, "x-tenant": "a", h.OWNER: "o1", h.WIRE: {"body": b""}}

    assert outgoing(headers) == {**FULL, "x-tenant": "a"}


@pytest.mark.parametrize("headers", [None, {}])
def test_message_without_headers_has_copies_without_headers(headers):
    """Eager requests have None here."""
    assert outgoing(headers) == {}


def test_outgoing_headers_are_a_copy():
    """A retry that adds a header must not change the running request's."""
    headers = {"x-tenant": "a"}

    outgoing(headers)["x-tenant"] = "b"

    assert headers == {"x-tenant": "a"}
