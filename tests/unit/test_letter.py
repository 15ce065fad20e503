"""
Letters: what failed must be recorded whatever it holds, and must come back exactly as it came.
"""

import base64
import decimal
import hashlib
import json
import pickle
import socket
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.deadletter.history import MAX_HISTORY, HistoryEntry
from celery_safeguards.deadletter.letter import Letter, LetterTooNew, LetterTruncated, LetterUnreadable
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.deadletter.text import ErrorText, clean_text, describe_error
from celery_safeguards.deadletter.wire import BODY_HEAD_BYTES, WireMessage
from celery_safeguards.outcome import FailureKind

VERSION_1 = (
    '{"v":1,"id":"l-1","task":"shop.charge","task_id":"t-1","wire":{"body":"W1tdLCB7Im9yZGVyX2lkIjogN31d",'
    '"content_type":"application/json","content_encoding":"utf-8","headers":{"task":"shop.charge","id":"t-1",'
    '"eta":{"__type__":"datetime","__value__":"2025-01-02T03:04:05+00:00"}},"properties":{"reply_to":"r"},'
    '"delivery_info":{"exchange":"","routing_key":"celery","priority":0},"degraded":["headers.x"],"truncated":false,'
    '"body_bytes":null,"body_sha256":null},"kind":"bug","effect_possible":true,"reason":"attempt 4 of 4",'
    '"first_seen_seconds":1700000000.5,"last_failed_seconds":1700000300.25,"key":"payment:7","scope":"shop.charge",'
    '"root_id":"r-1","parent_id":"p-1","group_id":"g-1","chord":true,"error_type":"builtins.ValueError",'
    '"error_message":"no","traceback":"Traceback","attempts":4,"deliveries":6,"lost_starts":1,"host":"h","pid":42,'
    '"burial":1700000300250000,"state":"replayed","replay_task_id":"t-2",'
    '"history":[[1700000400.0,"replay begun","ana","as task t-2"],[1700000401.0,"replayed",null,"as task t-2"]]}'
)


def letter(**changes):
    wire = changes.pop("wire", None) or WireMessage(body=b"[[], {}, {}]", content_type="application/json")
    values = {
        "id": "l-1",
        "task": "shop.charge",
        "task_id": "t-1",
        "wire": wire,
        "kind": FailureKind.BUG,
        "effect_possible": False,
        "reason": "attempt 4 of 4",
        "first_seen_seconds": 1_700_000_000.5,
        "last_failed_seconds": 1_700_000_300.25,
    }
    return Letter(**{**values, **changes})


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def header_values():
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary()
        | st.datetimes(timezones=st.none() | st.just(UTC))
        | st.dates()
        | st.times()
        | st.uuids()
        | st.decimals(allow_nan=False)
    )
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


letters = st.builds(
    Letter,
    id=st.text(min_size=1),
    task=st.text(),
    task_id=st.text(),
    wire=st.builds(
        WireMessage,
        body=st.binary(),
        content_type=st.none() | st.text(),
        content_encoding=st.none() | st.text(),
        headers=st.dictionaries(st.text(), header_values(), max_size=4),
        properties=st.dictionaries(st.text(), header_values(), max_size=2),
    ),
    kind=st.sampled_from(FailureKind),
    effect_possible=st.booleans(),
    reason=st.text(),
    first_seen_seconds=st.floats(0, 1e10),
    last_failed_seconds=st.floats(0, 1e10),
    key=st.none() | st.text(),
    chord=st.none() | st.booleans() | st.text(),
    error_message=st.text(st.characters()),
    traceback=st.text(st.characters(codec=None)),
    burial=st.integers(0, 2**53),
    state=st.sampled_from(["open", "replaying", "replayed", "closed", "discarded"]),
    replay_task_id=st.none() | st.text(),
    history=st.lists(
        st.builds(HistoryEntry, at_seconds=st.floats(0, 1e10), what=st.text(), who=st.none() | st.text()), max_size=3
    ).map(tuple),
)


