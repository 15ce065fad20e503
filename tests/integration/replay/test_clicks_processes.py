"""
Two people who send the same letters at once, from processes of their own: by clicks, and by jobs.
"""

import multiprocessing
from collections import Counter

import pytest

from celery_safeguards.replay import Fate, replay_many
from celery_safeguards.replay.many.choosing import make_job, named
from celery_safeguards.replay.many.running import run_job
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import die, make_app, make_shop, queued, run, stored

pytestmark = pytest.mark.redis
LETTERS = 100
_SPAWN = multiprocessing.get_context("spawn")


def click(redis_url, namespace, letter_ids, who, barrier, outcome):
    """Run in a process of its own."""
    with make_app(redis_url, redis_url, namespace) as app:
        make_shop(app)
        barrier.wait(60)
        results = list(replay_many(app, letter_ids, who, reason="at once"))
        outcome.put(Counter(result.fate for result in results))


def run_a_job(redis_url, namespace, job_id, _who, barrier, outcome):
    """Run in a process of its own."""
    with make_app(redis_url, redis_url, namespace) as app:
        make_shop(app)
        barrier.wait(60)
        job = run_job(app, job_id, answer_seconds=1)
        outcome.put((job.tally.sent, job.tally.skipped))


def at_once(act, redis_url, namespace, given):
    """Have two processes act at the same instant; return what each says."""
    barrier, outcome = _SPAWN.Barrier(len(given)), _SPAWN.Queue()
    people = [
        _SPAWN.Process(target=act, args=(redis_url, namespace, each, f"person {number}", barrier, outcome))
        for number, each in enumerate(given)
    ]
    for person in people:
        person.start()
    said = [outcome.get(timeout=120) for _ in people]
    for person in people:
        person.join(60)
    assert [person.exitcode for person in people] == [0] * len(people)
    return said


def test_two_people_who_press_replay_for_the_same_hundred_send_a_hundred(shop, redis_url, namespace):
    """Each second message is a second effect (rq/django-rq PR#179, django-q2/django-q2 PR#99)."""
    ids = [die(shop, shop.note, number=number).id for number in range(LETTERS)]

    first, second = at_once(click, redis_url, namespace, [ids, ids])

    assert first[Fate.REPLAYED] + second[Fate.REPLAYED] == LETTERS
    assert first[Fate.NOT_OPEN] + second[Fate.NOT_OPEN] == LETTERS
    # Both were in it: one that is through before the other begins proves nothing.
    assert first[Fate.REPLAYED]
    assert second[Fate.REPLAYED]
    assert queued(shop.app) == LETTERS


def test_two_jobs_that_hold_the_same_hundred_letters_send_a_hundred(shop, redis_url, namespace):
    """Chosen by hand they are of no group, and nothing but the letters holds the two apart."""
    letters = [die(shop, shop.note_once, order_id=number) for number in range(LETTERS)]
    jobs = [make_job(shop.app, named(letter.id for letter in letters), who, at_once=10).id for who in ("ann", "bob")]

    said = at_once(run_a_job, redis_url, namespace, jobs)
    while queued(shop.app):
        run(shop.app)

    assert sum(sent for sent, _ in said) == LETTERS
    assert sum(skipped for _, skipped in said) == LETTERS
    assert Counter(arguments["order_id"] for _, arguments in shop.ran) == Counter(range(LETTERS))
    assert {stored(shop, letter).state for letter in letters} == {"closed"}
    assert {Wiring.of(shop.app).jobs.get(job_id).status for job_id in jobs} == {"done"}
