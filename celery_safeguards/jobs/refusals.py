"""What is said when a job cannot be made, run or changed as asked."""

from celery_safeguards.errors import SafeguardsError


class NoSuchJob(SafeguardsError):
    """Raised when a job is not in the store."""


class JobUnderWay(SafeguardsError):
    """Raised when a group has a job that is not over: `job_id`."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id} replays this group already: go on with that one, or cancel it"


class JobLost(SafeguardsError):
    """Raised to a runner whose job somebody else has: its lease was over, or the job was paused or ended."""


class JobNotOpen(SafeguardsError):
    """Raised when a job stands otherwise than a step needs."""


class JobUnreadable(SafeguardsError, ValueError):
    """Raised when stored text is no job: damaged, or written by a newer version."""
