"""What can be done with a replay job that is made: who may, when, and what it means."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery_safeguards.jobs.job import JobStatus, ReplayJob
from celery_safeguards.printable import clean
from django_celery_safeguards.admin.pages.rights import may
from django_celery_safeguards.tasks import hand_over

REPLAYS = "replay_deadletter"
"""Whoever may send letters, may do it by a job."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """
    One thing that can be done with a job.

    Attributes:
        button: in the imperative.
        question: the heading of the page that asks.
        means: what happens then.
        status: what the job becomes; None: it stays.
        hands_over: whether a worker is to run it.

    """

    name: str
    button: str
    question: str
    means: str
    status: JobStatus | None = None
    hands_over: bool = False

    def is_allowed(self, request: Any) -> bool:
        """Whether whoever asks may do it."""
        return may(request, REPLAYS)


_PAUSE = Verb(
    name="pause",
    button="Pause",
    question="Pause this replay?",
    means="Nothing more is sent until somebody resumes it. What is on its way goes on.",
    status="paused",
)
_RESUME = Verb(
    name="resume",
    button="Resume",
    question="Go on with this replay?",
    means="A worker goes on where it was. A replay that has stopped stops again at as many failures more.",
    status="running",
    hands_over=True,
)
_RUN = Verb(
    name="run",
    button="Run",
    question="Have a worker run this replay?",
    means="Nobody runs it just now: a worker goes on where it was.",
    hands_over=True,
)
_CANCEL = Verb(
    name="cancel",
    # Beside "Do nothing", a bare "Cancel" is what people press who want out.
    button="Cancel the replay",
    question="End this replay?",
    means="Nothing more is sent, and it cannot be resumed. What was not sent stays open.",
    status="cancelled",
)
VERBS = {verb.name: verb for verb in (_PAUSE, _RESUME, _RUN, _CANCEL)}


def why_not(verb: Verb, job: ReplayJob, now_seconds: float) -> str:
    """Return why something cannot be done with a job as it stands by now; '' if it can."""
    if verb in verbs_of(job, now_seconds):
        return ""
    if verb is _RUN and job.status == "running":
        return f"nothing was done: {clean(job.runner)} runs it already"
    return f"nothing was done: it is {job.status} by now"


def verbs_of(job: ReplayJob, now_seconds: float) -> Sequence[Verb]:
    """Return what can be done with a job as it stands."""
    if job.is_over:
        return ()
    if job.status != "running":
        return (_RESUME, _CANCEL)
    is_run = bool(job.runner) and job.lease_until_seconds > now_seconds
    return (_PAUSE, _CANCEL) if is_run else (_RUN, _PAUSE, _CANCEL)


def hand_over_or_say(app: Any, job_id: str) -> str:
    """Have a worker run a job; returns why none was asked, or nothing."""
    try:
        hand_over(app, job_id)
    except Exception as error:
        logger.exception("no worker was asked to run job %s", job_id)
        how = f"press Run, or use `safeguards replays run {job_id}`"
        return f"No worker was asked to run it ({clean(repr(error), 200)}): {how}"
    return ""
