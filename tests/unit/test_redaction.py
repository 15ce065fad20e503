"""
What is shown of a letter: no secret, and all that is none.
"""

import inspect
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from kombu.utils.imports import symbol_by_name
from kombu.utils.json import dumps

from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.conf import Settings
from celery_safeguards.deadletter.arguments import arguments_of, plain_of
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.shown import redaction
from celery_safeguards.deadletter.shown.masking import FAILED, MASK
from celery_safeguards.deadletter.shown.redaction import Redaction
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import ConfigurationError
from tests.conformance.deadletter_contract import NOON, letter
from tests.support.growth import growth

CANARY = "hunter2'\"\\é"
SIGNATURE = inspect.signature(lambda user, password, *rest, customer=None, **more: None)


def of(*args, body=None, content_type="application/json", headers=None, **kwargs):
    written = str(dumps([args, kwargs, {}])).encode() if body is None else body
    wire = WireMessage(body=written, content_type=content_type, content_encoding="utf-8", headers=headers or {})
    return letter(wire=wire)


def with_texts(given, canary=CANARY):
    """Return a letter whose error quotes a value, as errors do."""
    quoted = f"cannot log in with {canary!r} or {canary}, {len(canary)}"
    entry = HistoryEntry(at_seconds=NOON, what="died again", detail=quoted)
    attempt = FailedAttempt(number=1, at_seconds=NOON, ended=f"buried: {quoted}", message=quoted)
    texts = {"error_message": quoted, "traceback": f"Traceback\n  {quoted}", "reason": quoted}
    return replace(given, **texts, history=(entry,), attempt_history=(attempt,))


def everything(seen):
    """Return all that a person could be shown of a letter."""
    return "\n".join([seen.to_json(), *(value for _, value in arguments_of(seen.wire).shown), repr(seen)])


CALLS = {
    "by name": of(user="ann", password=CANARY),
    "by place": of("ann", CANARY),
    "nested": of("ann", 1, customer={"lines": [{"api_key": CANARY}]}),
    "of the project": of("ann", 1, customer={"email": [CANARY]}),
    "by the end of its name": of("ann", 1, new_password=CANARY),
    "typed": of("ann", customer={"secret": {"a": [CANARY]}}, password=1),
    "of what follows": of(body=str(dumps([[], {}, {"chain": [{"kwargs": {"token": CANARY}}]}])).encode()),
    "header": of(headers={"X-Api-Key": CANARY, "nested": {"authorization": CANARY}}),
    "pickled": of(body=CANARY.encode(), content_type="application/x-python-serialize"),
    "malformed": of(body=f'[[], {{"password": "{CANARY}"'.encode()),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_secret_is_in_nothing_that_is_shown(call):
    """A letter is looked at by everybody who is on call, and screens are shared."""
    seen = Redaction(("customer.email",)).letter(call, SIGNATURE)

    assert "hunter2" not in everything(seen)
    assert seen.fingerprint == call.fingerprint


@pytest.mark.parametrize(
    "name", ["by name", "by place", "nested", "of the project", "typed", "header", "of what follows"]
)
def test_secret_is_in_no_text_beside_it(name, monkeypatch):
    """An error tends to quote what it could not bear."""
    given = with_texts(CALLS[name])
    for repr_ in ("argsrepr", "kwargsrepr"):
        given = replace(given, wire=replace(given.wire, headers={**given.wire.headers, repr_: f"({CANARY!r},)"}))

    assert "hunter2" not in everything(Redaction(("customer.email",)).letter(given, SIGNATURE))

    monkeypatch.setattr(redaction, "SECRETS", ())
    assert "hunter2" in everything(Redaction().letter(given, SIGNATURE))


def test_what_is_no_secret_is_shown_byte_for_byte():
    """Who repairs a message must see what it was."""
    given = with_texts(of(1, 2, note="password-less", customer={"id": 7}), canary="order 7")

    seen = Redaction().letter(given)

    assert given == seen


def test_the_rest_of_a_masked_message_is_shown():
    seen = Redaction(("customer.email",)).letter(
        with_texts(of("ann", CANARY, customer={"id": 7, "email": "a@b.example"}), "a@b.example"), SIGNATURE
    )

    shown = dict(arguments_of(seen.wire).shown)
    assert shown["args"] == "['ann', '[redacted]']"
    assert shown["kwargs"] == "{'customer': {'id': 7, 'email': '[redacted]'}}"
    assert seen.error_message == f"cannot log in with '{MASK}' or {MASK}, 11"


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "PASSWORD: 'hunter2'",
        '{"db_password": "hunter2", "x": 1}',
        "Authorization: Bearer hunter2",
        "api-key = hunter2;",
        "https://h/?token=hunter2&x=1",
        r"{\"secret\": \"hunter2\"}",
    ],
)
def test_what_stands_behind_a_sensitive_name_is_masked_in_any_text(text):
    assert "hunter2" not in Redaction().text("error", text)


