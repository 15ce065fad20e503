"""
Letters that were put away, as their work goes on: what replays, jobs and later outcomes make of them.
"""

from dataclasses import replace

import pytest

from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.jobs.tally import Tally
from celery_safeguards.replay import replay
from celery_safeguards.replay.many.answers import look_at
from celery_safeguards.replay.many.batch import task_id_of
from celery_safeguards.replay.many.choosing import Choice, make_job, named
from celery_safeguards.replay.many.running import run_job
from celery_safeguards.wiring import Wiring
from tests.integration.replay.clocks import WorkersClock
from tests.integration.replay.shop import die, queued, run, stored

pytestmark = pytest.mark.redis


def archive(shop, letter):
    Wiring.of(shop.app).letters.archive([letter.id], "ann", "of last year")


def restore(shop, letter):
    Wiring.of(shop.app).letters.restore([letter.id], "ann")


def run_jobs(shop, choice, then=lambda _job: None):
    """Replay letters by a job, while a worker works; `then` happens once they are chosen."""
    wiring = replace(Wiring.of(shop.app), clock=WorkersClock(shop.app))
    wiring.use_for(shop.app)
    job = make_job(shop.app, choice, "ann")
    then(job)
    return run_job(shop.app, job.id)


def test_archived_letter_is_sent_once_it_is_restored(shop):
    """Who put it away has said that it is not to run for now; a reason in a history would hold nobody back."""
    letter = die(shop, shop.note_once, order_id=7)
    archive(shop, letter)

    with pytest.raises(LetterNotOpen, match="is archived: restore it first"):
        replay(shop.app, letter.id, "bob")
    waiting = queued(shop.app)
    restore(shop, letter)
    replay(shop.app, letter.id, "bob")
    run(shop.app)

    assert waiting == 0
    assert stored(shop, letter).state == "closed"


def test_success_closes_what_was_put_away_while_its_replay_ran(shop):
    letter = die(shop, shop.note_once, order_id=7)
    replay(shop.app, letter.id, "bob")
    archive(shop, letter)

    run(shop.app)

    assert (stored(shop, letter).state, stored(shop, letter).archived_from) == ("closed", None)


@pytest.mark.parametrize("task", ["note_once", "note"], ids=["with a key", "without a key"])
def test_replay_that_dies_opens_what_was_put_away_meanwhile(shop, task):
    """A failure of today must not lie in the archive."""
    letter = die(shop, getattr(shop, task), order_id=7)
    replay(shop.app, letter.id, "bob", may_run_twice=True)
    archive(shop, letter)
    shop.error = ValueError("again")

    run(shop.app)

    assert stored(shop, letter).state == "open"


def test_key_of_an_archived_letter_stays_taken(shop):
    """Done by a new publication beside it, the work would be done twice once the letter is restored and replayed."""
    letter = die(shop, shop.note_once, order_id=7)
    archive(shop, letter)

    shop.note_once.apply_async(kwargs={"order_id": 7})
    run(shop.app)

    assert [] == shop.ran
    assert stored(shop, letter).state == "archived"


def test_job_leaves_what_was_put_away_since_it_was_chosen(shop):
    letters = [die(shop, shop.note_once, order_id=number) for number in range(2)]
    choice = named([letter.id for letter in letters])

    done = run_jobs(shop, choice, then=lambda _job: archive(shop, letters[0]))

    assert dict(done.tally.reasons) == {"it is archived": 1}
    assert (done.tally.sent, done.tally.skipped) == (1, 1)


def test_job_of_everything_takes_nothing_that_was_put_away(shop):
    letters = [die(shop, shop.note_once, order_id=number) for number in range(2)]
    archive(shop, letters[0])

    done = run_jobs(shop, Choice())

    assert (done.total, done.tally.sent) == (1, 1)
    assert [stored(shop, letter).state for letter in letters] == ["archived", "closed"]


def test_job_hears_of_what_was_put_away_after_it_was_sent(shop):
    """Taken for failed, a good replay would slow the others down, or stop them."""
    letter = die(shop, shop.note_once, order_id=7)
    job = make_job(shop.app, named([letter.id]), "ann")
    replay(shop.app, letter.id, "ann", task_id=task_id_of(job.id, letter.id))
    archive(shop, letter)
    sent = {letter.id: (letter.last_failed_seconds, Wiring.of(shop.app).clock.wall_seconds())}

    waiting = look_at(shop.app, job, sent, [letter.id], 60).answers
    run(shop.app)
    archive(shop, letter)

    assert waiting == {}
    assert look_at(shop.app, job, sent, [letter.id], 60).answers == {letter.id: Tally(succeeded=1)}