@pytest.mark.parametrize(
    "state, archived_from", [("archived", None), ("open", "closed"), ("archived", "archived"), ("archived", "lost")]
)
def test_an_archived_letter_says_where_it_was(state, archived_from):
    """Restored to nowhere, it would be lost in plain sight."""
    text = letter(state="archived", archived_from="open").to_json()
    damaged = text.replace('"state":"archived"', f'"state":{json.dumps(state)}')
    damaged = damaged.replace('"archived_from":"open"', f'"archived_from":{json.dumps(archived_from)}')

    with pytest.raises(LetterUnreadable, match=r"archived_from|none of"):
        Letter.from_json(damaged)
    assert ("archived", "open") == ((read := Letter.from_json(text)).state, read.work_state)


@given(letters)
def test_a_letter_comes_back_equal_from_its_json(written):
    """A letter that lost something on its way could not be replayed as it came: django-celery-results#113, #239."""
    assert written == Letter.from_json(written.to_json())


@given(letters)
def test_the_json_is_plain_ascii_without_nul(written):
    """A NUL or a lone surrogate in the text made the write of a failure fail: django-celery-results#82."""
    text = written.to_json()

    assert text.isascii()
    assert "\x00" not in text


def test_body_bytes_are_kept_exactly():
    """A body rebuilt from a repr or a decoded copy replays with other arguments: django-celery-results#252."""
    body = bytes(range(256)) * 20

    assert body == Letter.from_json(letter(wire=WireMessage(body=body)).to_json()).wire.body


@pytest.mark.parametrize("body", [bytearray(b"abc"), memoryview(b"abc"), "abc"])
def test_every_form_of_body_that_a_transport_hands_over_is_taken(body):
    """A transport that gives text or a buffer would make the burial fail."""
    assert WireMessage(body=body).body == b"abc"


def test_version_1_is_read():
    """Letters that lie in stores today would be lost with the next release."""
    expected = letter(
        wire=WireMessage(
            body=b'[[], {"order_id": 7}]',
            content_type="application/json",
            content_encoding="utf-8",
            headers={
                "task": "shop.charge",
                "id": "t-1",
                "eta": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
            },
            properties={"reply_to": "r"},
            delivery_info={"exchange": "", "routing_key": "celery", "priority": 0},
            degraded=("headers.x",),
        ),
        effect_possible=True,
        key="payment:7",
        scope="shop.charge",
        root_id="r-1",
        parent_id="p-1",
        group_id="g-1",
        chord=True,
        error_type="builtins.ValueError",
        error_message="no",
        traceback="Traceback",
        attempts=4,
        deliveries=6,
        lost_starts=1,
        host="h",
        pid=42,
        burial=1_700_000_300_250_000,
        state="replayed",
        replay_task_id="t-2",
        history=(
            HistoryEntry(at_seconds=1_700_000_400.0, what="replay begun", who="ana", detail="as task t-2"),
            HistoryEntry(at_seconds=1_700_000_401.0, what="replayed", detail="as task t-2"),
        ),
    )

    assert expected == Letter.from_json(VERSION_1)


def test_version_1_is_written_as_it_always_was():
    """Two releases that run side by side during a deploy must read each other's letters; they leave out what is new."""
    written = Letter.from_json(VERSION_1).to_json()

    assert written == VERSION_1.removesuffix("}") + (
        ',"fingerprint":"ba985f4f6d06a1a9","earlier_task_ids":[],"terms":[],"terms_note":"",'
        '"shown_error":"","shown_reason":"","archived_from":null,"erased":false,"release":"","attempt_history":[]}'
    )


def test_a_newer_version_is_refused_with_advice():
    """A letter half understood would be stored back without what was not understood."""
    newer = VERSION_1.replace('"v":1', '"v":2')

    with pytest.raises(LetterTooNew, match="format 2 is newer than format 1: upgrade"):
        Letter.from_json(newer)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", "3", '{"v":1}', '{"v":"1"}', "[" * 100_000),
        VERSION_1[:300],
        VERSION_1.replace('"bug"', '"gub"'),
        VERSION_1.replace('"state":"replayed"', '"state":"gone"'),
        VERSION_1.replace("W1td", "?"),
    ],
    ids=range(12),
)
def test_damaged_text_is_refused_as_unreadable(text):
    """A reader that meets damage must be able to tell it from a fault of its own."""
    with pytest.raises(LetterUnreadable):
        Letter.from_json(text)


