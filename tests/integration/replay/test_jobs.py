"""
A replay job: what was chosen is sent once, at its pace, and stopped before one incident becomes a second one.
"""

from collections import Counter
from dataclasses import replace
from itertools import count, islice

import pytest

from celery_safeguards._redis import Keys
from celery_safeguards.errors import ConfigurationError, StoreUnavailable
from celery_safeguards.jobs.refusals import JobNotOpen, JobUnderWay
from celery_safeguards.jobs.steps import declared, taken
from celery_safeguards.ledger.record import FORMAT
from celery_safeguards.replay import discard
from celery_safeguards.replay.many import batch
from celery_safeguards.replay.many.batch import task_id_of
from celery_safeguards.replay.many.choosing import Choice, NothingChosen, make_job, named
from celery_safeguards.replay.many.forecasting import forecast
from celery_safeguards.replay.many.running import LEASE_SECONDS, run_job
from celery_safeguards.replay.publishing import publish
from celery_safeguards.replay.send import replay
from celery_safeguards.wiring import Wiring
from tests.integration.replay.clocks import PacedClock, WorkersClock
from tests.integration.replay.shop import die, make_app, queued, run, stored, take
from tests.support.sockets import free_port

try:
    from kombu.exceptions import BatchPublishError
    from kombu.transport.redis import PublishBatch
except ImportError:
    PublishBatch = None

pytestmark = pytest.mark.redis
EVERYTHING = Choice()


@pytest.fixture
def clock(shop):
    """Time that passes while a worker works."""
    clock = WorkersClock(shop.app)
    replace(Wiring.of(shop.app), clock=clock).use_for(shop.app)
    return clock


def wiring(shop):
    return Wiring.of(shop.app)


def dead(shop, letters):
    """Return letters that died one after the other."""
    died = []
    for number in range(letters):
        wiring(shop).clock.sleep(0.001)
        died.append(die(shop, shop.note_once, order_id=number))
    return died


def counted(job):
    tally = job.tally
    names = ("sent", "skipped", "refused", "succeeded", "failed_again", "unanswered")
    return {name: getattr(tally, name) for name in names if getattr(tally, name)}


def test_every_letter_is_sent_once_and_its_end_is_counted(shop, clock):
    letters = dead(shop, 45)
    job = make_job(shop.app, EVERYTHING, "ann", reason="the bank is back")

    done = run_job(shop.app, job.id)

    assert (done.status, done.position, counted(done)) == ("done", 45, {"sent": 45, "succeeded": 45})
    assert Counter(arguments["order_id"] for _, arguments in shop.ran) == Counter(range(45))
    assert {stored(shop, letter).state for letter in letters} == {"closed"}
    asked, begun = stored(shop, letters[0]).history[-4:-2]
    assert (asked.what, asked.who, asked.detail) == ("replay asked", "ann", f"job {job.id}: the bank is back")
    assert (begun.what, begun.detail) == ("replay begun", f"as task {task_id_of(job.id, letters[0].id)}")


def walk_on(shop, most):
    """Replay whatever is open until nothing is: what a job must not do."""
    sent = 0
    while sent < most:
        page = wiring(shop).letters.list(state="open", limit=1)
        if not page.letters:
            break
        replay(shop.app, page.letters[0].id, "ann")
        run(shop.app)
        sent += 1
    return sent


def test_letters_that_fail_at_once_are_not_sent_again(shop, clock):
    """A replay of all that reads on while it sends need not end: here it would send 12 letters a thousand times."""
    dead(shop, 12)
    shop.error = ValueError("still no such order")

    done = run_job(shop.app, make_job(shop.app, EVERYTHING, "ann", stop_at=0).id)

    assert (done.status, counted(done)) == ("done", {"sent": 12, "failed_again": 12})
    assert len(shop.ran) == 12
    assert walk_on(shop, 100) == 100


