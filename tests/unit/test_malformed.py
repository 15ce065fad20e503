"""What is found wrong with a message, and what is left to Celery or run as plain Celery runs it."""

import json
import pickle
from types import SimpleNamespace

import pytest
from kombu.message import Message

from celery_safeguards.worker.malformed import fault_of
from tests.support.bench import HasNoText

GUARDED = SimpleNamespace(policy=object())
TASKS = {"plain": object(), "guarded": GUARDED}
BODY = ([1], {}, {})


def message(body=BODY, *, headers=None, task="plain", content_type="application/json", **changes):
    given = {"task": task, "id": "one", **changes} if headers is None else headers
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(raw, content_type=content_type, content_encoding="utf-8", headers=given, accept={"application/json"})


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eta": "2030-01-01T00:00:00+00:00"},
        {"eta": "2030-01-01T00:00:00"},
        {"timelimit": [None, 5]},
        {"timelimit": None},
        {"retries": 3},
        {"retries": None},
        {"shadow": "plain but odd"},
        {"stamped_headers": ["a"], "stamps": {"a": ["b"]}},
        {"stamped_headers": None, "stamps": None},
        {"x": json.loads("[" * 100 + "]" * 100)},
    ],
)
def test_message_of_celerys_own_has_no_fault(task, changes):
    """Every message would end as a letter."""
    assert fault_of(message(task=task, **changes), TASKS) is None


@pytest.mark.parametrize(
    "body",
    [
        {"task": "plain", "id": "one", "args": [1], "kwargs": {}},
        {"task": "plain", "id": "one"},
    ],
)
def test_message_of_protocol_1_has_no_fault(body):
    """Old producers still send it; its ids are in its body."""
    assert fault_of(message(body, headers={"x-tenant": "a"}), TASKS) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": ["plain"]}, "task"),
        ({"id": ["one"]}, "id"),
        ({"timelimit": 5}, "time limits"),
        ({"timelimit": [1, 2, 3]}, "time limits"),
        ({"timelimit": ["1", None]}, "time limits"),
        ({"eta": "0001-01-01T00:00:00+14:00"}, "eta"),
        ({"stamped_headers": 5}, "stamps"),
        ({"stamped_headers": [{"a": 1}]}, "stamps"),
        ({"stamped_headers": ["a"], "stamps": [1]}, "stamps"),
        ({"shadow": {"a": 1}}, "shadow"),
        ({"x": json.loads("[" * 600 + "]" * 600)}, "nested"),
        ({"body": 1}, "body"),
        ({"body": [[1], {}]}, "body"),
        ({"body": {"number": 1}}, "body"),
        ({"body": [1, {}, {}]}, "args"),
        ({"body": [[1], [], {}]}, "kwargs"),
        ({"body": [[1], {}, [1]]}, "embed"),
    ],
)
def test_message_that_celery_could_not_run_has_a_fault_that_names_its_place(changes, words):
    """Whoever has to mend the producer reads this alone."""
    assert words in fault_of(message(**changes), TASKS)


def test_id_that_is_missing_is_a_fault_of_an_unknown_task_too():
    """Celery looks for the id when it gives an unknown task up, and fails at that."""
    headers = {"task": "gone"}

    assert "id" in fault_of(message(headers=headers), TASKS)


@pytest.mark.parametrize(
    "changes",
    [{"id": None}, {"id": 5}, {"id": ""}, {"retries": "x"}, {"retries": -5}, {"body": [[1], {}, None]}],
    ids=repr,
)
def test_oddity_is_a_fault_for_a_guarded_task_alone(changes):
    """Plain Celery runs it; a guarded task would count its starts together with those of all others without an id."""
    assert fault_of(message(**changes), TASKS) is None
    assert fault_of(message(task="guarded", **changes), TASKS) is not None


@pytest.mark.parametrize(
    "odd",
    [
        message(task="gone"),
        message(b"{"),
        message(content_type="application/x-python-serialize"),
        message(eta="soon"),
        message(headers={}),
        message([1], headers={"task_name": "plain"}),
    ],
    ids=["unknown", "truncated", "not accepted", "eta", "no task", "not a mapping"],
)
def test_what_celery_refuses_by_itself_is_left_to_it(odd):
    """Celery stores a failure, or sends a signal, that projects listen to."""
    assert fault_of(odd, TASKS) is None


def test_value_that_cannot_even_be_shown_is_a_fault():
    """celery/kombu#2421: an error of the values' own, not of kombu's, would end the worker."""
    odd = message(pickle.dumps((HasNoText(), {}, {})), content_type="application/x-python-serialize")
    odd.accept = {"application/x-python-serialize"}

    assert "cannot be read: RuntimeError" in fault_of(odd, TASKS)