def test_headers_that_celery_json_carries_come_back_equal():
    """A replay with an eta or a tenant id that has become text is another message."""
    headers = {
        "eta": datetime(2025, 1, 2, tzinfo=UTC),
        "blob": b"\xff\x00",
        "id": uuid.UUID(int=5),
        "price": decimal.Decimal("1.10"),
        "nested": {"list": [1, None, True, "ä"]},
        "nul": "a\x00b",
    }

    wire = Letter.from_json(letter(wire=WireMessage(body=b"", headers=headers)).to_json()).wire

    assert headers == wire.headers
    assert wire.degraded == ()


def test_tuples_become_lists_as_on_the_wire():
    """`timelimit` is a tuple before publish and a list after; the letter must look the same for both."""
    assert WireMessage(body=b"", headers={"timelimit": (None, 30)}).headers == {"timelimit": [None, 30]}


def test_a_header_that_json_cannot_carry_is_kept_as_repr_and_named():
    """A header dropped in silence would be missed only after the replay."""
    wire = WireMessage(body=b"", headers={"tenant": {"id": 3, "tags": {7}}, "fine": 1}, properties={"p": object})

    assert wire.headers == {"tenant": {"id": 3, "tags": "{7}"}, "fine": 1}
    assert wire.degraded == ("headers.tenant", "properties.p")


def circle():
    made = []
    made.append(made)
    return made


class Unprintable:
    def __repr__(self):
        raise RuntimeError

    def __json__(self):
        raise KeyError


@pytest.mark.parametrize(
    "value", [Unprintable(), {(1, 2): 3}, circle(), threading.Lock(), float("nan"), 10**5000], ids=range(6)
)
def test_no_header_can_make_the_burial_fail(value):
    """One odd header from a foreign producer must not keep a failure from being recorded: celery/celery#6990."""
    written = letter(wire=WireMessage(body=b"", headers={"odd": value}))

    assert isinstance(Letter.from_json(written.to_json()), Letter)


def test_an_envelope_of_an_unknown_type_is_kept_as_it_came():
    """A type registered in the workers only must not make the letter unreadable in the web process."""
    headers = {"money": {"__type__": "money", "__value__": "3 EUR"}, "bad": {"__type__": "uuid", "__value__": 3}}

    assert headers == Letter.from_json(letter(wire=WireMessage(body=b"", headers=headers)).to_json()).wire.headers


def test_worker_internal_headers_are_not_kept():
    """The raw message inside the headers would double the letter, and an owner token would be handed on."""
    assert WireMessage(body=b"", headers={"task": "t", "sg_owner": "o", "sg_wire": b"raw"}).headers == {"task": "t"}


def test_a_captured_letter_reads_task_ids_and_group_from_the_headers():
    """A list of letters without task or group cannot be searched when a chord is missing a member."""
    wire = WireMessage(
        body=b"", headers={"task": "shop.charge", "id": "t-1", "root_id": "r", "parent_id": "p", "group": "g"}
    )

    captured = Letter.capture(
        wire=wire,
        error=ErrorText(type="builtins.ValueError", message="no", traceback="tb"),
        id="l-1",
        kind=FailureKind.BUG,
        effect_possible=False,
        reason="attempt 4 of 4",
        first_seen_seconds=1.0,
        last_failed_seconds=2.0,
    )

    expected = ("shop.charge", "t-1", "r", "p", "g", "builtins.ValueError", "no", "tb")
    assert expected == (
        *(captured.task, captured.task_id, captured.root_id, captured.parent_id, captured.group_id),
        *(captured.error_type, captured.error_message, captured.traceback),
    )