def test_it_stops_at_so_many_failures(shop, clock):
    """A dependency that is still away is not asked ten thousand times."""
    letters = dead(shop, 40)
    shop.error = ValueError("still no such order")

    stopped = run_job(shop.app, make_job(shop.app, EVERYTHING, "ann", stop_at=5, at_once=5).id)

    assert (stopped.status, stopped.because) == ("stopped", "5 letters failed again")
    assert len(shop.ran) <= 10
    untouched = [letter for letter in letters if not stored(shop, letter).history]
    assert len(untouched) == 40 - len(shop.ran)


def test_failures_on_a_worker_whose_clock_is_behind_stop_it_too(shop):
    """They look older than those that were chosen; counted as no answer, all ten thousand would be sent."""
    dead(shop, 40)
    job = make_job(shop.app, EVERYTHING, "ann", stop_at=5, at_once=5)
    clock = WorkersClock(shop.app, wall=wiring(shop).clock.wall_seconds() - 3600)
    replace(wiring(shop), clock=clock).use_for(shop.app)
    shop.error = ValueError("still no such order")

    stopped = run_job(shop.app, job.id)

    assert (stopped.status, counted(stopped)) == ("stopped", {"sent": 5, "failed_again": 5})


def test_unless_told_otherwise_it_stops_at_a_tenth(shop):
    letters = dead(shop, 110)

    assert make_job(shop.app, named(letter.id for letter in letters), "ann").stop_at == 11
    assert make_job(shop.app, named(letter.id for letter in letters[:20]), "ann").stop_at == 10
    # One letter, however often it was named.
    assert make_job(shop.app, named([letters[0].id] * 3), "ann").total == 1


def test_canaries_go_first_and_the_others_once_they_have_succeeded(shop, clock):
    dead(shop, 30)
    job = make_job(shop.app, EVERYTHING, "ann", canary=4)

    done = run_job(shop.app, job.id)

    assert [number for number in clock.waiting if number] == [4, 26]
    assert counted(done) == {"sent": 30, "succeeded": 30}


def test_a_canary_that_fails_again_keeps_the_others_back(shop, clock):
    """The first three tell what the ten thousand would do."""
    letters = dead(shop, 30)
    shop.error = ValueError("still no such order")

    stopped = run_job(shop.app, make_job(shop.app, EVERYTHING, "ann", canary=3).id)

    assert stopped.status == "stopped"
    assert stopped.because == "of 3 canaries 3 failed again, 0 gave no answer"
    assert sum(bool(stored(shop, letter).history) for letter in letters) == 3

    shop.error = None
    wiring(shop).jobs.change(stopped.id, declared("running", "ann", clock.wall_seconds()))
    done = run_job(shop.app, stopped.id)
    assert (done.status, counted(done)) == ("done", {"sent": 30, "succeeded": 27, "failed_again": 3})


def test_what_fails_again_makes_it_slower(shop, clock):
    """Halved with each look: of what is away still, a few letters at a time are enough to know."""
    dead(shop, 60)
    shop.error = ValueError("still no such order")

    run_job(shop.app, make_job(shop.app, EVERYTHING, "ann", stop_at=0, at_once=16).id)

    sent = [number for number in clock.waiting if number]
    assert sent[:5] == [16, 8, 4, 2, 1]
    assert set(sent[5:]) == {1}


def test_what_succeeds_makes_it_faster_again(shop, clock):
    dead(shop, 60)
    shop.error = ValueError("no such order")
    looks = count()

    def mend(_job):
        if next(looks) == 2:
            shop.error = None

    job = make_job(shop.app, EVERYTHING, "ann", stop_at=0, at_once=16)
    done = run_job(shop.app, job.id, on_step=mend)

    sent = [number for number in clock.waiting if number]
    assert min(sent) < sent[-2]
    assert done.tally.succeeded + done.tally.failed_again == 60


@pytest.mark.parametrize("per_second", [5, 50])
def test_it_keeps_its_pace(shop, clock, per_second, monkeypatch):
    """Each message takes time by itself: counted from its end, a pace of 50 would be one of 30."""
    dead(shop, 101)
    out = []

    def slow(*given):
        out.append(clock.now)
        clock.now += 0.012
        publish(*given)

    monkeypatch.setattr(batch, "publish_together", lambda *_: False)
    monkeypatch.setattr(batch, "publish", slow)
    run_job(shop.app, make_job(shop.app, EVERYTHING, "ann", per_second=per_second).id)

    assert (out[-1] - out[0]) * per_second == pytest.approx(100, rel=0.05)


