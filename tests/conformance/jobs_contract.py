"""
What every store of replay jobs must do: subclass it, and give a `jobs` fixture that is empty.
"""

from dataclasses import replace

import pytest

from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.picked import PART_SIZE, Picked
from celery_safeguards.jobs.refusals import JobLost, JobNotOpen, JobUnderWay, NoSuchJob
from celery_safeguards.jobs.steps import Progress, advanced, declared, ended, settled, taken
from celery_safeguards.jobs.tally import Tally
from celery_safeguards.jobs.tempo import Tempo
from tests.conformance.deadletter_contract import NOON, RACERS, race

LEASE_SECONDS = 60.0
NASTY = "\x00 <b>\ud800</b> \u202e " + "é" * 300


def job(job_id="j-1", **changes):
    values = {"id": job_id, "who": "ana", "chosen": "all open letters", "total": 2, "created_seconds": NOON}
    return ReplayJob(**{**values, **changes})


def picked(count=2):
    return [Picked(f"l-{number}", NOON + number) for number in range(count)]


def progress(**changes):
    values = {
        "position": 1,
        "tally": Tally(sent=1),
        "on_their_way": {"l-0": (NOON, NOON + 5)},
        "tempo": Tempo(share=0.25, failing=0.7, answers=20.0),
        "due_seconds": NOON + 6,
    }
    return Progress(**{**values, **changes})


