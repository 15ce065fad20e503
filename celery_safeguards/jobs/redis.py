"""
Replay jobs in Redis: one hash for each job, its letters in a list, and all jobs in a sorted set.

Every change is one script that compares the job's version, as with letters. A job's letters go with its end; the job
itself stays until it is purged.
"""

import uuid
from collections.abc import Sequence

from celery_safeguards._redis import Client, Keys, Script
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.picked import Picked, parts_of, picked_of
from celery_safeguards.jobs.refusals import JobUnderWay, JobUnreadable, NoSuchJob
from celery_safeguards.jobs.steps import JobChange
from celery_safeguards.jobs.store import JobPage

_CREATE = Script.of("jobs/create_job.lua")
_CHANGE = Script.of("jobs/change_job.lua")
_READ = Script.of("jobs/read_jobs.lua")
_PURGE = Script.of("jobs/purge_job.lua")
_LOOKED_AT = 1_000
"""Jobs that a purge looks at: those that are not over for as long are few."""


class RedisJobStore:
    """
    A `JobStore` in Redis.

    Safe when: used by several threads and processes; used before and after a fork.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def create(self, job: ReplayJob, picked: Sequence[Picked]) -> None:
        """See `JobStore.create`."""
        keys = [*self._keys_of(job.id), self._keys.jobs]
        keys += [self._keys.job_of_group(job.fingerprint)] if job.fingerprint else []
        fields = [job.id, uuid.uuid4().hex, job.to_json(), repr(job.created_seconds), self._keys.job("")]
        other = self._client.run(_CREATE, keys, [*fields, *parts_of(picked)])
        if other:
            raise JobUnderWay(other)

    def get(self, job_id: str) -> ReplayJob | None:
        """See `JobStore.get`."""
        _version, text = self._read(job_id)
        return None if text is None else ReplayJob.from_json(text)

    def list(self, limit: int = 50) -> JobPage:
        """See `JobStore.list`."""
        jobs, unreadable = [], []
        for job_id in self._client.run(_READ, [self._keys.jobs], ["newest", limit]):
            try:
                job = self.get(job_id)
            except JobUnreadable:
                unreadable.append(job_id)
                continue
            jobs += [job] if job is not None else []
        return JobPage(jobs=tuple(jobs), unreadable=tuple(unreadable))

    def change(self, job_id: str, change: JobChange) -> ReplayJob:
        """See `JobStore.change`."""
        while True:
            version, text = self._read(job_id)
            if version is None or text is None:
                raise NoSuchJob(f"there is no job {job_id}")
            changed = change(ReplayJob.from_json(text))
            marks = [str(int(mark)) for mark in (changed.is_over, changed.forgets_letters)]
            written = [uuid.uuid4().hex, version, changed.to_json(), *marks]
            if self._client.run(_CHANGE, self._keys_of(job_id), written):
                return changed

    def purge(self, made_before_seconds: float, limit: int) -> int:
        """See `JobStore.purge`."""
        gone = 0
        older = self._client.run(_READ, [self._keys.jobs], ["older", _LOOKED_AT, repr(made_before_seconds)])
        for job_id in older:
            if gone >= limit:
                break
            try:
                job = self.get(job_id)
            except JobUnreadable:
                continue
            if job is not None and job.is_over:
                keys = [*self._keys_of(job_id), self._keys.jobs]
                keys += [self._keys.job_of_group(job.fingerprint)] if job.fingerprint else []
                gone += self._client.run(_PURGE, keys, [job_id])
        return gone

    def picked(self, job_id: str, part: int) -> Sequence[Picked]:
        """See `JobStore.picked`."""
        text = self._client.run(_READ, self._keys_of(job_id), ["part", part])
        return [] if text is None else picked_of(text)

    def _read(self, job_id: str) -> tuple[str | None, str | None]:
        version, text = self._client.run(_READ, self._keys_of(job_id), ["job"])
        return version, text

    def _keys_of(self, job_id: str) -> Sequence[str]:
        return [self._keys.job(job_id), self._keys.job_letters(job_id)]