def test_the_next_runner_keeps_the_pace_of_the_last_one(shop, clock):
    """A runner for each message would send as many a second as there are runners."""
    dead(shop, 5)
    job = make_job(shop.app, EVERYTHING, "ann", per_second=0.1)
    began = clock.now

    for _ in range(30):
        run_job(shop.app, job.id, should_stop=lambda: True)

    assert clock.now - began < 31
    assert len(shop.ran) in {3, 4}


def test_letters_go_in_the_order_in_which_they_failed_first(shop, clock):
    """An older event that is sent after a newer one overwrites it."""
    first, *_ = dead(shop, 3)
    shop.error = ValueError("again")
    clock.now += 1
    replay(shop.app, first.id, "ann")
    run(shop.app)
    shop.error = None
    shop.ran.clear()

    run_job(shop.app, make_job(shop.app, EVERYTHING, "ann", at_once=1).id)
    assert [arguments["order_id"] for _, arguments in shop.ran] == [0, 1, 2]


def test_by_last_failure_one_that_died_again_goes_last(shop, clock):
    first, *_ = dead(shop, 3)
    shop.error = ValueError("again")
    clock.now += 1
    replay(shop.app, first.id, "ann")
    run(shop.app)
    shop.error = None
    shop.ran.clear()

    run_job(shop.app, make_job(shop.app, EVERYTHING, "ann", at_once=1, order="last_failed").id)

    assert [arguments["order_id"] for _, arguments in shop.ran] == [1, 2, 0]


def test_letters_by_their_ids_keep_the_order_they_were_given_in(shop, clock):
    letters = dead(shop, 3)

    run_job(shop.app, make_job(shop.app, named(letters[n].id for n in (2, 0, 1)), "ann", at_once=1).id)

    assert [arguments["order_id"] for _, arguments in shop.ran] == [2, 0, 1]


def test_what_has_changed_since_it_was_chosen_is_left_alone_and_counted(shop, clock):
    letters = [*dead(shop, 4), die(shop, shop.mail, error=TimeoutError(), a=1)]
    job = make_job(shop.app, named([*(letter.id for letter in letters)]), "ann")
    discard(shop.app, letters[0].id, "bob", "a test order")
    replay(shop.app, letters[1].id, "bob")
    run(shop.app)
    shop.error = ValueError("again")
    clock.now += 1
    replay(shop.app, letters[2].id, "bob")
    run(shop.app)
    shop.error = None
    shop.ran.clear()

    done = run_job(shop.app, job.id)

    assert counted(done) == {"sent": 1, "succeeded": 1, "skipped": 3, "refused": 1}
    assert dict(done.tally.reasons) == {
        "it is discarded": 1,
        "it is closed": 1,
        "it has failed again since it was chosen": 1,
        "it has no key and may have had an effect: say that it did not happen, or that it may run twice": 1,
    }
    assert [arguments["order_id"] for _, arguments in shop.ran] == [3]


def test_consent_is_kept_with_the_job(shop, clock):
    letter = die(shop, shop.mail, error=TimeoutError(), a=1)

    done = run_job(shop.app, make_job(shop.app, named([letter.id]), "ann", may_run_twice=True).id)

    assert counted(done) == {"sent": 1, "succeeded": 1}
    assert ("may run twice", "ann", f"job {done.id}") in [
        (entry.what, entry.who, entry.detail) for entry in stored(shop, letter).history
    ]


def test_a_plain_task_gives_no_answer(shop, clock):
    """Whoever waits for it waits for ever."""

    @shop.app.task(shared=False, name="shop.plain")
    def plain(**arguments):
        return arguments

    died = die(shop, shop.note, a=1)
    wire = replace(died.wire, headers={**died.wire.headers, "task": "shop.plain"})
    letter = replace(died, id="plain", task="shop.plain", wire=wire)
    wiring(shop).letters.bury(letter)

    done = run_job(shop.app, make_job(shop.app, named([letter.id]), "ann").id)

    assert (done.status, counted(done)) == ("done", {"sent": 1, "unanswered": 1})