class ReplayJobContract:
    def test_a_job_is_kept_as_it_was_made(self, jobs):
        made = job(who=NASTY, reason=NASTY, chosen=NASTY, per_second=2.5, canary=3, stop_at=4, may_run_twice=True)
        jobs.create(made, picked())

        assert made == jobs.get("j-1")
        assert jobs.picked("j-1", 0) == picked()

    def test_a_job_that_is_not_there_is_none(self, jobs):
        assert jobs.get("absent") is None
        assert list(jobs.picked("absent", 0)) == []
        with pytest.raises(NoSuchJob):
            jobs.change("absent", taken("r", NOON, LEASE_SECONDS))

    def test_letters_come_in_their_order_part_by_part(self, jobs):
        """A job of a million letters is not read at once, and one letter that is left out is work lost."""
        letters = picked(2 * PART_SIZE + 1)
        letters[3] = Picked(NASTY, NOON)
        jobs.create(job(total=len(letters)), letters)

        parts = [jobs.picked("j-1", number) for number in range(4)]
        assert [len(part) for part in parts] == [PART_SIZE, PART_SIZE, 1, 0]
        assert [each for part in parts for each in part] == letters

    def test_the_newest_job_comes_first(self, jobs):
        for number in range(5):
            jobs.create(job(f"j-{number}", created_seconds=NOON + number), picked())

        assert [each.id for each in jobs.list(limit=3).jobs] == ["j-4", "j-3", "j-2"]

    def test_a_group_has_one_job_at_a_time(self, jobs):
        """Two replays of one group would each hold half of its letters, and count the other's as gone."""
        jobs.create(job(fingerprint="f" * 32), picked())

        with pytest.raises(JobUnderWay) as caught:
            jobs.create(job("j-2", fingerprint="f" * 32), picked())
        jobs.create(job("j-3", fingerprint="e" * 32), picked())
        jobs.create(job("j-4"), picked())
        jobs.create(job("j-5"), picked())

        assert caught.value.job_id == "j-1"
        assert jobs.get("j-2") is None

    @pytest.mark.parametrize("status", ["paused", "stopped"])
    def test_a_job_that_waits_for_a_person_still_has_its_group(self, jobs, status):
        jobs.create(job(fingerprint="f" * 32), picked())
        jobs.change("j-1", lambda stored: replace(stored, status=status))

        with pytest.raises(JobUnderWay):
            jobs.create(job("j-2", fingerprint="f" * 32), picked())

    @pytest.mark.parametrize("status", ["done", "cancelled"])
    def test_a_group_whose_job_is_over_can_have_another(self, jobs, status):
        jobs.create(job(fingerprint="f" * 32), picked())
        jobs.change("j-1", lambda stored: replace(stored, status=status))

        jobs.create(job("j-2", fingerprint="f" * 32), picked())

        assert jobs.get("j-2").status == "running"

    def test_jobs_that_were_over_long_ago_are_purged_the_oldest_first(self, jobs):
        """A desk of three years lists ten thousand replays of causes that nobody remembers."""
        for number, status in enumerate(["done", "cancelled", "done", "paused", "stopped", "running", "done"]):
            made = job(f"j-{number}", created_seconds=NOON + number, fingerprint=f"{number}" * 32)
            jobs.create(made, picked())
            jobs.change(made.id, lambda stored, status=status: replace(stored, status=status))

        assert jobs.purge(NOON + 6, 2) == 2
        assert [each.id for each in jobs.list().jobs] == ["j-6", "j-5", "j-4", "j-3", "j-2"]
        assert (jobs.purge(NOON + 6, 2), jobs.purge(NOON + 6, 2)) == (1, 0)
        assert [each.id for each in jobs.list().jobs] == ["j-6", "j-5", "j-4", "j-3"]
        assert (jobs.get("j-0"), list(jobs.picked("j-1", 0))) == (None, [])
        assert jobs.picked("j-3", 0) == picked()

    def test_a_group_whose_job_was_purged_can_have_another(self, jobs):
        jobs.create(job(fingerprint="f" * 32), picked())
        jobs.change("j-1", lambda stored: replace(stored, status="done"))
        jobs.purge(NOON + 1, 10)

        jobs.create(job("j-2", fingerprint="f" * 32), picked())
        assert jobs.purge(NOON + 1, 10) == 0
        with pytest.raises(JobUnderWay):
            jobs.create(job("j-3", fingerprint="f" * 32), picked())

    def test_of_twenty_jobs_of_a_group_made_at_once_one_is(self, jobs):
        """Two people who see the same page press the same button."""
        made, errors = race(
            RACERS, lambda number: jobs.create(job(f"j-{number}", fingerprint="f" * 32), picked()) or number
        )

        assert len(made) == 1
        assert {type(error) for error in errors} == {JobUnderWay}
        assert {error.job_id for error in errors} == {f"j-{made[0]}"}

    def test_of_twenty_runners_one_has_the_job(self, jobs):
        """Two runners of one job would send each letter at twice the pace that was asked for."""
        jobs.create(job(), picked())

        won, errors = race(RACERS, lambda number: jobs.change("j-1", taken(f"r-{number}", NOON, LEASE_SECONDS)).runner)

        assert len(won) == 1
        assert {type(error) for error in errors} == {JobNotOpen}
        assert jobs.get("j-1").runner == won[0]

    def test_twenty_steps_at_once_all_count(self, jobs):
        """A change that reads, and writes what it read before another's, loses the other's."""
        jobs.create(job(), picked())

        def add(number):
            jobs.change("j-1", lambda stored: replace(stored, tally=stored.tally + Tally(sent=1)))

        _, errors = race(RACERS, add)

        assert errors == []
        assert jobs.get("j-1").tally.sent == RACERS

    def test_a_step_is_written_down_and_read_again(self, jobs):
        jobs.create(job(), picked())
        jobs.change("j-1", taken("r", NOON, LEASE_SECONDS))
        tally = Tally(sent=1, skipped=2, refused=3, reasons={NASTY: 5})

        written = jobs.change("j-1", advanced("r", NOON + 1, LEASE_SECONDS, progress(tally=tally)))

        assert written == jobs.get("j-1")
        assert (written.position, written.tally, written.tempo) == (
            1,
            tally,
            Tempo(share=0.25, failing=0.7, answers=20.0),
        )
        assert written.due_seconds == NOON + 6
        assert written.on_their_way == {"l-0": (NOON, NOON + 5)}
        assert written.lease_until_seconds == NOON + 61

    def test_a_step_that_is_written_twice_counts_once(self, jobs):
        """Its answer was lost, so it is made again; each failure would count double towards the stop."""
        jobs.create(job(), picked())
        jobs.change("j-1", taken("r", NOON, LEASE_SECONDS))
        step = advanced("r", NOON + 1, LEASE_SECONDS, progress(tally=Tally(sent=2, failed_again=1, reasons={"a": 1})))

        assert jobs.change("j-1", step) == jobs.change("j-1", step)
        assert jobs.get("j-1").tally == Tally(sent=2, failed_again=1, reasons={"a": 1})

    def test_a_step_of_a_runner_who_has_lost_the_job_is_refused(self, jobs):
        """It would set the job back to what that runner knew."""
        jobs.create(job(), picked())
        jobs.change("j-1", taken("slow", NOON, LEASE_SECONDS))
        jobs.change("j-1", taken("other", NOON + 61, LEASE_SECONDS))
        jobs.change("j-1", advanced("other", NOON + 62, LEASE_SECONDS, progress(position=2)))

        with pytest.raises(JobLost):
            jobs.change("j-1", advanced("slow", NOON + 63, LEASE_SECONDS, progress()))

        assert (jobs.get("j-1").position, jobs.get("j-1").runner) == (2, "other")

    def test_letters_are_forgotten_with_the_end(self, jobs):
        jobs.create(job(total=PART_SIZE + 1), picked(PART_SIZE + 1))
        jobs.create(job("j-2"), picked())
        jobs.change("j-1", taken("r", NOON, LEASE_SECONDS))
        jobs.change("j-1", ended("r", "done", "", NOON + 1))

        assert [list(jobs.picked("j-1", number)) for number in range(2)] == [[], []]
        assert jobs.picked("j-2", 0) == picked()
        assert jobs.get("j-1").total == PART_SIZE + 1

    def test_letters_of_a_cancelled_job_stay_until_it_is_known_what_its_runner_has_begun(self, jobs):
        """The runner is in the midst of a step; if it is dead, only its letters tell what it had begun."""
        jobs.create(job(), picked())
        jobs.change("j-1", taken("r", NOON, LEASE_SECONDS))
        jobs.change("j-1", declared("cancelled", "bob", NOON + 1))
        assert jobs.picked("j-1", 0) == picked()

        last = jobs.change("j-1", advanced("r", NOON + 2, LEASE_SECONDS, progress()))

        assert (last.status, last.tally.sent, last.runner) == ("cancelled", 1, "")
        assert jobs.picked("j-1", 0) == picked()

        last = jobs.change("j-1", settled(["l-1"], NOON + 3))
        assert (last.settled, last.unsure) == (True, ("l-1",))
        assert last == jobs.get("j-1")
        assert list(jobs.picked("j-1", 0)) == []

    def test_a_cancelled_job_is_settled_once_and_not_while_its_runner_lives(self, jobs):
        """A runner that writes its last step would find its letters gone."""
        jobs.create(job(), picked())
        jobs.change("j-1", taken("r", NOON, LEASE_SECONDS))
        with pytest.raises(JobLost):
            jobs.change("j-1", settled([], NOON + 61))
        jobs.change("j-1", declared("cancelled", "bob", NOON + 1))

        with pytest.raises(JobLost):
            jobs.change("j-1", settled([], NOON + 59))
        won, errors = race(RACERS, lambda number: jobs.change("j-1", settled([f"l-{number}"], NOON + 61)).unsure)

        assert ([jobs.get("j-1").unsure], len(errors)) == (won, RACERS - 1)