@pytest.mark.parametrize("text", ["password is too short", "order 4711: token missing", "secretary=ann", "x" * 100])
def test_text_without_a_secret_stays(text):
    assert text == Redaction().text("error", text)


def test_secret_that_another_argument_repeats_is_masked_there():
    seen = Redaction().letter(of("ann", CANARY, note=f"it is {CANARY}", lines=[{"text": CANARY}]), SIGNATURE)

    assert "hunter2" not in everything(seen)
    assert "it is [redacted]" in everything(seen)


def test_secret_that_is_a_name_in_another_mapping_is_masked_there():
    """Totals by customer are keyed by what a customer is called."""
    given = of(password=CANARY, totals={CANARY: 7}, headers={"by": {CANARY: 7}}, user="password")

    seen = Redaction().letter(given, SIGNATURE)

    assert "hunter2" not in everything(seen)
    assert {"password", "totals", "user"} == set(plain_of(seen.wire)[0]["kwargs"])


def test_reprs_of_masked_arguments_are_masked_whole():
    """They are cut, and a short value cannot be looked for in a text."""
    seen = Redaction().letter(of("ann", 7, headers={"argsrepr": "('ann', 7)"}), SIGNATURE)

    assert seen.wire.headers["argsrepr"] == MASK


def test_short_and_long_numbers_are_masked_as_words():
    seen = Redaction().letter(replace(of(password=1234), error_message="1234 of 12345, line 1234"))

    assert f"{MASK} of 12345, line {MASK}" == seen.error_message