def test_a_letter_whose_worker_never_answers_is_waited_for_so_long(shop):
    dead(shop, 3)
    clock = WorkersClock(shop.app, most=0)
    replace(wiring(shop), clock=clock).use_for(shop.app)
    began = clock.now

    done = run_job(shop.app, make_job(shop.app, EVERYTHING, "ann").id, answer_seconds=60)

    assert (done.status, counted(done)) == ("done", {"sent": 3, "unanswered": 3})
    assert 60 < clock.now - began < 63
    assert queued(shop.app) == 3


@pytest.mark.parametrize("status", ["paused", "cancelled"])
def test_a_person_stops_it_within_a_step(shop, clock, status):
    dead(shop, 40)
    job = make_job(shop.app, EVERYTHING, "ann", per_second=10)

    def stop(now):
        if now.status == "running":
            wiring(shop).jobs.change(now.id, declared(status, "bob", clock.wall_seconds()))

    stopped = run_job(shop.app, job.id, on_step=stop)

    assert (stopped.status, stopped.because, stopped.runner) == (status, "by bob", "")
    assert 10 <= stopped.tally.sent <= 22
    assert queued(shop.app) + len(shop.ran) == stopped.tally.sent


def test_a_paused_job_goes_on_where_it_was(shop, clock):
    dead(shop, 40)
    job = make_job(shop.app, EVERYTHING, "ann", per_second=10)
    run_job(
        shop.app,
        job.id,
        on_step=lambda now: (
            now.status == "running"
            and wiring(shop).jobs.change(now.id, declared("paused", "bob", clock.wall_seconds()))
        ),
    )
    with pytest.raises(JobNotOpen, match="paused: by bob"):
        run_job(shop.app, job.id)

    wiring(shop).jobs.change(job.id, declared("running", "bob", clock.wall_seconds()))
    done = run_job(shop.app, job.id)

    assert (done.status, counted(done)) == ("done", {"sent": 40, "succeeded": 40})
    assert len(shop.ran) == 40


def test_whoever_is_asked_to_stop_leaves_the_job_to_the_next(shop, clock):
    dead(shop, 40)
    job = make_job(shop.app, EVERYTHING, "ann", per_second=10)

    left = run_job(shop.app, job.id, should_stop=lambda: True)
    done = run_job(shop.app, job.id)

    assert (left.status, left.runner) == ("running", "")
    assert 0 < left.position < 40
    assert (done.status, len(shop.ran)) == ("done", 40)


def test_a_second_runner_is_told_who_has_the_job(shop, clock):
    dead(shop, 1)
    job = make_job(shop.app, EVERYTHING, "ann")
    wiring(shop).jobs.change(job.id, taken("other", clock.wall_seconds(), LEASE_SECONDS))

    with pytest.raises(JobNotOpen, match="run by other, whose lease ends in 1 min"):
        run_job(shop.app, job.id)

    clock.sleep(LEASE_SECONDS + 1)
    assert run_job(shop.app, job.id).status == "done"


def test_a_runner_that_was_frozen_past_its_lease_ends(shop, clock):
    """It would go on beside the one that has taken over, at twice the pace."""
    dead(shop, 40)
    job = make_job(shop.app, EVERYTHING, "ann", per_second=10)
    others = []

    def freeze(now):
        if not others:
            later = clock.wall_seconds() + LEASE_SECONDS + 1
            others.append(wiring(shop).jobs.change(now.id, taken("other", later, LEASE_SECONDS)))

    left = run_job(shop.app, job.id, on_step=freeze)

    assert left.runner == "other"
    assert left.position == others[0].position
    assert queued(shop.app) + len(shop.ran) < 40


