"""Locks in the project's database: the rules that all stores share, on rows; how who waits is woken is in `waking`."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from celery_safeguards._store_view import StoreView
from celery_safeguards.clock import to_us
from celery_safeguards.locks.rules import LockRoom, LockRules
from celery_safeguards.locks.store import Grant, HeldLock, LockAsk, LockState
from django_celery_safeguards import rows, waking
from django_celery_safeguards.house import House
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import shown

T = TypeVar("T")
_DAY_US = 86_400_000_000
_NAMES_A_TRIP = 1_000


class OrmLockStore(LockRules):
    """
    Locks in rows.

    Safe when: shared by threads; created before a fork and used after it; the user's transaction rolls back or is
    aborted. Who waits needs the thread's own connection for the time of waiting, and nothing of the database.

    Args:
        house: of the rows.
        step: carries out a step; the store of records lends it, since a claim and a lock are taken together.

    """

    def __init__(self, house: House, step: Callable[..., Any]) -> None:
        self.house = house
        self._step = step

    def step(self, act: Callable[[LockRoom], T]) -> T:
        """See `LockRules.step`."""
        result: T = self._step(act)
        return result

    def acquire(self, ask: LockAsk, *, reserve: bool = False, wait: bool = False, has_waited: bool = False) -> Grant:
        """See `LockStore.acquire`."""
        listens = wait and waking.can_listen(self.house.connection)
        if listens:
            waking.listen(self.house, ask.owner)
        grant = super().acquire(ask, reserve=reserve, wait=wait, has_waited=has_waited)
        if (listens or has_waited) and not grant.barred_until_us:
            self._stop_listening(ask)
        return grant

    def wait(self, ask: LockAsk, seconds: float) -> int:
        """See `LockStore.wait`."""
        seconds = min(seconds, 1.0)
        if not waking.can_listen(self.house.connection):
            return waking.wait_by_looking(self.house, ask, seconds)
        fence = waking.wait_for_word(self.house, ask, seconds)
        if fence:
            self._stop_listening(ask)
        return fence

    def leave(self, ask: LockAsk) -> None:
        """See `LockStore.leave`."""
        super().leave(ask)
        self._stop_listening(ask)

    def release(self, held: HeldLock) -> None:
        """See `LockStore.release`."""
        if not self.house.connection.run(lambda cursor: free_plainly(self.house, cursor, held)):
            super().release(held)

    def read(self, name: str) -> tuple[LockState, int]:
        """See `LockStore.read`."""
        house = self.house
        select = house.tables.locks.select(rows.LOCK)

        def act(cursor: Any) -> tuple[LockState, int]:
            cursor.execute(select, [rows.lock_id(house.namespace, name)])
            row = cursor.fetchone()
            cursor.execute(f"SELECT {house.dialect.now_us}")
            state = LockState(name=name) if row is None else rows.lock_of(row)
            return state, int(cursor.fetchone()[0])

        return house.connection.run(act)

    def names(self) -> Iterator[str]:
        """See `LockStore.names`."""
        house, table = self.house, self.house.tables.locks
        select = (
            f"SELECT {table.list(('id', 'body', 'name'))} FROM {table.name} WHERE {table.are(['namespace'])} "
            f"AND {table.list(['used_us'])} > {house.dialect.now_us} - {_DAY_US} AND {table.list(['id'])} > %s "
            f"ORDER BY {table.list(['id'])} LIMIT {_NAMES_A_TRIP}"
        )

        def page(after: str) -> list[Any]:
            def act(cursor: Any) -> list[Any]:
                cursor.execute(select, [house.namespace, after])
                return list(cursor.fetchall())

            return house.connection.run(act)

        after = ""
        while found := page(after):
            after = found[-1][0]
            yield from (rows.lock_name(body, name) for _, body, name in found)

    def _stop_listening(self, ask: LockAsk) -> None:
        if waking.can_listen(self.house.connection):
            waking.stop_listening(self.house, ask.owner)


def take_plainly(house: House, cursor: Any, ask: LockAsk, view: StoreView) -> HeldLock | None:
    """
    Take a lock that nobody holds, has kept for them or waits for, in one statement; None: it is not as plain as that.

    Within a transaction that has found the store to admit.
    """
    locks, lease_us = house.tables.locks, to_us(ask.lease_seconds)
    until_us = view.now_us + lease_us
    new = LockState(
        name=ask.name,
        owner=ask.owner,
        fence=view.now_us,
        lease_until_us=until_us,
        since_us=view.now_us,
        holder=dict(ask.holder),
    )
    columns = ("id", "namespace", "name", *rows.LOCK, *rows.FREED, "used_us", "has_line")
    names = [rows.lock_id(house.namespace, ask.name), house.namespace, shown(ask.name, NAME_CHARS)]
    fence, mine = f"{locks.name}.{locks.list(['fence'])}", f"excluded.{locks.list(['fence'])}"
    replaced = [locks.list([name]) for name in (*rows.LOCK, "used_us") if name != "fence"]
    sets = ", ".join(f"{column} = excluded.{column}" for column in replaced)
    free = " AND ".join(f"{locks.name}.{locks.list([name])} = %s" for name in ("owner", "reserved_for", "has_line"))
    cursor.execute(
        f"{locks.insert(columns)} ON CONFLICT ({locks.list(['id'])}) DO UPDATE SET {sets}, "
        f"{locks.list(['fence'])} = CASE WHEN {fence} >= {mine} THEN {fence} + 1 ELSE {mine} END "
        f"WHERE {free} RETURNING {locks.list(['fence'])}",
        [*names, *rows.lock_row(new), "", 0, until_us, False, "", "", False],
    )
    row = cursor.fetchone()
    return None if row is None else HeldLock(ask=ask, fence=row[0], epoch=view.epoch)


def free_plainly(house: House, cursor: Any, held: HeldLock) -> bool:
    """Free a lock that is this owner's at this fence and that nobody waits for, in one statement; False: it is not."""
    locks = house.tables.locks
    freed = ("owner", "lease_until_us", "reserved_for", "reserved_until_us", *rows.FREED)
    cursor.execute(
        locks.update(freed, by=("id", "owner", "fence", "has_line")),
        ["", 0, "", 0, held.owner, held.fence, rows.lock_id(house.namespace, held.name), held.owner, held.fence, False],
    )
    return bool(cursor.rowcount)