def test_a_captured_letter_without_headers_has_an_empty_task():
    """A message that no one can decode must be buried too."""
    captured = Letter.capture(
        wire=WireMessage(body=b"\xff", headers={"task": 7}),
        error=ErrorText(type="x"),
        id="l-1",
        kind=FailureKind.UNDECODABLE,
        effect_possible=False,
        reason="body is no JSON",
        first_seen_seconds=1.0,
        last_failed_seconds=1.0,
    )

    assert (captured.task, captured.task_id) == ("", "")


def test_an_empty_id_is_refused():
    """Two letters without an id would be one letter."""
    with pytest.raises(ValueError, match="id=''"):
        letter(id="")


def test_texts_of_a_letter_hold_no_nul_and_no_surrogate():
    """PostgreSQL refuses NUL in text, and UTF-8 has no lone surrogate: django-celery-results#74."""
    bad = letter(task="a\x00", error_message="\ud800", traceback="\x00\udfff", reason="\x00", host="\x00")

    expected = ("a\ufffd", "\ufffd", "\ufffd\ufffd", "\ufffd", "\ufffd")
    assert expected == (bad.task, bad.error_message, bad.traceback, bad.reason, bad.host)


def test_a_history_keeps_its_last_lines():
    """A letter that is replayed by a robot every minute must not grow without end."""
    noted = letter()
    for number in range(MAX_HISTORY + 5):
        noted = noted.noted(HistoryEntry(at_seconds=float(number), what="note"))

    assert [float(number) for number in range(5, MAX_HISTORY + 5)] == [entry.at_seconds for entry in noted.history]


@given(st.text(st.characters(codec=None), max_size=200), st.integers(1, 120), st.sampled_from(["first", "last"]))
def test_clean_text_is_never_longer_than_asked(text, max_chars, keep):
    """An over-long text made the insert of the failure fail: django-celery-results#74."""
    assert len(clean_text(text, max_chars, keep=keep)) <= max_chars


def test_a_cut_message_keeps_its_beginning_and_says_how_much_was_dropped():
    """Half a message that looks whole misleads whoever reads it."""
    assert clean_text("a" * 10_000, 98) == "a" * 71 + "\n[9929 characters dropped]"


def test_a_five_megabyte_traceback_keeps_its_end():
    """The end of a traceback names the error; its beginning is the worker's own frames."""
    text = clean_text("x" * 5_000_000 + "ValueError: no", 20_000, keep="last")

    assert len(text) <= 20_000
    assert text.startswith("[4980")
    assert text.endswith("xValueError: no")


class TwoArguments(Exception):
    def __init__(self, code, request):
        super().__init__(f"code {code}")


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


class Holding(Exception):
    def __init__(self):
        super().__init__("holds")
        self.lock = threading.Lock()


class WithBrokenNotes(Exception):
    @property
    def __notes__(self):
        raise OSError("no notes")


def test_an_exception_that_cannot_be_rebuilt_is_described():
    """Pickling such a class broke the hand-over between child and parent: celery/celery#6990."""
    error = raised(TwoArguments(7, request="r"))
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(error))

    described = describe_error(error, 1_000, 20_000)

    assert f"{__name__}.TwoArguments" == described.type
    assert described.message == "code 7"
    assert "raise error" in described.traceback
    assert described.traceback.endswith("TwoArguments: code 7\n")


def test_an_exception_whose_str_raises_is_described():
    """The second error would hide the first, and nothing would be recorded: celery/celery#6990."""
    described = describe_error(raised(Speechless()), 1_000, 20_000)

    assert described.message == "<its __str__ raises RuntimeError>"
    assert "raise error" in described.traceback


def test_an_exception_that_holds_a_lock_or_a_socket_is_described():
    """What cannot be pickled must not keep the failure from being recorded: celery/celery#6990."""
    with socket.socket() as held:
        error = raised(Holding())
        error.socket = held

        assert describe_error(error, 1_000, 20_000).message == "holds"


def test_an_exception_that_cannot_be_formatted_keeps_its_frames():
    """Where even the traceback module fails, the place of the failure is still worth having."""
    assert "raise error" in describe_error(raised(WithBrokenNotes("x")), 1_000, 20_000).traceback