def test_canaries_still_go_first_once_a_broker_that_was_away_is_back(shop, clock, redis_url, namespace):
    """None of them has been heard of: whoever resumes the job has seen no failure."""
    dead(shop, 30)
    job = make_job(shop.app, EVERYTHING, "ann", canary=4)
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline:
        replace(wiring(shop), clock=PacedClock()).use_for(offline)
        stopped = run_job(offline, job.id)
    shop.error = ValueError("still no such order")

    wiring(shop).jobs.change(job.id, declared("running", "ann", clock.wall_seconds()))
    again = run_job(shop.app, job.id)

    assert ("broker took nothing" in stopped.because, again.status) == (True, "stopped")
    assert counted(again) == {"sent": 4, "failed_again": 4}


def test_a_broker_that_is_away_stops_it_and_loses_nothing(shop, clock, redis_url, namespace):
    letters = dead(shop, 30)
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline:
        job = make_job(offline, EVERYTHING, "ann")
        for name in ("note_once",):
            offline.tasks.register(getattr(shop, name))
        waits = PacedClock(wall=clock.wall)
        replace(Wiring.of(offline), clock=waits).use_for(offline)

        stopped = run_job(offline, job.id)

    assert stopped.status == "stopped"
    assert stopped.because.startswith("the broker took nothing 5 times")
    assert waits.slept == [1.0, 2.0, 4.0, 8.0]
    assert (stopped.position, counted(stopped)) == (0, {})

    wiring(shop).jobs.change(job.id, declared("running", "ann", clock.wall_seconds()))
    done = run_job(shop.app, job.id)

    assert (done.status, counted(done)) == ("done", {"sent": 30, "succeeded": 30})
    assert Counter(arguments["order_id"] for _, arguments in shop.ran) == Counter(range(30))
    assert {stored(shop, letter).state for letter in letters} == {"closed"}


@pytest.mark.skipif(PublishBatch is None, reason="messages go together with kombu 5.7")
@pytest.mark.parametrize("is_out", [True, False], ids=["its answer was lost", "it was not sent"])
def test_a_trip_that_failed_is_made_letter_by_letter(shop, clock, monkeypatch, is_out):
    """Left replaying, thirty letters would be counted as sent, and nobody would have their messages."""
    letters = dead(shop, 30)
    job = make_job(shop.app, EVERYTHING, "ann")
    trips = []

    def broken(trip):
        trips.append(trip)
        if is_out:
            flush(trip)
        raise BatchPublishError("cut")

    flush = PublishBatch.flush
    with monkeypatch.context() as patch:
        patch.setattr(PublishBatch, "flush", broken)
        replace(wiring(shop), clock=PacedClock(wall=clock.wall_seconds())).use_for(shop.app)
        run_job(shop.app, job.id, should_stop=lambda: True)
    assert (len(trips), queued(shop.app)) == (1, 60 if is_out else 30)
    replace(wiring(shop), clock=clock).use_for(shop.app)
    done = run_job(shop.app, job.id)

    assert counted(done) == {"sent": 30, "succeeded": 30}
    assert Counter(arguments["order_id"] for _, arguments in shop.ran) == Counter(range(30))
    assert {stored(shop, letter).state for letter in letters} == {"closed"}
    assert [stored(shop, letter).replay_task_id for letter in letters] == [
        task_id_of(job.id, each.id) for each in letters
    ]


def test_a_store_that_is_away_for_a_moment_is_waited_for(shop, clock, monkeypatch):
    dead(shop, 5)
    job = make_job(shop.app, EVERYTHING, "ann")
    real, tries = wiring(shop).letters.get_many, count()

    def away(letter_ids):
        if next(tries) in {1, 2}:
            raise StoreUnavailable("away")
        return real(letter_ids)

    monkeypatch.setattr(wiring(shop).letters, "get_many", away)

    assert counted(run_job(shop.app, job.id)) == {"sent": 5, "succeeded": 5}


