"""
Locks in memory: for tests and for one process without a server.

It passes the conformance suite of the Redis store. Its clock, mutex and view of the store are those of the records, so
that a claim and a lock are taken together.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from celery_safeguards._store_view import StoreView
from celery_safeguards.locks.rules import LockRoom, LockRules, Place
from celery_safeguards.locks.store import LockAsk, LockState

T = TypeVar("T")


class House(Protocol):
    """Where the locks live: one mutex and one clock for them and for the records."""

    mutex: threading.RLock

    def look(self) -> StoreView:
        """Return the store's own state, and count the caller as heard."""
        ...


class MemoryLockRoom:
    """What a step sees of the locks in memory; open while the mutex is held."""

    def __init__(self, locks: "MemoryLockStore", view: StoreView) -> None:
        self.view = view
        self._locks = locks

    def lock(self, name: str) -> LockState | None:
        """See `LockRoom.lock`."""
        return self._locks.states.get(name)

    def put_lock(self, state: LockState) -> None:
        """See `LockRoom.put_lock`."""
        self._locks.states[state.name] = state

    def freed(self, name: str) -> tuple[str, int] | None:
        """See `LockRoom.freed`."""
        return self._locks.freed.get(name)

    def note_freed(self, name: str, owner: str, fence: int) -> None:
        """See `LockRoom.note_freed`."""
        self._locks.freed[name] = (owner, fence)

    def line(self, name: str) -> Sequence[Place]:
        """See `LockRoom.line`."""
        return list(self._locks.lines.get(name, {}).values())

    def put_place(self, name: str, place: Place) -> None:
        """See `LockRoom.put_place`."""
        self._locks.lines.setdefault(name, {})[place.owner] = place

    def drop_place(self, name: str, owner: str) -> None:
        """See `LockRoom.drop_place`."""
        self._locks.lines.get(name, {}).pop(owner, None)
        self._locks.told.pop((name, owner), None)

    def wake(self, name: str, owner: str, fence: int) -> None:
        """See `LockRoom.wake`."""
        self._locks.told[name, owner] = fence
        self._locks.woken.notify_all()


class MemoryLockStore(LockRules):
    """
    Locks in a dictionary.

    Safe when: shared by threads of one process.

    Attributes:
        states: the locks by name.
        freed: who freed each lock last.
        lines: who waits, by name and owner.
        told: the words that wake, by name and owner; nobody has read them yet.

    """

    def __init__(self, house: House) -> None:
        self._house = house
        self.woken = threading.Condition(house.mutex)
        self.wipe()

    def wipe(self) -> None:
        """Lose everything."""
        self.states: dict[str, LockState] = {}
        self.freed: dict[str, tuple[str, int]] = {}
        self.lines: dict[str, dict[str, Place]] = {}
        self.told: dict[tuple[str, str], int] = {}

    def step(self, act: Callable[[LockRoom], T]) -> T:
        """See `LockRules.step`."""
        with self._mutex():
            return act(MemoryLockRoom(self, self._house.look()))

    def wait(self, ask: LockAsk, seconds: float) -> int:
        """See `LockStore.wait`."""
        with self._mutex():
            self.woken.wait_for(lambda: (ask.name, ask.owner) in self.told, min(seconds, 1.0))
            return self.told.pop((ask.name, ask.owner), 0)

    def names(self) -> Iterator[str]:
        """See `LockStore.names`."""
        with self._mutex():
            return iter(list(self.states))

    def _mutex(self) -> AbstractContextManager[object]:
        return self._house.mutex
