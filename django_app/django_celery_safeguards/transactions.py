"""
The transaction of an atomic body, on the project's own connection: the one that the body works with.

On PostgreSQL the try-lock is an advisory lock that ends with the transaction, whatever ends that. SQLite has one
writer: there the lock is that of the whole database, taken by a write that changes nothing.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.db.utils import DatabaseError, Error, InterfaceError, OperationalError

from celery_safeguards.admission.atomic import Seen
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.errors import ConfigurationError, SafeguardsError, StoreUnavailable
from celery_safeguards.ledger.record import Record
from django_celery_safeguards import rows
from django_celery_safeguards.after_task import OF_A_BODY, TransactionLeftOpen
from django_celery_safeguards.house import House
from django_celery_safeguards.sql import Dialect, set_up_clock

_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_NO_COMMIT = """\
Idempotent(atomic={alias!r}): autocommit is off there, and Django's block a savepoint, whose end is no COMMIT"""
_FOUND = (*rows.HEAD, "body", "expires_us")


class OrmTransaction:
    """
    One transaction on this thread's connection of the project; see `admission.atomic.Transaction`.

    Args:
        house: of the records.
        may_join: whether it may be part of a transaction that is open.

    """

    def __init__(self, house: House, *, may_join: bool) -> None:
        self._house = house
        self._alias = house.connection.alias
        self._may_join = may_join
        self._atomic: Any = None
        self._stored_rev: int | None = None
        """Of the row that was seen, also where its retention is over; None: there was none."""
        self._kept: list[tuple[Callable[[], None], str]] = []
        self.is_joined = False

    @property
    def is_open(self) -> bool:
        """See `Transaction.is_open`."""
        return self._atomic is not None

    def begin(self, key: RecordKey) -> Seen | None:
        """See `Transaction.begin`."""
        self.is_joined = self._connection.in_atomic_block
        if self.is_joined and not self._may_join:
            raise SafeguardsError(f"database {self._alias!r} is in a transaction that an earlier task has left open")
        for is_last in (False, True):
            try:
                return self._begin(key)
            except (DatabaseError, InterfaceError) as error:
                self.roll_back()
                if _is_locked(error):
                    return None
                is_lost = isinstance(error, OperationalError | InterfaceError) and not self.is_joined
                if is_last or not is_lost:
                    raise StoreUnavailable(f"database {self._alias!r}: {str(error).strip()}") from error
            except BaseException:
                self.roll_back()
                raise
        raise AssertionError("the second try returns or raises")

    def keep(self, message: str) -> None:
        """See `Transaction.keep`."""

        def marks_its_savepoint() -> None:
            """Do nothing: Django forgets it with the savepoint that it was registered in."""

        transaction.on_commit(marks_its_savepoint, using=self._alias)
        self._kept.append((marks_its_savepoint, message))

    def kept(self) -> tuple[str, ...]:
        """See `Transaction.kept`."""
        remembered = {id(each[1]) for each in self._connection.run_on_commit}
        return tuple(message for mark, message in self._kept if id(mark) in remembered)

    def write(self, key: RecordKey, record: Record, expires_us: int) -> bool:
        """See `Transaction.write`."""
        if self._connection.atomic_blocks[-1:] != [self._atomic]:
            raise TransactionLeftOpen(f"the body has left database {self._alias!r} in an atomic block")
        table, namespace = self._house.tables.records, self._house.namespace
        row = [*rows.record_row(record), expires_us]
        columns = (*rows.RECORD, "expires_us")
        with self._connection.cursor() as cursor:
            if self._stored_rev is None:
                insert = table.insert((*rows.RECORD_NAMES, *columns))
                cursor.execute(f"{insert} ON CONFLICT DO NOTHING", [*rows.record_names(namespace, key), *row])
            else:
                update = table.update(columns, by=("id", "rev"))
                cursor.execute(update, [*row, rows.record_id(namespace, key), self._stored_rev])
            return bool(cursor.rowcount == 1)

    def commit(self) -> None:
        """See `Transaction.commit`."""
        marks = {id(mark) for mark, _ in self._kept}
        self._connection.run_on_commit = [each for each in self._connection.run_on_commit if id(each[1]) not in marks]
        atomic, self._atomic = self._atomic, None
        try:
            atomic.__exit__(None, None, None)
        except BaseException:
            # From the COMMIT, in whatever state, or from a hook after it: a connection that is opened anew is in none.
            self._close()
            raise

    def roll_back(self) -> None:
        """See `Transaction.roll_back`."""
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return
        try:
            for left in self._left_inside(atomic):
                left.__exit__(_RolledBack, _RolledBack(), None)
            atomic.__exit__(_RolledBack, _RolledBack(), None)
        except Error:
            # Its server is gone: it has rolled back by itself.
            self._close()
        except BaseException:
            # A time limit's exception, in the midst of it.
            self._close()
            raise

    def when_durable(self, act: Callable[[], None]) -> None:
        """See `Transaction.when_durable`."""
        transaction.on_commit(act, using=self._alias)

    @property
    def _connection(self) -> Any:
        return connections[self._alias]

    def _begin(self, key: RecordKey) -> Seen | None:
        if not (self.is_joined or self._connection.get_autocommit()):
            raise ConfigurationError(_NO_COMMIT.format(alias=self._alias))
        atomic = transaction.atomic(using=self._alias)
        setattr(atomic, OF_A_BODY, True)
        atomic.__enter__()
        self._atomic = atomic
        with self._connection.cursor() as cursor:
            found = claimed(self._house, cursor, key)
        if found is None:
            self.roll_back()
            return None
        seen, self._stored_rev = found
        return seen

    def _left_inside(self, atomic: Any) -> list[Any]:
        """Return the blocks that the body has entered and not left, the last one first."""
        blocks = self._connection.atomic_blocks
        return blocks[: blocks.index(atomic) : -1] if atomic in blocks else []

    def _close(self) -> None:
        """Close a connection in a state that nobody knows; one that was joined is its caller's."""
        if self.is_joined:
            return
        wrapper = self._connection
        with contextlib.suppress(Error):
            wrapper.close()
        if wrapper.in_atomic_block:
            # Django's exit was interrupted before it had begun: to this wrapper the block would be open for ever.
            del connections[self._alias]


