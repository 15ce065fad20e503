"""
A runner of a replay job that is killed at each of its steps: the next one leaves nothing out and sends nothing twice,
but for messages of one task id, which admission gives one start.
"""

import multiprocessing
import os
import signal
import uuid
from collections import Counter
from dataclasses import replace

import pytest

from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.jobs.steps import declared
from celery_safeguards.replay import ReplayRefused, discard, resume
from celery_safeguards.replay.many import batch, running
from celery_safeguards.replay.many.choosing import Choice, make_job
from celery_safeguards.replay.many.running import LEASE_SECONDS, run_job
from celery_safeguards.replay.many.settling import settle
from celery_safeguards.wiring import Wiring
from tests.integration.replay.clocks import WorkersClock
from tests.integration.replay.shop import die, make_app, make_shop, queued, run, stored, take
from tests.support.processes import await_stopped

pytestmark = pytest.mark.redis
LETTERS = 120
TOGETHER = running._LETTERS_TOGETHER


def die_at_call(real, number, *, before, sig=signal.SIGKILL):
    """Return a function that kills (or freezes) this process before or after so many calls of the real one."""

    def die_now():
        os.kill(os.getpid(), sig)

    calls = []

    def call(*given, **options):
        calls.append(given)
        if before and len(calls) == number:
            die_now()
        result = real(*given, **options)
        if not before and len(calls) == number:
            die_now()
        return result

    return call


PLACES = {
    "before it begins letters": ("letters", "begin_replays", 2, True),
    "after it has begun letters": ("letters", "begin_replays", 2, False),
    "before a message": ("publish", "", TOGETHER + 5, True),
    "after a message": ("publish", "", TOGETHER + 5, False),
    "before messages go together": ("publish_together", "", 2, True),
    "after messages have gone together": ("publish_together", "", 2, False),
    "before the marks": ("letters", "mark_each_replayed", 2, True),
    "after the marks": ("letters", "mark_each_replayed", 2, False),
    "before a step is written": ("jobs", "change", 2, True),
    "after a step is written": ("jobs", "change", 2, False),
}


def run_until_killed(redis_url, namespace, job_id, place, sig=signal.SIGKILL):
    """Run in a process of its own."""
    with make_app(redis_url, redis_url, namespace) as app:
        make_shop(app)
        of, name, number, before = PLACES[place]
        # A step for each batch, so that a kill finds some letters written down and some not.
        running._STEP_SECONDS = 0.0
        if of == "publish":
            # As with a broker to which messages go one by one.
            batch.publish_together = lambda *_: False
        if not name:
            setattr(batch, of, die_at_call(getattr(batch, of), number, before=before, sig=sig))
        else:
            store = getattr(Wiring.of(app), of)
            setattr(store, name, die_at_call(getattr(store, name), number, before=before, sig=sig))
        run_job(app, job_id)


def started(*given):
    process = multiprocessing.get_context("spawn").Process(target=run_until_killed, args=given)
    process.start()
    return process


def in_a_process(*given):
    process = started(*given)
    process.join(60)
    return process.exitcode


def everything_out(app):
    """Take all messages that wait."""
    messages = []
    while (message := take(app)) is not None:
        messages.append(message)
    return messages


@pytest.mark.parametrize("place", PLACES)
def test_a_runner_that_is_killed_loses_nothing_and_doubles_nothing(shop, redis_url, namespace, place):
    letters = [die(shop, shop.note_once, order_id=number) for number in range(LETTERS)]
    job = make_job(shop.app, Choice(), "ann")

    assert in_a_process(redis_url, namespace, job.id, place) == -signal.SIGKILL
    cut_short = queued(shop.app)
    # Its lease is not over: nobody may take the job from a runner that is only slow.
    clock = WorkersClock(shop.app, most=0, wall=Wiring.of(shop.app).clock.wall_seconds() + LEASE_SECONDS + 1)
    replace(Wiring.of(shop.app), clock=clock).use_for(shop.app)
    done = run_job(shop.app, job.id, answer_seconds=5)

    messages = everything_out(shop.app)
    ids = Counter(message.headers["id"] for message in messages)
    assert cut_short < LETTERS
    assert set(ids) == {batch.task_id_of(job.id, letter.id) for letter in letters}
    assert sum(ids.values()) - len(ids) <= TOGETHER
    assert (done.status, done.tally.sent) == ("done", LETTERS)

    for message in messages:
        run(shop.app, message)
    assert Counter(arguments["order_id"] for _, arguments in shop.ran) == Counter(range(LETTERS))
    assert {stored(shop, letter).state for letter in letters} == {"closed"}


@pytest.mark.parametrize("place", ["after it has begun letters", "after a message"])
def test_work_without_a_key_that_was_cut_short_is_left_to_a_person(shop, redis_url, namespace, place):
    """Its message may be out: sent again, the mail would go out twice."""
    letters = [die(shop, shop.mail, number=number) for number in range(TOGETHER + 10)]
    job = make_job(shop.app, Choice(), "ann")

    assert in_a_process(redis_url, namespace, job.id, place) == -signal.SIGKILL
    clock = WorkersClock(shop.app, wall=Wiring.of(shop.app).clock.wall_seconds() + LEASE_SECONDS + 1)
    replace(Wiring.of(shop.app), clock=clock).use_for(shop.app)
    done = run_job(shop.app, job.id)

    ran = Counter(arguments["number"] for _, arguments in shop.ran)
    assert max(ran.values()) == 1
    assert len(ran) >= len(letters) - 1
    assert (done.tally.sent, done.tally.refused) == (len(letters) - 1, 1)
    left = [letter for number, letter in enumerate(letters) if number not in ran]
    assert {stored(shop, letter).state for letter in left} <= {"replaying"}
    for letter in left:
        resume(shop.app, letter.id, "ann", may_run_twice=True)
        run(shop.app)
    assert {stored(shop, letter).state for letter in letters} == {"closed"}