def test_a_step_whose_answer_was_lost_counts_once(shop, clock, monkeypatch):
    """Written and written again, five failures would be ten, and stop the job."""
    dead(shop, 5)
    job = make_job(shop.app, EVERYTHING, "ann")
    real, tries = wiring(shop).jobs.change, count()

    def change_and_lose_the_answer(job_id, change):
        changed = real(job_id, change)
        if next(tries) == 1:
            raise StoreUnavailable("away")
        return changed

    monkeypatch.setattr(wiring(shop).jobs, "change", change_and_lose_the_answer)

    assert counted(run_job(shop.app, job.id)) == {"sent": 5, "succeeded": 5}


def test_letters_that_were_begun_by_a_step_whose_answer_was_lost_are_sent(shop, clock, monkeypatch):
    """A database is asked once more where its connection ends with the COMMIT: then they have begun already."""
    letters = dead(shop, 5)
    begin = wiring(shop).letters.begin_replays
    monkeypatch.setattr(wiring(shop).letters, "begin_replays", lambda *given: (begin(*given), begin(*given))[1])

    done = run_job(shop.app, make_job(shop.app, EVERYTHING, "ann").id)

    assert counted(done) == {"sent": 5, "succeeded": 5}
    assert {stored(shop, letter).state for letter in letters} == {"closed"}


def test_a_store_that_stays_away_ends_the_runner_and_not_the_job(shop, clock, monkeypatch):
    dead(shop, 5)
    job = make_job(shop.app, EVERYTHING, "ann")

    def away(letter_ids):
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(wiring(shop).letters, "get_many", away)
        with pytest.raises(StoreUnavailable):
            run_job(shop.app, job.id)

    assert (wiring(shop).jobs.get(job.id).status, wiring(shop).jobs.get(job.id).runner) == ("running", "")
    assert run_job(shop.app, job.id).status == "done"


def test_work_without_a_key_goes_alone(shop, clock, redis_url, namespace):
    """Of twenty that had begun when the broker went, nobody could tell which are out."""
    for number in range(4):
        die(shop, shop.mail, number=number)
    job = make_job(shop.app, EVERYTHING, "ann")
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline:
        offline.tasks.register(shop.mail)
        replace(Wiring.of(offline), clock=PacedClock(wall=clock.wall)).use_for(offline)
        run_job(offline, job.id)

    states = Counter(letter.state for letter in wiring(shop).letters.list().letters)
    assert states == {"replaying": 1, "open": 3}

    wiring(shop).jobs.change(job.id, declared("running", "ann", clock.wall_seconds()))
    done = run_job(shop.app, job.id)
    assert counted(done) == {"sent": 3, "succeeded": 3, "refused": 1}
    assert [reason[:15] for reason in done.tally.reasons] == ["it has no key, "]


def test_two_of_one_group_are_not_made(shop):
    letter, *_ = dead(shop, 3)
    made = make_job(shop.app, Choice(fingerprint=letter.fingerprint), "ann")

    with pytest.raises(JobUnderWay, match=made.id):
        make_job(shop.app, Choice(fingerprint=letter.fingerprint), "bob")


@pytest.mark.parametrize(
    "options", [{"who": " "}, {"per_second": 0}, {"at_once": 0}, {"at_once": 10_001}, {"canary": -1}, {"stop_at": -1}]
)
def test_options_that_cannot_hold_are_refused_before_anything_is_kept(shop, options):
    dead(shop, 1)

    with pytest.raises(ConfigurationError, match=next(iter(options))):
        make_job(shop.app, EVERYTHING, **{"who": "ann", **options})

    assert wiring(shop).jobs.list().jobs == ()


def test_a_new_job_takes_old_ones_away(shop, clock):
    """Where nothing expires by itself, nobody remembers to tidy up."""
    letters = dead(shop, 3)
    for letter in letters[:2]:
        run_job(shop.app, make_job(shop.app, named([letter.id]), "ann").id)
    clock.now += wiring(shop).settings.job_retention_seconds + 1
    left = make_job(shop.app, named([letters[2].id]), "ann")

    assert [each.id for each in wiring(shop).jobs.list().jobs] == [left.id]


def test_nothing_to_replay_is_said(shop):
    with pytest.raises(NothingChosen, match="there are none"):
        make_job(shop.app, EVERYTHING, "ann")


