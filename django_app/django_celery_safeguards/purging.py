"""
Deleting what nobody can find any more: nothing expires by itself in a database.

Letters and groups that are over are removed by `celery_safeguards.replay.purging`, as in every store.
"""

from typing import Any

from django_celery_safeguards.house import House
from django_celery_safeguards.sql import Table, parameters

_DAY_US = 86_400_000_000
_MINUTE_US = 60_000_000


def purge(house: House, batch: int) -> int:
    """Delete in batches, each a transaction of its own, so that no claim waits for long; return how many rows."""
    tables = house.tables
    return sum(
        _purge_table(house, table, column, age_us, batch)
        for table, column, age_us in (
            (tables.records, "expires_us", 0),
            (tables.starts, "expires_us", 0),
            # The last fence must outlive its lock for a while: it is never given again.
            (tables.locks, "used_us", _DAY_US),
            (tables.waiters, "heard_us", _MINUTE_US),
        )
    )


def _purge_table(house: House, table: Table, column: str, age_us: int, batch: int) -> int:
    condition = (
        f"{table.are(['namespace'])} AND {table.list([column])} > 0 "
        f"AND {table.list([column])} <= {house.dialect.now_us} - {age_us}"
    )
    select = f"SELECT {table.list(['id'])} FROM {table.name} WHERE {condition} LIMIT {int(batch)}"

    def some(cursor: Any) -> tuple[int, int]:
        cursor.execute(select, [house.namespace])
        ids = sorted(row[0] for row in cursor.fetchall())
        if not ids:
            return 0, 0
        # Asked again: a row that was found over may have been begun anew since.
        delete = f"DELETE FROM {table.name} WHERE {table.list(['id'])} IN ({parameters(len(ids))}) AND {condition}"
        cursor.execute(delete, [*ids, house.namespace])
        return len(ids), cursor.rowcount

    deleted, is_more = 0, True
    while is_more:
        found, gone = house.connection.transact(some)
        deleted, is_more = deleted + gone, found == batch and gone > 0
    return deleted
