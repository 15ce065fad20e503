"""
How who waits for a lock is woken.

PostgreSQL tells it: the waiting thread's own connection listens to a channel of its own (LISTEN), and the step that
gives the lock away notifies it as it commits. Behind a pooler that hands connections out by transaction nobody can
listen: give the safeguards a database entry that goes past it. Other databases have no such thing: there the lock is
looked at every 20 ms, which is meant for development.
"""

import hashlib
from contextlib import suppress
from typing import Any, NamedTuple

from celery_safeguards.clock import SystemClock
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.locks.store import LockAsk
from django_celery_safeguards import rows
from django_celery_safeguards.connection import OwnConnection
from django_celery_safeguards.house import House

_POLL_SECONDS = 0.02


class Word(NamedTuple):
    """What an owner is told: the fence of the lock that it was given; 0: it is kept for it."""

    name: str
    owner: str
    fence: int


def channel(namespace: str, owner: str) -> str:
    """Return the name of the channel that wakes an owner; names in PostgreSQL have 63 bytes at most."""
    return f"sg_{hashlib.sha256(f'{namespace}:{owner}'.encode('utf-8', 'replace')).hexdigest()[:40]}"


def can_listen(connection: OwnConnection) -> bool:
    """Whether this database wakes by itself, and its driver can wait for it: psycopg 3 can."""
    return connection.dialect.vendor == "postgresql" and hasattr(connection.raw(), "notifies")


def listen(house: House, owner: str) -> None:
    """Listen from here on; before the question that puts the owner in line, or a word may be missed."""
    house.connection.run(lambda cursor: cursor.execute(f"LISTEN {channel(house.namespace, owner)}"))


def stop_listening(house: House, owner: str) -> None:
    """Listen no more; a connection that is gone does not listen anyway."""
    with suppress(StoreUnavailable):
        house.connection.run(lambda cursor: cursor.execute(f"UNLISTEN {channel(house.namespace, owner)}"))


def send(house: House, cursor: Any, words: list[Word]) -> None:
    """Tell owners with the commit of this transaction."""
    for word in words:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel(house.namespace, word.owner), str(word.fence)])


def wait_for_word(house: House, ask: LockAsk, seconds: float) -> int:
    """Return the fence of the lock once it was given, or 0: kept, or nothing within `seconds`."""
    mine, ends = channel(house.namespace, ask.owner), SystemClock.monotonic_seconds() + seconds
    while True:
        try:
            with house.connection.guarded() as raw:
                left_seconds = max(0.0, ends - SystemClock.monotonic_seconds())
                for word in raw.notifies(timeout=left_seconds, stop_after=1):
                    if word.channel == mine:
                        return int(word.payload)
        except StoreUnavailable:
            # Who has lost its connection has heard nothing meanwhile, and asks again; if the database is there.
            house.connection.raw()
            return 0
        if SystemClock.monotonic_seconds() >= ends:
            return 0


def wait_by_looking(house: House, ask: LockAsk, seconds: float) -> int:
    """Return as `wait_for_word` does; see the module."""
    ends, table = SystemClock.monotonic_seconds() + seconds, house.tables.locks
    select = table.select(("owner", "fence", "reserved_for"))
    id_ = rows.lock_id(house.namespace, ask.name)
    while True:
        row = house.connection.run(lambda cursor: _one(cursor, select, id_))
        if row is not None and row[0] == ask.owner:
            return int(row[1])
        left_seconds = ends - SystemClock.monotonic_seconds()
        if left_seconds <= 0 or (row is not None and not row[0] and row[2] == ask.owner):
            return 0
        SystemClock.sleep(min(_POLL_SECONDS, left_seconds))


def _one(cursor: Any, select: str, id_: str) -> Any:
    cursor.execute(select, [id_])
    return cursor.fetchone()
