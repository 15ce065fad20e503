"""
Edit as new by processes of their own: two at once, and one that is killed at each step.
"""

import multiprocessing
import os
import signal

import pytest
from celery.signals import after_task_publish, before_task_publish

from celery_safeguards import Safeguards, SafeTask
from celery_safeguards.deadletter.changes import look_at
from celery_safeguards.deadletter.refusals import LetterChanged
from celery_safeguards.replay import Edit, send_edited
from celery_safeguards.replay.copies.edit_history import copies_of
from tests.integration.replay.shop import die, make_app, queued, run, stored, take

pytestmark = pytest.mark.redis
SPAWN = multiprocessing.get_context("spawn")


def desk_of(redis_url, namespace):
    """Return an app that knows the task, as another process has one."""
    app = make_app(redis_url, redis_url, namespace)

    @app.task(shared=False, base=SafeTask, name="shop.note", safeguards=Safeguards(repeatable=True))
    def note(**arguments):
        return arguments

    return app


def edit(place, letter_id, look, who, barrier, told):
    """Send a copy at the same instant as another process does."""
    with desk_of(*place) as app:
        barrier.wait(30)
        try:
            told.put((who, send_edited(app, letter_id, who, Edit(kwargs={"a": who}), "why", look=look).task_id))
        except LetterChanged as error:
            told.put((who, str(error)))


def edit_and_die(redis_url, namespace, letter_id, when):
    """Be killed before or after the broker has the copy."""

    def die_now(**_kwargs):
        os.kill(os.getpid(), signal.SIGKILL)

    {"before": before_task_publish, "after": after_task_publish}[when].connect(die_now, weak=False)
    with desk_of(redis_url, namespace) as app:
        send_edited(app, letter_id, "bob", Edit(kwargs={"a": 2}), "why")


def test_two_processes_that_have_seen_the_same_letter_send_one_copy(shop, redis_url, namespace):
    """Both mend the same order: without the comparison it goes out twice, and neither knows of the other."""
    letter = die(shop, shop.note, a=1)
    barrier, told = SPAWN.Barrier(2), SPAWN.Queue()
    people = [
        SPAWN.Process(target=edit, args=((redis_url, namespace), letter.id, look_at(letter), who, barrier, told))
        for who in ("ann", "bob")
    ]
    for person in people:
        person.start()
    answers = dict(told.get(timeout=60) for _ in people)
    for person in people:
        person.join(30)

    (sent,) = [text for text in answers.values() if "has changed" not in text]
    (loser,) = [who for who, text in answers.items() if "has changed" in text]
    winner = "bob" if loser == "ann" else "ann"
    assert f"by {winner}" in answers[loser]
    assert queued(shop.app) == 1
    assert take(shop.app).headers["id"] == sent
    assert [entry.who for entry in stored(shop, letter).history] == [winner, winner]


@pytest.mark.parametrize(("when", "sent"), [("before", 0), ("after", 1)])
def test_process_that_is_killed_leaves_a_trace_of_its_copy(shop, redis_url, namespace, when, sent):
    """A copy that is out, and of which no letter tells, is work that nobody has ordered."""
    letter = die(shop, shop.note, a=1)
    process = SPAWN.Process(target=edit_and_die, args=(redis_url, namespace, letter.id, when))
    process.start()
    process.join(60)

    ((begun, task_id, is_out),) = copies_of(stored(shop, letter))
    assert process.exitcode == -signal.SIGKILL
    assert (begun.who, is_out, queued(shop.app)) == ("bob", False, sent)
    if sent:
        message = take(shop.app)
        assert message.headers["id"] == task_id
        assert run(shop.app, message) == {"a": 2}