def test_no_letters_by_their_ids_are_none_and_not_all(shop):
    """A page whose letters have gone meanwhile would send everything."""
    dead(shop, 2)

    with pytest.raises(NothingChosen):
        make_job(shop.app, named([]), "ann")
    with pytest.raises(NothingChosen):
        make_job(shop.app, named(["absent"]), "ann")


def test_a_dry_run_says_what_would_happen_and_changes_nothing(shop):
    dead(shop, 3)
    die(shop, shop.mail, error=TimeoutError(), a=1)
    die(shop, shop.charge, error=TimeoutError(), order_id=1)
    before = wiring(shop).letters.list().letters

    found = forecast(shop.app, EVERYTHING)

    assert (found.letters, found.would_be_sent) == (5, 3)
    assert found.refused == {"needs consent to run twice": 1, "needs a person's word whether it has happened": 1}
    assert forecast(shop.app, EVERYTHING, may_run_twice=True).would_be_sent == 4
    assert wiring(shop).letters.list().letters == before
    assert take(shop.app) is None


def test_ids_are_those_of_the_job(shop):
    """Two jobs of one letter are two replays; two runners of one job are one."""
    ids = {task_id_of(job_id, letter_id) for job_id in ("a", "b") for letter_id in ("l-1", "l-2", "\ud800")}

    assert len(ids) == 6
    assert task_id_of("a", "l-1") == task_id_of("a", "l-1")
    assert len(next(islice(ids, 1))) == 36


def test_a_record_of_a_newer_version_keeps_back_its_own_letter_alone(shop, clock, redis_client, namespace):
    """In the midst of a deploy one record would stop the replay of ten thousand letters."""
    letters = dead(shop, 3)
    key = Keys(namespace).record(letters[1].scope, letters[1].key)
    head, _, body = redis_client.get(key).partition("\n")
    redis_client.set(key, f"{FORMAT + 1} {head.partition(' ')[2]}\n{body}")

    done = run_job(shop.app, make_job(shop.app, EVERYTHING, "ann").id)

    assert (done.status, counted(done)) == ("done", {"sent": 2, "succeeded": 2, "refused": 1})
    assert "newer than" in next(iter(done.tally.reasons))


def test_a_record_of_a_newer_version_of_a_letter_that_has_begun_holds_up_no_other(shop, clock, redis_client, namespace):
    """Its runner was killed before it was sent: each next one would end at it, for ever."""
    letters = dead(shop, 3)
    job = make_job(shop.app, EVERYTHING, "ann")
    wiring(shop).letters.begin_replay(letters[1].id, task_id_of(job.id, letters[1].id), "ann", 1.0)
    key = Keys(namespace).record(letters[1].scope, letters[1].key)
    head, _, body = redis_client.get(key).partition("\n")
    redis_client.set(key, f"{FORMAT + 1} {head.partition(' ')[2]}\n{body}")

    done = run_job(shop.app, job.id)

    assert (done.status, counted(done)) == ("done", {"sent": 2, "succeeded": 2, "refused": 1})
    assert stored(shop, letters[1]).state == "replaying"


def test_letter_that_dies_again_and_cannot_be_sent_when_it_is_begun_holds_up_no_other(shop, clock, monkeypatch):
    """All of them have begun by then: what the others are waits for no second runner."""
    letters = dead(shop, 3)
    job = make_job(shop.app, EVERYTHING, "ann", reason="the bank is back")
    store, begin = wiring(shop).letters, wiring(shop).letters.begin_replays

    def begin_after_it_died_again(*given):
        found = stored(shop, letters[1])
        store.bury(
            replace(
                found,
                wire=replace(found.wire, delivery_info={"exchange": "gone", "routing_key": "gone"}),
                task_id="another",
                burial=found.burial + 1,
                last_failed_seconds=found.last_failed_seconds + 1,
            )
        )
        return begin(*given)

    monkeypatch.setattr(store, "begin_replays", begin_after_it_died_again)
    done = run_job(shop.app, job.id)

    assert ("done", {"sent": 2, "refused": 1, "succeeded": 2}) == (done.status, counted(done))
