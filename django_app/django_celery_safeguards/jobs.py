"""
Replay jobs in the project's database.

Every change holds the job's row from reading it to writing it. That a group has one job under way at most is a unique
column: of two that begin at once, one finds the other's row.
"""

from collections.abc import Sequence
from typing import Any

from celery_safeguards.clock import to_us
from celery_safeguards.jobs.job import OVER, ReplayJob
from celery_safeguards.jobs.picked import Picked, parts_of, picked_of
from celery_safeguards.jobs.refusals import JobUnderWay, JobUnreadable, NoSuchJob
from celery_safeguards.jobs.steps import JobChange
from celery_safeguards.jobs.store import JobPage
from django_celery_safeguards.house import House
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import parameters, row_id, shown

_COLUMNS = ("job_id", "status", "who", "chosen", "fingerprint", "created_us", "job", "under_way", "namespace")


class OrmJobStore:
    """
    A `JobStore` in rows.

    Safe when: used by several threads and processes; used before and after a fork.
    """

    def __init__(self, house: House) -> None:
        self._house = house

    def create(self, job: ReplayJob, picked: Sequence[Picked]) -> None:
        """See `JobStore.create`."""
        tables, part_columns = self._house.tables, ("namespace", "job_row", "letters", "id")

        def act(cursor: Any) -> None:
            slot = self._slot(job)
            if slot is not None:
                cursor.execute(tables.jobs.select(("job_id",), by=("under_way",)), [slot])
                other = cursor.fetchone()
                if other is not None and other[0] != job.id:
                    raise JobUnderWay(other[0])
            if self._read(cursor, job.id, "") is not None:
                return  # an answer was lost: it is kept already
            cursor.execute(tables.jobs.insert((*_COLUMNS, "id")), self._row(job))
            for number, part in enumerate(parts_of(picked)):
                values = [self._house.namespace, self._id(job.id), part, self._part_id(job.id, number)]
                cursor.execute(tables.job_parts.insert(part_columns), values)

        self._house.connection.transact(act)

    def get(self, job_id: str) -> ReplayJob | None:
        """See `JobStore.get`."""
        return self._house.connection.run(lambda cursor: self._read(cursor, job_id, ""))

    def list(self, limit: int = 50) -> JobPage:
        """See `JobStore.list`."""
        table = self._house.tables.jobs
        newest = f" ORDER BY {table.list(['created_us'])} DESC, {table.list(['id'])} DESC LIMIT {int(limit)}"
        select = table.select(("job", "job_id"), by=("namespace",)) + newest

        def act(cursor: Any) -> Any:
            cursor.execute(select, [self._house.namespace])
            return cursor.fetchall()

        jobs, unreadable = [], []
        for text, job_id in self._house.connection.run(act, is_large=True):
            try:
                jobs.append(ReplayJob.from_json(text))
            except JobUnreadable:
                unreadable.append(job_id)
        return JobPage(jobs=tuple(jobs), unreadable=tuple(unreadable))

    def change(self, job_id: str, change: JobChange) -> ReplayJob:
        """See `JobStore.change`."""
        tables = self._house.tables

        def act(cursor: Any) -> ReplayJob:
            stored = self._read(cursor, job_id, self._house.dialect.for_update)
            if stored is None:
                raise NoSuchJob(f"there is no job {job_id}")
            changed = change(stored)
            cursor.execute(tables.jobs.update(_COLUMNS), self._row(changed))
            if changed.forgets_letters:
                cursor.execute(tables.job_parts.delete(by=("job_row",)), [self._id(job_id)])
            return changed

        return self._house.connection.transact(act)

    def purge(self, made_before_seconds: float, limit: int) -> int:
        """See `JobStore.purge`."""
        tables, over = self._house.tables, sorted(OVER)
        made, status = tables.jobs.list(["created_us"]), f"{tables.jobs.list(['status'])} IN ({parameters(len(over))})"
        where = f"{tables.jobs.are(['namespace'])} AND {made} < %s AND {status}"
        oldest = f"ORDER BY {made} LIMIT {int(limit)}"
        select = f"SELECT {tables.jobs.list(['id'])} FROM {tables.jobs.name} WHERE {where} {oldest}"

        def act(cursor: Any) -> int:
            cursor.execute(select, [self._house.namespace, to_us(made_before_seconds), *over])
            ids = [row[0] for row in cursor.fetchall()]
            for each in ids:
                cursor.execute(tables.job_parts.delete(by=("job_row",)), [each])
                cursor.execute(tables.jobs.delete(), [each])
            return len(ids)

        return self._house.connection.transact(act)

    def picked(self, job_id: str, part: int) -> Sequence[Picked]:
        """See `JobStore.picked`."""
        select = self._house.tables.job_parts.select(("letters",))

        def act(cursor: Any) -> Any:
            cursor.execute(select, [self._part_id(job_id, part)])
            return cursor.fetchone()

        row = self._house.connection.run(act)
        return [] if row is None else picked_of(row[0])

    def _read(self, cursor: Any, job_id: str, for_update: str) -> ReplayJob | None:
        cursor.execute(self._house.tables.jobs.select(("job",)) + for_update, [self._id(job_id)])
        row = cursor.fetchone()
        return None if row is None else ReplayJob.from_json(row[0])

    def _row(self, job: ReplayJob) -> Sequence[Any]:
        return [
            *(job.id, job.status, shown(job.who, NAME_CHARS), shown(job.chosen, NAME_CHARS), job.fingerprint),
            *(to_us(job.created_seconds), job.to_json(), None if job.is_over else self._slot(job)),
            *(self._house.namespace, self._id(job.id)),
        ]

    def _slot(self, job: ReplayJob) -> str | None:
        return row_id(self._house.namespace, job.fingerprint) if job.fingerprint else None

    def _id(self, job_id: str) -> str:
        return row_id(self._house.namespace, job_id)

    def _part_id(self, job_id: str, number: int) -> str:
        return row_id(self._house.namespace, job_id, str(number))
