"""Where replay jobs are kept: the port that every store fills."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.picked import Picked
from celery_safeguards.jobs.steps import JobChange


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Jobs, the newest first."""

    jobs: tuple[ReplayJob, ...]
    unreadable: tuple[str, ...] = ()
    """Jobs that are stored but cannot be read, by their ids."""


class JobStore(Protocol):
    """
    Keeps jobs, each change of one at once or not at all.

    Every method raises `StoreUnavailable` when the store does not answer; a change may then have been made or not.

    Safe when: used by many threads and processes at once.
    """

    def create(self, job: ReplayJob, picked: Sequence[Picked]) -> None:
        """
        Keep a new job and its letters.

        Of any number of callers with jobs of one group one gets through while none of that group is under way.

        Raises:
            JobUnderWay: the group has a job that is not over.

        """
        ...

    def get(self, job_id: str) -> ReplayJob | None:
        """
        Return a job, or None.

        Raises:
            JobUnreadable: it is stored, but damaged or of a newer version.

        """
        ...

    def list(self, limit: int = 50) -> JobPage:
        """Return the newest jobs."""
        ...

    def change(self, job_id: str, change: JobChange) -> ReplayJob:
        """
        Return a job as `change` has made it of what is stored; it may be asked again where somebody else was faster.

        The letters of a job are forgotten once it is over and nobody runs it.

        Raises:
            NoSuchJob: there is none of that id.

        """
        ...

    def purge(self, made_before_seconds: float, limit: int) -> int:
        """
        Delete jobs that are over and were made before a time, the oldest first; return how many.

        One that is not over stays, however old it is, and one that cannot be read.
        """
        ...

    def picked(self, job_id: str, part: int) -> Sequence[Picked]:
        """Return the letters of one part, `PART_SIZE` of them or what is left; none: there are no more."""
        ...
