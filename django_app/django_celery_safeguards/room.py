"""
One step's view of records and locks: rows that it has read stay as they are until its transaction ends.

Writes are kept back until the step is over, so that many of one kind are sent at once. A row that was not there is
inserted, and where another step was faster the database refuses it: then this step begins anew (`connection.py`).
"""

from collections.abc import Sequence
from typing import Any

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.rules import AS_IT_STANDS
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger.record import Record
from celery_safeguards.locks.rules import Place
from celery_safeguards.locks.store import LockState
from django_celery_safeguards import rows
from django_celery_safeguards.house import House
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import parameters, row_id, shown
from django_celery_safeguards.waking import Word

_MANY = 500
_FORGOTTEN_US = 10_000_000
_HEARD = rows.PLACE.index("heard_us")
"""Who was not heard for so long has lost its place, and its row with it."""


class OrmRoom:
    """What one step sees and changes; see `admission.rules.Room`."""

    def __init__(self, house: House, cursor: Any, view: StoreView) -> None:
        self.view = view
        self.words: list[Word] = []
        self._house = house
        self._cursor = cursor
        self._records: dict[str, Record | None] = {}
        self._locks: dict[str, LockState | None] = {}
        self._freed: dict[str, tuple[str, int]] = {}
        self._lines: dict[str, dict[str, Place]] = {}
        self._known: set[str] = set()
        self._puts: dict[str, tuple[RecordKey, Record, int]] = {}
        self._lock_puts: dict[str, LockState] = {}
        self._stands_in_line: set[str] = set()

    def expect(self, keys: Sequence[RecordKey], locks: Sequence[str]) -> None:
        """See `Room.expect`."""
        house = self._house
        # In the order of their ids, also on the server: two steps that need the same rows wait, and do not deadlock.
        for ids, read in (
            (sorted({rows.record_id(house.namespace, key) for key in keys}), self._read_records),
            (sorted({rows.lock_id(house.namespace, name) for name in locks}), self._read_locks),
        ):
            for first in range(0, len(ids), _MANY):
                read(ids[first : first + _MANY])

    def record(self, key: RecordKey) -> Record | None:
        """See `Room.record`."""
        id_ = rows.record_id(self._house.namespace, key)
        if id_ not in self._records:
            self._read_records([id_])
        return self._records[id_]

    def put(self, key: RecordKey, record: Record, expires_us: int) -> None:
        """See `Room.put`."""
        id_ = rows.record_id(self._house.namespace, key)
        if expires_us == AS_IT_STANDS and id_ in self._puts:
            expires_us = self._puts[id_][2]
        self._puts[id_] = (key, record, expires_us)
        self._records[id_] = record

    def lock(self, name: str) -> LockState | None:
        """See `LockRoom.lock`."""
        id_ = rows.lock_id(self._house.namespace, name)
        if id_ not in self._locks:
            self._read_locks([id_])
        return self._locks[id_]

    def put_lock(self, state: LockState) -> None:
        """See `LockRoom.put_lock`."""
        id_ = rows.lock_id(self._house.namespace, state.name)
        self._locks[id_] = self._lock_puts[id_] = state

    def freed(self, name: str) -> tuple[str, int] | None:
        """See `LockRoom.freed`."""
        self.lock(name)
        return self._freed.get(rows.lock_id(self._house.namespace, name))

    def note_freed(self, name: str, owner: str, fence: int) -> None:
        """See `LockRoom.note_freed`."""
        self._freed[rows.lock_id(self._house.namespace, name)] = (owner, fence)

    def line(self, name: str) -> Sequence[Place]:
        """See `LockRoom.line`."""
        return list(self._line(rows.lock_id(self._house.namespace, name)).values())

    def put_place(self, name: str, place: Place) -> None:
        """See `LockRoom.put_place`."""
        house, waiters = self._house, self._house.tables.waiters
        lock_id, id_ = rows.lock_id(house.namespace, name), row_id(house.namespace, name, place.owner)
        if place.owner in self._line(lock_id):
            self._cursor.execute(waiters.update(rows.PLACE), [*rows.place_row(place), id_])
        else:
            insert = waiters.insert(("id", "namespace", "lock_id", *rows.PLACE))
            self._cursor.execute(insert, [id_, house.namespace, lock_id, *rows.place_row(place)])
        self._line(lock_id)[place.owner] = place
        self._stands_in_line.add(lock_id)

    def drop_place(self, name: str, owner: str) -> None:
        """See `LockRoom.drop_place`."""
        house = self._house
        self._cursor.execute(house.tables.waiters.delete(), [row_id(house.namespace, name, owner)])
        self._lines.get(rows.lock_id(house.namespace, name), {}).pop(owner, None)

    def wake(self, name: str, owner: str, fence: int) -> None:
        """See `LockRoom.wake`."""
        self.words.append(Word(name, owner, fence))

    def finish(self) -> None:
        """Write what was put; the last thing before the commit."""
        self._write_records()
        self._write_locks()

    def _read_records(self, ids: Sequence[str]) -> None:
        table = self._house.tables.records
        columns = ("id", *rows.HEAD, "body", "expires_us")
        for id_, *row, expires_us in self._select(table, columns, ids):
            self._known.add(id_)
            is_over = bool(expires_us) and expires_us <= self.view.now_us
            self._records[id_] = None if is_over else rows.record_of(row)
        for id_ in ids:
            self._records.setdefault(id_, None)

    def _read_locks(self, ids: Sequence[str]) -> None:
        columns = ("id", *rows.FREED, *rows.LOCK)
        for id_, freed_owner, freed_fence, *row in self._select(self._house.tables.locks, columns, ids):
            self._known.add(id_)
            self._locks[id_] = rows.lock_of(row)
            self._freed[id_] = (freed_owner, freed_fence)
        for id_ in ids:
            self._locks.setdefault(id_, None)

    def _select(self, table: Any, columns: Sequence[str], ids: Sequence[str]) -> list[Any]:
        where = f"{table.list(['id'])} IN ({parameters(len(ids))}) ORDER BY {table.list(['id'])}"
        select = f"SELECT {table.list(columns)} FROM {table.name} WHERE {where}"
        self._cursor.execute(select + self._house.dialect.for_update, list(ids))
        return list(self._cursor.fetchall())

    def _line(self, lock_id: str) -> dict[str, Place]:
        if lock_id not in self._lines:
            table, heard_us = self._house.tables.waiters, self.view.now_us - _FORGOTTEN_US
            self._cursor.execute(table.select(rows.PLACE, by=("lock_id",)), [lock_id])
            found = self._cursor.fetchall()
            # A damaged one of somebody who has left would else bar the lock for ever.
            places = [rows.place_of(row) for row in found if row[_HEARD] >= heard_us]
            self._lines[lock_id] = {place.owner: place for place in places}
            if len(found) > len(places):
                forget = f"{table.delete(by=('lock_id',))} AND {table.list(['heard_us'])} < %s"
                self._cursor.execute(forget, [lock_id, heard_us])
        return self._lines[lock_id]

    def _write_records(self) -> None:
        house, table = self._house, self._house.tables.records
        inserts, updates, renewals = [], [], []
        for id_, (key, record, expires_us) in sorted(self._puts.items()):
            row = rows.record_row(record)
            if id_ not in self._known:
                inserts.append([*rows.record_names(house.namespace, key), *row, max(0, expires_us)])
            elif expires_us == AS_IT_STANDS:
                renewals.append([*row, id_])
            else:
                updates.append([*row, expires_us, id_])
        self._send(table.insert((*rows.RECORD_NAMES, *rows.RECORD, "expires_us")), inserts)
        self._send(table.update((*rows.RECORD, "expires_us")), updates)
        self._send(table.update(rows.RECORD), renewals)

    def _write_locks(self) -> None:
        house, table, now_us = self._house, self._house.tables.locks, self.view.now_us
        inserts, updates, marked = [], [], []
        for id_, state in sorted(self._lock_puts.items()):
            row = [*rows.lock_row(state), *self._freed.get(id_, ("", 0)), max(now_us, state.lease_until_us)]
            has_line = bool(self._lines.get(id_)) or id_ in self._stands_in_line
            if id_ not in self._known:
                names = [id_, house.namespace, shown(state.name, NAME_CHARS)]
                inserts.append([*names, *row, has_line])
            elif id_ in self._lines:
                marked.append([*row, has_line, id_])
            else:
                updates.append([*row, id_])
        columns = (*rows.LOCK, *rows.FREED, "used_us")
        self._send(table.insert(("id", "namespace", "name", *columns, "has_line")), inserts)
        self._send(table.update((*columns, "has_line")), marked)
        self._send(table.update(columns), updates)
        # A release that found no line looks no further: the mark is a write of the row that it must see.
        stands = [[True, id_] for id_ in sorted(self._stands_in_line - self._lock_puts.keys())]
        self._send(table.update(("has_line",)), stands)

    def _send(self, statement: str, many: list[list[Any]]) -> None:
        if len(many) == 1:
            self._cursor.execute(statement, many[0])
        elif many:
            self._cursor.executemany(statement, many)