@pytest.mark.parametrize(
    "value",
    [
        uuid.UUID("12345678-1234-5678-1234-567812345678"),
        date(1980, 5, 1),
        datetime(1980, 5, 1, 7, 8, 9, tzinfo=UTC),
        Decimal("1234.50"),
        b"hello",
        b"\xff\xfeabc",
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("place", ["argument", "header"])
def test_value_of_another_type_is_masked_as_python_writes_it(value, place):
    """An error quotes a UUID with its hyphens and a date by its repr, which no message holds."""
    given = of(secret=value) if place == "argument" else of(headers={"secret": value})

    seen = Redaction().letter(replace(given, error_message=f"no {value} in datetime, {value!r}, {[value]}"))

    assert not [part for part in (str(value), repr(value)) if part in seen.error_message]
    assert "in datetime" in seen.error_message


def test_positional_arguments_of_an_unknown_task_are_masked_if_any_may_be_sensitive():
    """Which of them is the address, only the task could tell."""
    given = with_texts(of("ann@example.com", 7, headers={"argsrepr": "('ann@example.com', 7)"}), "ann@example.com")

    assert "ann@" not in everything(Redaction(("email",)).letter(given))
    assert "ann@" in everything(Redaction(()).letter(given))


@pytest.mark.parametrize("name", ["chain", "callbacks", "chord"])
def test_positional_arguments_of_what_follows_are_masked_if_any_may_be_sensitive(name):
    """An export and `--json` show the whole of it."""
    group = {"task": "celery.group", "args": [], "kwargs": {"tasks": [{"task": "mail", "args": ["ann@b.example"]}]}}
    follower = {"chain": [group], "callbacks": [group], "chord": {"task": "mail", "args": ["ann@b.example"]}}[name]
    given = with_texts(of(body=str(dumps([[], {"order": 7}, {name: follower}])).encode()), "ann@b.example")

    assert "ann@b.example" not in everything(Redaction(("email",)).letter(given, SIGNATURE))
    assert given == Redaction().letter(given, SIGNATURE)


# --- the project's own function


def test_the_projects_function_is_asked_of_everything_that_is_shown():
    asked = []

    def redact(context, value):
        asked.append((context.what, context.name, context.task))
        return "x" if context.what != "argument" else value

    given = with_texts(of("ann", "p", 3, other=1, headers={"tenant": "t"}))
    seen = Redaction((), redact).letter(replace(given, wire=replace(given.wire, properties={"p": 1})), SIGNATURE)

    for what, name in (
        *(("argument", each) for each in ("user", "password", "rest", "other")),
        *(("header", "tenant"), ("property", "p"), ("error", ""), ("traceback", ""), ("reason", ""), ("history", "")),
    ):
        assert (what, name, "shop.charge") in asked
    assert ("x", "x", "x", {"tenant": "x"}) == (
        *(seen.error_message, seen.traceback, seen.history[0].detail),
        seen.wire.headers,
    )


def test_the_projects_function_sees_no_secret_that_is_masked_already():
    seen = []
    Redaction((), lambda context, value: seen.append(value) or value).letter(with_texts(of("ann", CANARY)), SIGNATURE)

    assert "hunter2" not in repr(seen)


def raises(context, value):
    raise RuntimeError(f"cannot mask {value}")


@pytest.mark.parametrize("redact", [raises, lambda *_: object(), lambda *_: {1, 2}], ids=["raises", "object", "set"])
def test_function_that_fails_shows_a_mark_and_no_value(redact, caplog):
    given = with_texts(of("a-rare-name", note="a-rare-name", headers={"x": "a-rare-name"}), "a-rare-name")

    seen = Redaction((), redact).letter(given, SIGNATURE)

    assert "a-rare-name" not in everything(seen) + caplog.text
    assert (FAILED, FAILED, FAILED) == (seen.error_message, seen.traceback, seen.wire.headers["x"])


@pytest.mark.parametrize(
    "body",
    [b'[[], {"a": ' + b"[" * 900 + b'"hunter2"' + b"]" * 900 + b"}, {}]", b'[["\\ud800\\u0000"], {}, {}]'],
    ids=["deep", "odd"],
)
def test_nasty_payload_is_shown_or_marked(body):
    def shown_deeply(depth):
        return shown_deeply(depth - 1) if depth else Redaction().letter(with_texts(of(body=body)))

    # Near the end of the stack the walk through the body gives up, and what it has not seen is not shown.
    seen = shown_deeply(600)
    assert (
        FAILED in (seen.error_message, seen.wire.body.decode()) or b"hunter2" in body or "\\ud800" in everything(seen)
    )
    if seen.error_message == FAILED:
        assert "hunter2" not in everything(seen)


def test_eight_times_the_text_costs_eight_times_as_much():
    """A letter of five megabytes must not stall a page: by the square, it would cost 64 times as much."""

    def shown(text):
        Redaction(("customer.email",)).letter(with_texts(of("ann", CANARY), text), SIGNATURE)

    assert growth(shown, "x" * 600_000, "x" * 4_800_000) < 24


# --- the setting


def test_function_is_had_by_its_dotted_name():
    settings = Settings(redact="tests.unit.test_redaction.raises", sensitive_arguments=("email",))

    found = Redaction.of(settings, lambda name: {"tests.unit.test_redaction.raises": raises}[name])

    assert (("email",), FAILED) == (found.sensitive, found.text("error", "x"))


@pytest.mark.parametrize("redact", ["no.such.module", "tests.unit.test_redaction.CANARY"])
def test_function_that_cannot_be_had_is_refused(redact):
    with pytest.raises(ConfigurationError, match="safeguards_redact"):
        Redaction.of(Settings(redact=redact), symbol_by_name)


def test_list_shows_a_summary_without_the_secret():
    """Lists do not read the arguments that would tell what is secret in an error."""
    found = Redaction().summarised(with_texts(of(password=CANARY)))

    assert "hunter2" not in found.shown_error + found.shown_reason
    assert "hunter2" in found.error_message


def test_what_masks_texts_is_made_once_for_the_same_names():
    """A list shows a hundred texts, and each of them asks for it."""
    assert Redaction(("customer",))._in_text is Redaction(("customer",))._in_text
    assert Redaction(("customer",))._in_text is not Redaction(("guest",))._in_text
