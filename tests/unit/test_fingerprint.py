"""
Which failures are the same one: a group that parts at every deployment, or holds everything, helps nobody on call.
"""

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.deadletter.fingerprint import fingerprint_of, stack_of, without_values
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.outcome import FailureKind

TRACE = """Traceback (most recent call last):
  File "/srv/releases/41/shop/tasks.py", line 12, in charge
    gateway.charge(order)
  File "/srv/releases/41/shop/gateway.py", line 88, in charge
    return json.loads(text)
           ^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
  File "/srv/.venv/lib/python3.11/site-packages/requests/models.py", line 10, in json
ValueError: Expecting value: line 1 column 1 (char 0)
"""


def fingerprint(**changes):
    values = {
        "kind": "bug",
        "task": "shop.charge",
        "error_type": "builtins.ValueError",
        "message": "",
        "traceback": TRACE,
    }
    return fingerprint_of(**{**values, **changes})


def test_stack_is_the_projects_own():
    assert ["shop/tasks.py:charge", "shop/gateway.py:charge"] == stack_of(TRACE)


@pytest.mark.parametrize(
    "old, new",
    [
        ("line 12,", "line 99,"),
        ("/srv/releases/41/", "/srv/releases/42/"),
        ("/srv/releases/41/", "C:\\app\\"),
        ("column 1 (char 0)", "column 7 (char 812)"),
        ("json/__init__.py", "json/decoder.py"),
        ("requests/models.py", "httpx/_models.py"),
        ("    gateway.charge(order)\n", ""),
    ],
)
def test_what_differs_between_hosts_and_releases_is_left_out(old, new):
    changed = TRACE.replace(old, new)

    assert changed != TRACE
    assert fingerprint() == fingerprint(traceback=changed, message="another")


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "data"},
        {"task": "shop.ship"},
        {"error_type": "builtins.KeyError"},
        {"traceback": TRACE.replace("shop/gateway.py", "shop/bank.py")},
        {"traceback": TRACE.replace("88, in charge", "88, in refund")},
    ],
    ids=["kind", "task", "class", "file", "function"],
)
def test_what_makes_another_failure(changes):
    assert fingerprint() != fingerprint(**changes)


def recurse(depth):
    if not depth:
        raise ValueError("deep")
    recurse(depth - 1)


def formatted(call):
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception(error))


def test_depth_of_a_recursion_is_a_value():
    shallow, deep = formatted(lambda: recurse(1)), formatted(lambda: recurse(50))

    assert fingerprint(traceback=shallow) == fingerprint(traceback=deep)
    assert "unit/test_fingerprint.py:recurse" == stack_of(deep)[-1]


def test_members_of_an_exception_group_count():
    """Their frames are indented and marked."""

    def fail_together():
        try:
            recurse(0)
        except ValueError as error:
            raise ExceptionGroup("several", [error]) from None

    assert "unit/test_fingerprint.py:recurse" in stack_of(formatted(fail_together))


def test_stack_of_libraries_alone_is_taken_as_it_is():
    """A process that was lost is reported from inside billiard."""
    trace = '  File "/v/lib/python3.11/site-packages/billiard/pool.py", line 1, in mark_as_worker_lost\n'

    assert ["billiard/pool.py:mark_as_worker_lost"] == stack_of(trace)


@pytest.mark.parametrize(
    "one, other",
    [
        ("Received unregistered task of type 'shop.a'", "Received unregistered task of type 'shop.b'"),
        ("order 7 is late by 12.5 s", "order 81 is late by 3.25 s"),
        ("<Order object at 0x7f00aa>", "<Order object at 0x7f11bb>"),
        ("no 3f2b8c1e-8a54-4f6e-9d10-aa00bb11cc22", "no 9a2b8c1e-0a54-4f6e-9d10-aa00bb11cc23"),
        ("mail to ann@example.org failed", "mail to bob@example.com failed"),
    ],
)
def test_values_are_left_out_of_a_message_without_a_stack(one, other):
    assert without_values(one) == without_values(other)
    assert fingerprint(traceback="", message=one) == fingerprint(traceback="", message=other)


def test_words_of_a_message_tell_failures_without_a_stack_apart():
    assert fingerprint(traceback="", message="worker was lost") != fingerprint(traceback="", message="expired")


@given(text=st.text(), trace=st.text())
def test_any_text_has_a_fingerprint(text, trace):
    assert 16 == len(fingerprint(message=text, task=text, traceback=trace))


def letter(**changes):
    values = {
        "id": "l-1",
        "task": "shop.charge",
        "task_id": "t-1",
        "wire": WireMessage(body=b"x" * 60_000),
        "kind": FailureKind.BUG,
        "effect_possible": False,
        "reason": "",
        "first_seen_seconds": 1.0,
        "last_failed_seconds": 1.0,
        "error_type": "builtins.ValueError",
        "traceback": TRACE,
    }
    return Letter(**{**values, **changes})


def test_letter_that_is_cut_keeps_the_fingerprint_of_the_whole():
    """Two letters of one failure would be of two groups where only one was too large."""
    frames = "".join(f'  File "/app/shop/a{n}.py", line {n}, in f{n}\n    {"x" * 500}\n' for n in range(20))
    whole = letter(traceback=frames)
    cut = whole.capped(20_000)

    assert cut.traceback != whole.traceback
    assert whole.fingerprint == cut.fingerprint == Letter.from_json(cut.to_json()).fingerprint


def test_letter_of_an_older_version_gets_its_fingerprint_when_it_is_read():
    text = letter().to_json()
    old = text.replace(f'"fingerprint":"{letter().fingerprint}"', '"was_not_there":1')

    assert old != text
    assert letter().fingerprint == Letter.from_json(old).fingerprint
