"""
The messages by which workers run a replay job: one for each part of it, none lost, and none that keeps a child waiting.
"""

import json
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from celery_safeguards.jobs.steps import declared, taken
from celery_safeguards.replay.many.batch import task_id_of
from celery_safeguards.replay.many.choosing import Choice, make_job
from django_celery_safeguards.sql import row_id
from django_celery_safeguards.tasks import RUN_REPLAY
from tests.browser.pages import REPLAYS, content, follow


@pytest.fixture
def job(desk):
    """A job of three letters of its own."""
    task_error = f"shop.Away{uuid.uuid4().hex[:8]}"
    letters = [desk.bury(kwargs={"number": number}, error_type=task_error) for number in range(3)]
    choice = Choice(fingerprint=letters[0].fingerprint)
    return desk.store(lambda _: make_job(desk.app, choice, "ann"))


def run(desk, job_id):
    """Do what a worker does with the job's message, and return the messages that it has published."""
    desk.forget_messages()
    desk.store(lambda _: desk.app.tasks[RUN_REPLAY](job_id))
    queue = f"{desk.namespace}.{desk.namespace}"
    messages = [json.loads(message)["headers"] for message in desk.redis.lrange(queue, 0, -1)]
    return [headers for headers in messages if headers["task"] == RUN_REPLAY]


def away_seconds(headers):
    return (datetime.fromisoformat(headers["eta"]) - datetime.now(UTC)).total_seconds()


def test_a_job_that_waits_for_answers_waits_in_the_broker(desk, job):
    """With one child, the letters that it has sent would wait behind the job that waits for them."""
    began = time.monotonic()

    (message,) = run(desk, job.id)

    stored = desk.store(lambda wiring: wiring.jobs.get(job.id))
    assert (stored.position, len(stored.on_their_way), stored.runner) == (3, 3, "")
    assert 0 < away_seconds(message) <= 1.5
    assert time.monotonic() - began < 9  # of ten that a part may take


def test_a_message_that_comes_back_waits_for_the_lease_of_the_worker_that_died(desk, job):
    """Ended, nobody would run the job; run, two workers would."""
    desk.store(lambda wiring: wiring.jobs.change(job.id, taken("dead", time.time(), 60)))

    (message,) = run(desk, job.id)

    assert 55 < away_seconds(message) <= 60


@pytest.mark.parametrize("status", ["paused", "cancelled"])
def test_a_message_of_a_job_that_no_longer_runs_ends_with_it(desk, job, status):
    desk.store(lambda wiring: wiring.jobs.change(job.id, declared(status, "ann", time.time())))

    assert run(desk, job.id) == []


def left_by_a_dead_runner(desk, job):
    """Have a runner begin a letter of a job and die, and a person cancel the job; return the letter's id."""

    def act(wiring):
        wiring.jobs.change(job.id, taken("dead", time.time(), 60))
        letter_id = wiring.jobs.picked(job.id, 0)[0].letter_id
        wiring.letters.begin_replay(letter_id, task_id_of(job.id, letter_id), "ann", time.time())
        wiring.jobs.change(job.id, declared("cancelled", "bob", time.time()))
        return letter_id

    return desk.store(act)


def test_a_message_of_a_cancelled_job_waits_for_its_runner_and_writes_down_what_that_has_left(desk, job):
    """The runner's message comes back to a worker, which would otherwise end it and tell nobody."""
    letter_id = left_by_a_dead_runner(desk, job)

    (message,) = run(desk, job.id)
    early = desk.store(lambda wiring: wiring.jobs.get(job.id))
    desk.store(lambda wiring: wiring.jobs.change(job.id, lambda kept: replace(kept, lease_until_seconds=time.time())))
    nothing = run(desk, job.id)
    late = desk.store(lambda wiring: wiring.jobs.get(job.id))

    assert 55 < away_seconds(message) <= 60
    assert (early.settled, nothing, late.settled, late.unsure) == (False, [], True, (letter_id,))


def test_what_a_dead_runner_has_left_is_on_the_page_of_its_job(log_in, desk, job):
    letter_id = left_by_a_dead_runner(desk, job)
    page = log_in("ann")
    path = f"{desk.url}{REPLAYS}{row_id(desk.namespace, job.id)}/change/"

    page.goto(path)
    early = content(page)
    desk.store(lambda wiring: wiring.jobs.change(job.id, lambda kept: replace(kept, lease_until_seconds=time.time())))
    run(desk, job.id)
    page.goto(path)
    follow(page, page.get_by_role("link", name=letter_id))

    assert "is written down by a worker, within a minute" in early
    page.get_by_role("button", name="Resume the replay").wait_for()


def test_a_message_of_a_job_that_is_gone_is_no_error(desk):
    assert run(desk, "absent") == []


def test_a_job_is_run_to_its_end_by_one_worker_with_one_child(desk, job, announcements):
    """Canaries that wait for the child that waits for them would wait for ever."""
    choice = Choice(fingerprint=job.fingerprint)
    desk.store(lambda wiring: wiring.jobs.change(job.id, declared("cancelled", "ann", time.time())))
    again = desk.store(lambda _: make_job(desk.app, choice, "ann", canary=1))
    desk.store(lambda _: desk.app.tasks[RUN_REPLAY].apply_async((again.id,)))

    worker = desk.start_worker(announcements).wait_ready(40)
    worker.wait_for(lambda event: event["event"] == "noted" and event["number"] == 2, 30)
    worker.wait_for(lambda _event: desk.store(lambda wiring: wiring.jobs.get(again.id)).status == "done", 30)

    assert worker.stop() == 0
    assert desk.store(lambda wiring: wiring.jobs.get(again.id)).tally.succeeded == 3
