"""Lost starts of work without a key, in the project's database."""

from typing import Any

from celery_safeguards.clock import to_us
from django_celery_safeguards.house import House
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import row_id, shown

_KEEP_SECONDS = 604_800
_COUNT = ("count", "expires_us")


class OrmStartCounter:
    """Start counts in rows, kept for a week; see `StartCounter`."""

    def __init__(self, house: House) -> None:
        self._house = house

    def begin(self, task_id: str, limit: int) -> int | None:
        """Count a start, unless the limit is reached."""
        table, id_ = self._house.tables.starts, self._id(task_id)

        def act(cursor: Any) -> int | None:
            is_there, count, now_us = self._find(cursor, id_, self._house.dialect.for_update)
            if count >= limit:
                return None
            values = [count + 1, now_us + to_us(_KEEP_SECONDS)]
            if is_there:
                cursor.execute(table.update(_COUNT), [*values, id_])
            else:
                names = [id_, self._house.namespace, shown(task_id, NAME_CHARS)]
                cursor.execute(table.insert(("id", "namespace", "task_id", *_COUNT)), [*names, *values])
            return count + 1

        return self._house.connection.transact(act)

    def end(self, task_id: str) -> None:
        """Forget the count."""
        delete = self._house.tables.starts.delete()
        self._house.connection.run(lambda cursor: cursor.execute(delete, [self._id(task_id)]))

    def undo(self, task_id: str, count: int) -> None:
        """Take back the start that made this count."""
        undo = self._house.tables.starts.update(("count",)) + f" AND {self._house.tables.starts.are(('count',))}"
        self._house.connection.run(lambda cursor: cursor.execute(undo, [count - 1, self._id(task_id), count]))

    def read(self, task_id: str) -> int:
        """Return the count."""
        id_ = self._id(task_id)
        return self._house.connection.run(lambda cursor: self._find(cursor, id_, ""))[1]

    def _id(self, task_id: str) -> str:
        return row_id(self._house.namespace, task_id)

    def _find(self, cursor: Any, id_: str, for_update: str) -> tuple[bool, int, int]:
        """Return whether there is a row, its count, 0 once it is over, and the time."""
        cursor.execute(self._house.tables.starts.select(_COUNT) + for_update, [id_])
        row = cursor.fetchone()
        cursor.execute(f"SELECT {self._house.dialect.now_us}")
        now_us = int(cursor.fetchone()[0])
        return row is not None, 0 if row is None or row[1] <= now_us else int(row[0]), now_us