def test_a_huge_message_with_nul_and_surrogates_is_described():
    """The text of a failed query can be megabytes of anything: django-celery-results#82."""
    described = describe_error(raised(ValueError("\x00\ud800" * 2_500_000)), 1_000, 20_000)

    assert described.message[:2] == "\ufffd\ufffd"
    assert len(described.message) <= 1_000
    assert len(described.traceback) <= 20_000
    assert described.traceback.encode().isascii() is False


def test_the_cause_is_in_the_traceback():
    """`raise Sorry from KeyError` without its cause says nothing."""
    error = ValueError("outer")
    error.__cause__ = raised(KeyError("inner"))

    assert "KeyError: 'inner'" in describe_error(error, 1_000, 20_000).traceback


def test_a_letter_within_the_cap_is_kept_byte_for_byte():
    """A cap that touches small letters would make every replay doubtful."""
    small = letter(traceback="x" * 10_000)

    assert small is small.capped(len(small.to_json()))


def test_a_long_traceback_is_given_up_before_the_body():
    """A letter that has lost its traceback can still be replayed; the other way round it cannot."""
    capped = letter(wire=WireMessage(body=b"b" * 30_000), traceback="x" * 50_000).capped(60_000)

    assert capped.wire.body == b"b" * 30_000
    assert not capped.wire.truncated
    assert len(capped.to_json()) <= 60_000


def test_a_body_over_the_cap_keeps_head_length_and_digest():
    """A huge message must leave a trace that tells which one it was: celery/celery#8851, celery/celery#318."""
    body = bytes(range(256)) * 40_000

    wire = letter(wire=WireMessage(body=body, headers={"task": "t"})).capped(100_000).wire

    expected = (body[:BODY_HEAD_BYTES], len(body), hashlib.sha256(body).hexdigest(), True, {"task": "t"})
    assert expected == (wire.body, wire.body_bytes, wire.body_sha256, wire.truncated, wire.headers)


def test_huge_headers_are_cut_and_named():
    """A letter that stays over the cap would be refused by the store for ever."""
    wire = WireMessage(body=b"b" * 50_000, headers={"big": ["h" * 1_000_000], "small": 1})

    capped = letter(wire=wire).capped(50_000)

    assert len(capped.to_json()) <= 50_000
    assert capped.wire.headers["small"] == 1
    assert capped.wire.degraded == ("headers.big",)


def test_capping_twice_keeps_the_digest_of_the_whole_body():
    """The digest of a head would pass for the digest of the body."""
    body = b"b" * 200_000

    twice = letter(wire=WireMessage(body=body)).capped(50_000).capped(1)

    assert (len(body), hashlib.sha256(body).hexdigest()) == (twice.wire.body_bytes, twice.wire.body_sha256)


def test_a_truncated_letter_refuses_replay_and_names_the_setting():
    """Replaying the head of a body would run the task with damaged arguments, or not at all."""
    capped = letter(wire=WireMessage(body=b"b" * 200_000)).capped(50_000)

    with pytest.raises(LetterTruncated, match="safeguards_max_letter_bytes"):
        capped.require_whole()


def test_a_whole_letter_may_be_replayed():
    """The refusal must not touch letters that are complete."""
    letter().require_whole()


def test_the_refusal_of_a_second_replay_survives_pickling():
    """A replay job in a pool child hands this error to its parent."""
    again = pickle.loads(pickle.dumps(LetterNotOpen("l-1", "replaying", "t-2")))

    assert str(again) == "letter l-1 is replaying, as task t-2"


def test_wire_bytes_are_base64_in_the_json():
    """Another tool must be able to read the body without this package."""
    plain = json.loads(letter(wire=WireMessage(body=b"\xff\x00")).to_json())

    assert base64.b64decode(plain["wire"]["body"]) == b"\xff\x00"


def test_a_letter_is_changed_only_by_replacing_it():
    """Two holders of one letter must never see each other's changes."""
    first = letter()

    replace(first, state="closed")

    assert first.state == "open"
