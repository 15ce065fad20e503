"""The steps of a job, as changes: its runner's, and those of people. A store makes each at once, or not at all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.jobs.job import JobStatus, OnTheirWay, ReplayJob
from celery_safeguards.jobs.refusals import JobLost, JobNotOpen
from celery_safeguards.jobs.tally import Tally
from celery_safeguards.jobs.tempo import Tempo
from celery_safeguards.printable import duration

JobChange = Callable[[ReplayJob], ReplayJob]
"""Decides what a stored job becomes, or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A step of a runner: see `ReplayJob`; the tally is of all steps, for a step may be written twice."""

    position: int
    tally: Tally
    on_their_way: OnTheirWay
    tempo: Tempo
    due_seconds: float


def taken(runner: str, now_seconds: float, lease_seconds: float) -> JobChange:
    """Return the change by which a runner gets a job that runs and that nobody has."""

    def change(job: ReplayJob) -> ReplayJob:
        if job.status != "running":
            raise JobNotOpen(f"job {job.id} is {job.status}{f': {job.because}' if job.because else ''}")
        if job.runner not in {"", runner} and job.lease_until_seconds > now_seconds:
            left = duration(job.lease_until_seconds - now_seconds)
            raise JobNotOpen(f"job {job.id} is run by {job.runner}, whose lease ends in {left} at the latest")
        return replace(job, runner=runner, lease_until_seconds=now_seconds + lease_seconds, changed_seconds=now_seconds)

    return change


def advanced(runner: str, now_seconds: float, lease_seconds: float, progress: Progress) -> JobChange:
    """Return the change by which a runner writes a step down, and keeps the job."""

    def change(job: ReplayJob) -> ReplayJob:
        if job.runner != runner:
            raise JobLost(f"job {job.id} is run by {job.runner or 'nobody'} now")
        # Paused or cancelled meanwhile: what was sent is written down all the same.
        keeps = job.status == "running"
        return replace(
            job,
            position=progress.position,
            tally=progress.tally,
            on_their_way=progress.on_their_way,
            tempo=progress.tempo,
            due_seconds=progress.due_seconds,
            runner=runner if keeps else "",
            lease_until_seconds=now_seconds + lease_seconds if keeps else 0.0,
            changed_seconds=now_seconds,
        )

    return change


def ended(runner: str, status: JobStatus, because: str, now_seconds: float) -> JobChange:
    """Return the change by which a runner gives a job back: done, or stopped."""

    def change(job: ReplayJob) -> ReplayJob:
        if job.runner != runner:
            raise JobLost(f"job {job.id} is run by {job.runner or 'nobody'} now")
        given_back = replace(job, runner="", lease_until_seconds=0.0, changed_seconds=now_seconds)
        # Otherwise a person was faster.
        return replace(given_back, status=status, because=because) if job.status == "running" else given_back

    return change


def let_go(runner: str, now_seconds: float) -> JobChange:
    """Return the change by which a runner leaves a job for the next one."""

    def change(job: ReplayJob) -> ReplayJob:
        if job.runner != runner:
            return job
        return replace(job, runner="", lease_until_seconds=0.0, changed_seconds=now_seconds)

    return change


def declared(status: JobStatus, who: str, now_seconds: float) -> JobChange:
    """Return the change by which a person pauses a job, resumes it, or cancels it."""
    allowed: Mapping[JobStatus, Sequence[JobStatus]] = {
        "paused": ("running",),
        "running": ("paused", "stopped"),
        "cancelled": ("running", "paused", "stopped"),
    }
    if not who.strip():
        raise ConfigurationError(f"who={who!r}: a job is changed under a name")

    def change(job: ReplayJob) -> ReplayJob:
        if job.status not in allowed[status]:
            raise JobNotOpen(f"job {job.id} is {job.status}")
        # A runner keeps the name on the job until it has written down what it has sent.
        runner = job.runner if job.lease_until_seconds > now_seconds else ""
        changed = replace(job, status=status, because=f"by {who}", runner=runner, changed_seconds=now_seconds)
        if job.status != "stopped" or status != "running":
            return changed
        # Who resumes what has stopped has seen its failures: as many more stop it again. Where it has stopped without
        # any, as when no broker was there, its canaries still go first.
        bad = job.tally.failed_again + job.tally.unanswered
        stop_at = job.stop_at and job.stop_at + job.tally.failed_again
        return replace(changed, canary=0 if bad else job.canary, stop_at=stop_at)

    return change


def settled(unsure: Sequence[str], now_seconds: float) -> JobChange:
    """Return the change by which it is written down what the last runner of a cancelled job has left."""

    def change(job: ReplayJob) -> ReplayJob:
        if not job.may_be_settled(now_seconds):
            raise JobLost(f"job {job.id} is settled, or somebody runs it")
        free = replace(job, runner="", lease_until_seconds=0.0, changed_seconds=now_seconds)
        return replace(free, settled=True, unsure=tuple(unsure))

    return change
