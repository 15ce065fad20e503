"""
The end of a cancelled job: which letters its runner had begun, and may have sent or not.

    t0 A begins letters 71 to 90    t1 A publishes 71 to 75, and is killed    t2 a person cancels the job
    t3 A's lease is over: whoever looks finds 71 to 90 replaying under this job's ids. Nothing tells 75 from 76
    t4 they are listed with the job: each waits for a person, who resumes it, under the id that it has

They are not opened again. A may be frozen and not dead:

    t3 76 is open again    t4 a person discards it: it is never to be sent    t5 A wakes, and publishes 76

What was written down as sent is sent, and says so from here on. A runner that lives when its job is cancelled writes
its step, and then does the same: the broker may have refused the rest of a batch that it had begun.

Bounded: a runner begins `MOST_UNWRITTEN` letters at most that it has not written down.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.picked import PART_SIZE, Picked
from celery_safeguards.jobs.refusals import JobLost, NoSuchJob
from celery_safeguards.jobs.steps import settled
from celery_safeguards.replay.many.batch import MOST_UNWRITTEN, task_id_of
from celery_safeguards.wiring import Wiring

_LETTERS_TOGETHER = 50


def settle(app: Any, job_id: str) -> ReplayJob:
    """
    Settle a job if it is cancelled and nobody runs it any more, and return it as it stands.

    Args:
        app: see `replay`.
        job_id: any job.

    Raises:
        NoSuchJob: there is none of that id.
        StoreUnavailable: settle it again.

    Safe when: several settle it at once, and when killed at any point: it is settled by one step, the last.

    """
    wiring = Wiring.of(app)
    job = wiring.jobs.get(job_id)
    if job is None:
        raise NoSuchJob(f"there is no job {job_id}")
    now = wiring.clock.wall_seconds()
    if not job.may_be_settled(now):
        return job
    on_their_way = list(job.on_their_way)
    for first in range(0, len(on_their_way), _LETTERS_TOGETHER):
        sent = on_their_way[first : first + _LETTERS_TOGETHER]
        wiring.letters.mark_each_replayed({each: task_id_of(job.id, each) for each in sent}, now)
    unsure = [each for part in _unwritten(wiring, job) for each in _begun(wiring, job, part)]
    try:
        return wiring.jobs.change(job.id, settled(unsure, now))
    except JobLost:
        return wiring.jobs.get(job.id) or job  # somebody else was faster


def _unwritten(wiring: Wiring, job: ReplayJob) -> Iterator[Sequence[Picked]]:
    """Return the letters that the last runner may have begun after its last step."""
    ends = min(job.total, job.position + MOST_UNWRITTEN)
    position = job.position
    while position < ends:
        number, place = divmod(position, PART_SIZE)
        together = min(_LETTERS_TOGETHER, ends - position, PART_SIZE - place)
        yield wiring.jobs.picked(job.id, number)[place : place + together]
        position += together


def _begun(wiring: Wiring, job: ReplayJob, picked: Sequence[Picked]) -> list[str]:
    found = wiring.letters.get_many([each.letter_id for each in picked])
    return [
        letter_id
        for letter_id, letter in found.items()
        if isinstance(letter, Letter)
        and letter.state == "replaying"
        and letter.replay_task_id == task_id_of(job.id, letter_id)
    ]