def test_ids_that_only_their_runner_knows_would_lose_letters(shop, redis_url, namespace, monkeypatch):
    """The same kill, and a next runner that cannot tell its job's letters from those of somebody else."""
    for number in range(LETTERS):
        die(shop, shop.note_once, order_id=number)
    job = make_job(shop.app, Choice(), "ann")
    assert in_a_process(redis_url, namespace, job.id, "after it has begun letters") == -signal.SIGKILL
    monkeypatch.setattr(batch, "task_id_of", lambda *_: str(uuid.uuid4()))
    clock = WorkersClock(shop.app, wall=Wiring.of(shop.app).clock.wall_seconds() + LEASE_SECONDS + 1)
    replace(Wiring.of(shop.app), clock=clock).use_for(shop.app)

    done = run_job(shop.app, job.id, answer_seconds=5)

    assert done.tally.reasons == {"it is replaying": TOGETHER}
    assert len(shop.ran) == LETTERS - TOGETHER


# --- cancelled after that


def cancelled(shop, job):
    """Cancel a job while its dead runner still has it, and settle it once nobody has; return both."""
    wiring = Wiring.of(shop.app)
    now = wiring.clock.wall_seconds()
    wiring.jobs.change(job.id, declared("cancelled", "ann", now))
    early = settle(shop.app, job.id)
    clock = WorkersClock(shop.app, most=0, wall=now + LEASE_SECONDS + 1)
    replace(wiring, clock=clock).use_for(shop.app)
    return early, settle(shop.app, job.id)


@pytest.mark.parametrize(
    "place",
    [
        *("after it has begun letters", "before a message", "after messages have gone together"),
        *("before the marks", "before a step is written"),
    ],
)
def test_a_cancelled_job_lists_what_its_dead_runner_may_have_sent(shop, redis_url, namespace, place):
    """They would say "replaying" for ever, in no list of anybody: neither sent nor open."""
    letters = [die(shop, shop.note_once, order_id=number) for number in range(LETTERS)]
    job = make_job(shop.app, Choice(), "ann")
    assert in_a_process(redis_url, namespace, job.id, place) == -signal.SIGKILL

    early, done = cancelled(shop, job)
    again = settle(shop.app, job.id)

    states = {letter.id: stored(shop, letter).state for letter in letters}
    assert (early.settled, done.settled, again) == (False, True, done)
    assert set(done.unsure) == {id_ for id_, state in states.items() if state == "replaying"}
    assert set(states.values()) <= {"open", "replaying", "replayed"}
    assert len(done.unsure) <= batch.MOST_UNWRITTEN
    assert list(Wiring.of(shop.app).jobs.picked(job.id, 0)) == []

    for letter_id in done.unsure:
        resume(shop.app, letter_id, "ann")
    for message in everything_out(shop.app):
        run(shop.app, message)
    begun = {number for number, letter in enumerate(letters) if states[letter.id] != "open"}
    assert Counter(arguments["order_id"] for _, arguments in shop.ran) == Counter(begun)
    assert Counter(stored(shop, letter).state for letter in letters) == Counter(
        "closed" if number in begun else "open" for number in range(LETTERS)
    )


def test_a_runner_that_was_frozen_may_still_send_what_it_had_begun(shop, redis_url, namespace):
    """Opened again meanwhile, such a letter could be discarded, and would be sent after that."""
    letters = [die(shop, shop.note_once, order_id=number) for number in range(LETTERS)]
    job = make_job(shop.app, Choice(), "ann")
    runner = started(redis_url, namespace, job.id, "before a message", signal.SIGSTOP)
    await_stopped([runner.pid])

    _, done = cancelled(shop, job)
    before = queued(shop.app)
    for letter_id in done.unsure:
        with pytest.raises(LetterNotOpen):
            discard(shop.app, letter_id, "bob", "a test order")
    os.kill(runner.pid, signal.SIGCONT)
    runner.join(60)

    assert runner.exitcode == 0
    assert queued(shop.app) > before
    assert {stored(shop, letter).state for letter in letters} <= {"open", "replaying", "replayed"}
    ids = Counter(message.headers["id"] for message in everything_out(shop.app))
    assert max(ids.values()) == 1
    assert ids.keys() >= {batch.task_id_of(job.id, letter_id) for letter_id in done.unsure}


def test_work_without_a_key_that_is_in_doubt_is_not_sent_again_unasked(shop, redis_url, namespace):
    for number in range(10):
        die(shop, shop.mail, number=number)
    job = make_job(shop.app, Choice(), "ann")
    place = "after it has begun letters"
    assert in_a_process(redis_url, namespace, job.id, place) == -signal.SIGKILL

    _, done = cancelled(shop, job)

    (letter_id,) = done.unsure
    with pytest.raises(ReplayRefused):
        resume(shop.app, letter_id, "ann")