class _RolledBack(Exception):
    """What Django's own block is told when ours ends without a COMMIT."""


def claimed(house: House, cursor: Any, key: RecordKey) -> tuple[Seen, int | None] | None:
    """
    Lock a key until the transaction ends, and return its record with the revision of its row; None: it is locked.

    One statement where the database can: the snapshot may be from just before another transaction's end, and then the
    record's write finds out.
    """
    table, id_ = house.tables.records, rows.record_id(house.namespace, key)
    if house.dialect.vendor == "sqlite":
        set_up_clock(cursor.db.connection)
        cursor.execute(f"{table.update(['rev'])} AND 0", [0, id_])
        is_ours, lock = "1", []
    else:
        is_ours, lock = "pg_try_advisory_xact_lock(%s)", [_lock_number(id_)]
    cursor.execute(
        f"SELECT {is_ours}, {house.dialect.now_us}, {table.list(_FOUND)} "
        f"FROM (SELECT 1) AS sg_one LEFT JOIN {table.name} ON {table.list(['id'])} = %s",
        [*lock, id_],
    )
    is_locked, now_us, *found, expires_us = cursor.fetchone()
    if not is_locked:
        return None
    if found[0] is None:
        return Seen(None, int(now_us)), None
    is_over = bool(expires_us) and expires_us <= now_us
    record = rows.record_of(found)
    return Seen(None if is_over else record, int(now_us)), record.rev


def check_fits(dialect: Dialect, alias: str) -> None:
    """Raise `ConfigurationError` where a database has no try-lock for the length of a transaction, or none commits."""
    if not connections.settings[alias]["AUTOCOMMIT"]:
        raise ConfigurationError(_NO_COMMIT.format(alias=alias))
    if dialect.vendor not in {"postgresql", "sqlite"}:
        raise ConfigurationError(f"Idempotent(atomic={alias!r}): needs PostgreSQL, or SQLite in development")


def _lock_number(id_: str) -> int:
    """Return the number of a key's advisory lock; two keys that share one put each other off, no more."""
    return int.from_bytes(hashlib.sha256(f"celery_safeguards:{id_}".encode()).digest()[:8], "big", signed=True)


def _is_locked(error: Exception) -> bool:
    code = getattr(error.__cause__, "sqlite_errorcode", None)
    return isinstance(code, int) and (code & 0xFF) in _LOCKED
