"""A replay job as the command line shows it: to people, and to scripts."""

from typing import Any

from celery_safeguards.cli.text import print_fields, print_json
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.printable import counted, when

_PLAIN = (
    *("id", "status", "because", "who", "reason", "chosen", "fingerprint", "total", "position", "settled"),
    *("per_second", "at_once", "canary", "stop_at", "adapts", "window", "per_second_now", "may_run_twice", "runner"),
    *("created_seconds", "changed_seconds"),
)
_TALLY = ("sent", "skipped", "refused", "succeeded", "failed_again", "unanswered")


def print_job(job: ReplayJob, *, as_json: bool) -> None:
    """Print how a job stands."""
    if as_json:
        print_json(plain(job))
        return
    tally = job.tally
    pace, *slowed = job.pace_in_words
    print_fields(
        [
            ("job", job.id),
            ("status", f"{job.status}{f': {job.because}' if job.because else ''}"),
            ("chosen", f"{counted(job.total, 'letter')}: {job.chosen}"),
            ("by", f"{job.who}{f': {job.reason}' if job.reason else ''}"),
            ("made", when(job.created_seconds)),
            ("pace", pace),
            *(("", line) for line in slowed),
            ("canary", f"{counted(job.canary, 'letter')} first" if job.canary else None),
            ("stops at", counted(job.stop_at, "failure") if job.stop_at else None),
            ("dealt with", f"{job.position} of {job.total}"),
            ("sent", tally.sent),
            ("", f"{tally.succeeded} succeeded, {tally.failed_again} failed again, {tally.unanswered} gave no answer"),
            ("", f"{len(job.on_their_way)} on their way" if job.on_their_way else None),
            *(("" if at else "in doubt", line) for at, line in enumerate(in_doubt(job))),
            ("skipped", tally.skipped),
            ("refused", tally.refused),
            *(("", f"{count}: {reason}") for reason, count in tally.reasons.items()),
        ]
    )


def in_doubt(job: ReplayJob) -> list[str]:
    """Return a line for each letter of which nobody knows whether it was sent."""
    return [f"letter {each} was begun, perhaps not sent: `dead resume {each}` sends it" for each in job.unsure]


def row_of(job: ReplayJob) -> tuple[object, ...]:
    """Return a job as a row of their table."""
    numbers = (f"{job.position}/{job.total}", job.tally.sent, job.tally.succeeded, job.tally.failed_again)
    return (job.id, job.status, *numbers, when(job.created_seconds), job.who, job.chosen)


def plain(job: ReplayJob) -> dict[str, Any]:
    """Return a job as JSON can carry it, without the letters it was made of."""
    numbers = {name: getattr(job.tally, name) for name in _TALLY}
    described = {name: getattr(job, name) for name in _PLAIN}
    tempo = {"pace_share": job.tempo.share, "failing_share": job.tempo.failing}
    rest = {"on_their_way": len(job.on_their_way), "in_doubt": job.unsure, "reasons": dict(job.tally.reasons)}
    return {**described, **tempo, **numbers, **rest}
