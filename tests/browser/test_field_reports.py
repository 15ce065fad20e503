"""
What others have met in production, from the worker to the page and back.
"""

import base64
import json
import uuid

import pytest

from celery_safeguards.outcome import FailureKind
from tests.browser.desk import where
from tests.browser.pages import RECORDS, content, find, follow, open_letter, press, told
from tests.integration.replay.shop import VALUES


def is_said(event, **values):
    return lambda said: said["event"] == event and all(said.get(name) == value for name, value in values.items())


def letters_of(desk, task):
    return desk.store(lambda wiring: wiring.letters.list(task=task, limit=100)).letters


def replay(page, desk, letter):
    open_letter(page, desk, letter)
    press(page, "Replay…")
    press(page, "Replay")


def test_a_dead_operation_keeps_its_key_in_sight_until_it_is_given_up(log_in, desk, announcements):
    """A job in the dead set kept its lock, and later ones were dropped unseen (sidekiq-unique-jobs#304, #861)."""
    order = f"order-{uuid.uuid4().hex[:8]}"
    worker = desk.start_worker(announcements).wait_ready(40)
    for amount in (-1, 5):
        desk.publish("desk.charge", order_id=order, amount=amount)
        worker.wait_for("task_failure", 20, count=1 if amount < 0 else 2)
    page = log_in("ann")

    follow(page, find(page, desk, f'payment:"{order}"', RECORDS).get_by_role("link"))
    record = content(page)
    follow(page, page.locator(".field-letter").get_by_role("link"))
    press(page, "Discard…")
    page.get_by_label("Reason").fill("the amount was wrong")
    press(page, "Discard")
    desk.publish("desk.charge", order_id=order, amount=5)
    worker.wait_for(is_said("charged", order_id=order), 20)

    assert "dead" in record
    assert worker.stop() == 0


def test_a_task_that_is_not_deployed_yet_runs_once_it_is(log_in, desk, announcements):
    """Discarded on Redis with a line in the log, and in a loop on SQS (celery/celery#5504, getsentry/sentry#1665)."""
    old = desk.start_worker(announcements).wait_ready(40)
    desk.store(lambda _: desk.app.send_task("desk.later", (7,)))
    desk.wait_until_buried("desk.later")
    assert old.stop() == 0
    (letter,) = letters_of(desk, "desk.later")
    page = log_in("ann")

    open_letter(page, desk, letter)
    shown = content(page)
    new = desk.start_worker(announcements, **{where.DEPLOYED: "1"}).wait_ready(40)
    replay(page, desk, letter)
    new.wait_for(is_said("later", number=7), 20)

    assert letter.kind is FailureKind.UNKNOWN_TASK
    assert "unknown_task" in shown
    assert new.stop() == 0
    assert desk.letter(letter).state == "closed"


@pytest.mark.parametrize("body", [b"\x80\x04K\x01.", b'[[1], {"a": ', b'{"a": 1}'], ids=["pickle", "cut", "shape"])
def test_a_message_that_nobody_can_read_is_shown_with_its_bytes(log_in, desk, announcements, body):
    """It killed the worker, or was acknowledged away (celery/celery#4308, #2873; celery/kombu#2421)."""
    task_id = uuid.uuid4().hex
    is_pickle = body.startswith(b"\x80")
    envelope = {
        "body": base64.b64encode(body).decode(),
        "content-type": "application/x-python-serialize" if is_pickle else "application/json",
        "content-encoding": "binary" if is_pickle else "utf-8",
        "headers": {"task": "desk.note", "id": task_id, "lang": "py"},
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": desk.namespace},
            "delivery_tag": task_id,
            "correlation_id": task_id,
        },
    }
    worker = desk.start_worker(announcements).wait_ready(40)
    desk.redis.lpush(f"{desk.namespace}.{desk.namespace}", json.dumps(envelope))
    desk.wait_until_buried("desk.note", task_id=task_id)
    desk.publish("desk.note", still="alive")
    worker.wait_for(is_said("noted", still="alive"), 20)
    assert worker.stop() == 0
    letter = next(each for each in letters_of(desk, "desk.note") if each.task_id == task_id)
    page = log_in("ann")

    open_letter(page, desk, letter)

    assert (letter.kind, letter.wire.body) == (FailureKind.UNDECODABLE, body)
    assert "undecodable" in content(page)


def test_arguments_come_back_equal(log_in, desk, announcements):
    """A shortened repr was stored, and replayed as it was (django-celery-results#113, mher/flower#375)."""
    values = {name: value for name, value in VALUES.items() if name != "raw"} | {"run": uuid.uuid4()}
    broken = desk.start_worker(announcements, **{where.BROKEN: "0"}).wait_ready(40)
    desk.publish("desk.typed", **values)
    broken.wait_for("task_failure", 20)
    assert broken.stop() == 0
    letter = letters_of(desk, "desk.typed")[0]
    page = log_in("ann")
    mended = desk.start_worker(announcements).wait_ready(40)

    replay(page, desk, letter)
    said = mended.wait_for(is_said("typed"), 20)

    assert said["values"] == repr(values)
    assert mended.stop() == 0


def test_an_error_that_could_not_be_stored_is_stored_and_shown(log_in, desk, announcements):
    """A NUL in a traceback left the task without an end (django-celery-results#82, celery/django-celery#20)."""
    broken = desk.start_worker(announcements, **{where.BROKEN: "5000000"}).wait_ready(40)
    desk.publish("desk.typed", number=5)
    broken.wait_for("task_failure", 30)
    assert broken.stop() == 0
    letter = letters_of(desk, "desk.typed")[0]
    page = log_in("ann")

    open_letter(page, desk, letter)

    assert "no such order!!!" in content(page)
    assert "\x00" not in page.content()
    assert len(page.content()) < 1_000_000


def test_a_member_whose_chord_is_gone_is_replayed_alone_and_the_page_says_so(log_in, desk, announcements):
    """A late member made the unlock go on for ever (celery/celery#9674, #6220)."""
    group = uuid.uuid4().hex
    chord = {"task": "desk.note", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "chord_size": 2}
    body = json.dumps([[], {"member": 1}, {"callbacks": None, "errbacks": None, "chain": None, "chord": chord}])
    letter = desk.bury(body=body.encode(), headers={"group": group, "group_index": 0}, group_id=group, chord=True)
    worker = desk.start_worker(announcements).wait_ready(40)
    page = log_in("ann")

    open_letter(page, desk, letter)
    shown = content(page)
    replay(page, desk, letter)
    worker.wait_for(is_said("noted", member=1), 20)

    assert "a finished group or chord is not repaired by a replay" in shown
    assert f"Letter {letter.id}: replayed as task" in told(page)
    assert worker.stop() == 0
    assert desk.letter(letter).state == "closed"
