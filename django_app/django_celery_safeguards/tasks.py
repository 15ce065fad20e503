"""
A replay job in a worker: a message for each part of it.

    t0 worker A runs the job for ten seconds, publishes the next message, acknowledges its own
    t1 worker B takes that one and goes on at A's last step
    t2 B dies: its message comes back, and meets the lease that B has left; it waits until that is over

So no message is kept for longer than a visibility timeout, and none keeps a child from the letters that it has sent:
while a job only waits for their answers, its message waits in the broker. Two messages of one job do no harm: one
runner has it, and the other waits for its lease, or ends with the job. Of a job that is cancelled meanwhile it waits
for that lease, too, and then writes down what the dead runner has left in doubt.

It is a plain task: a project without guarded tasks is not given one by installing an app. A child that is killed while
it runs a job leaves the job to be run by a person: it might be killed again and again.
"""

import time
from typing import Any

from celery import shared_task

from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.refusals import JobNotOpen, NoSuchJob
from celery_safeguards.replay.many.running import run_job
from celery_safeguards.replay.many.settling import settle
from celery_safeguards.wiring import Wiring

RUN_REPLAY = "celery_safeguards.run_replay"
PART_SECONDS = 10.0
_WAIT_SECONDS = 1.0


@shared_task(
    bind=True,
    name=RUN_REPLAY,
    acks_late=True,
    autoretry_for=(StoreUnavailable,),
    retry_backoff=5,
    retry_backoff_max=60,
    max_retries=20,
    ignore_result=True,
)
def run_replay(self: Any, job_id: str) -> None:
    """Run a job for ten seconds, or for as long as it has something to send, and leave the rest to the next message."""
    part = _Part(time.monotonic() + PART_SECONDS)
    try:
        job = run_job(self.app, job_id, on_step=part.see, should_stop=part.is_over)
        wait_seconds = _WAIT_SECONDS if part.is_idle else 0.0
    except NoSuchJob:
        return
    except JobNotOpen:
        found = _as_it_stands(self.app, job_id)
        if found is None:
            return
        now = Wiring.of(self.app).clock.wall_seconds()
        job, wait_seconds = found, max(_WAIT_SECONDS, found.lease_until_seconds - now)
    if job.status == "running" or (job.status == "cancelled" and not job.settled):
        self.apply_async((job_id,), countdown=wait_seconds)


def _as_it_stands(app: Any, job_id: str) -> ReplayJob | None:
    """Return a job that does not run; one that was cancelled is settled, if its last runner has gone."""
    try:
        return settle(app, job_id)
    except NoSuchJob:
        return None


class _Part:
    """Part of a job: over after some time, or once a step has sent nothing."""

    def __init__(self, ends: float) -> None:
        self._ends = ends
        self._position = -1
        self.is_idle = False

    def see(self, job: ReplayJob) -> None:
        self.is_idle, self._position = job.position == self._position, job.position

    def is_over(self) -> bool:
        return self.is_idle or time.monotonic() >= self._ends


def hand_over(app: Any, job_id: str) -> None:
    """
    Have a worker run a job.

    Raises:
        Exception: whatever a publish raises: the broker did not take it, or not in time.

    """
    app.tasks[RUN_REPLAY].apply_async((job_id,))
