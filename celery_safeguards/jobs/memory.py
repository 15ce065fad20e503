"""Replay jobs in this process's memory: for tests and for eager development."""

import threading
from collections.abc import Sequence

from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.picked import Picked, parts_of, picked_of
from celery_safeguards.jobs.refusals import JobUnderWay, NoSuchJob
from celery_safeguards.jobs.steps import JobChange
from celery_safeguards.jobs.store import JobPage


class MemoryJobStore:
    """
    A `JobStore` in a dict.

    Safe when: used by several threads of one process.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, ReplayJob] = {}
        self._parts: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def create(self, job: ReplayJob, picked: Sequence[Picked]) -> None:
        """See `JobStore.create`."""
        with self._lock:
            for other in self._jobs.values():
                if job.fingerprint and other.fingerprint == job.fingerprint and not other.is_over:
                    raise JobUnderWay(other.id)
            self._jobs[job.id] = job
            self._parts[job.id] = parts_of(picked)

    def get(self, job_id: str) -> ReplayJob | None:
        """See `JobStore.get`."""
        with self._lock:
            return self._jobs.get(job_id)

    def list(self, limit: int = 50) -> JobPage:
        """See `JobStore.list`."""
        with self._lock:
            newest = sorted(self._jobs.values(), key=lambda job: (job.created_seconds, job.id), reverse=True)
        return JobPage(jobs=tuple(newest[:limit]))

    def change(self, job_id: str, change: JobChange) -> ReplayJob:
        """See `JobStore.change`."""
        with self._lock:
            if job_id not in self._jobs:
                raise NoSuchJob(f"there is no job {job_id}")
            changed = self._jobs[job_id] = change(self._jobs[job_id])
            if changed.forgets_letters:
                self._parts.pop(job_id, None)
            return changed

    def purge(self, made_before_seconds: float, limit: int) -> int:
        """See `JobStore.purge`."""
        with self._lock:
            old = [job for job in self._jobs.values() if job.is_over and job.created_seconds < made_before_seconds]
            gone = sorted(old, key=lambda job: job.created_seconds)[:limit]
            for job in gone:
                del self._jobs[job.id]
                self._parts.pop(job.id, None)
            return len(gone)

    def picked(self, job_id: str, part: int) -> Sequence[Picked]:
        """See `JobStore.picked`."""
        with self._lock:
            parts = self._parts.get(job_id, [])
            return picked_of(parts[part]) if part < len(parts) else []
