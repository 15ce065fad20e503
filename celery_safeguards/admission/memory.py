"""
Admission in memory: for tests and for one process without a server.

It passes the conformance suite of the Redis store, so a test against it tells what Redis would do. Its clock is
injected; `wipe` does what a lost server does.
"""

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from celery_safeguards._store_view import StoreState, StoreView, begun
from celery_safeguards.admission.rules import AS_IT_STANDS, AdmissionRules, Room
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.clock import to_us
from celery_safeguards.ledger.record import Record
from celery_safeguards.locks.memory import MemoryLockRoom, MemoryLockStore

T = TypeVar("T")


class _Room(MemoryLockRoom):
    """What a step sees of records and locks in memory."""

    def __init__(self, store: "MemoryAdmissionStore", view: StoreView) -> None:
        super().__init__(store.locks, view)
        self._store = store

    def expect(self, keys: Sequence[RecordKey], locks: Sequence[str]) -> None:
        """Nothing is read for less."""

    def record(self, key: RecordKey) -> Record | None:
        """See `Room.record`."""
        return self._store.find(key, self.view.now_us)

    def put(self, key: RecordKey, record: Record, expires_us: int) -> None:
        """See `Room.put`."""
        self._store.put(key, record, expires_us)


class MemoryAdmissionStore(AdmissionRules):
    """
    Records in a dictionary.

    Safe when: shared by threads of one process.

    Args:
        lease_seconds: how long a claim holds without renewal.
        now_seconds: the store's clock.

    """

    def __init__(self, lease_seconds: float, now_seconds: Callable[[], float]) -> None:
        super().__init__(lease_seconds)
        self._now_seconds = now_seconds
        self.mutex = threading.RLock()
        self.locks = MemoryLockStore(self)
        self.wipe()

    def wipe(self) -> None:
        """Lose everything, as a server without persistence does."""
        with self.mutex:
            self._records: dict[RecordKey, Record] = {}
            self._expires_us: dict[RecordKey, int] = {}
            self._state: StoreState | None = None
            self.locks.wipe()

    def step(self, act: Callable[[Room], T], *, heard: bool = True) -> T:
        """See `AdmissionRules.step`."""
        with self.mutex:
            return act(_Room(self, self.look(heard=heard)))

    def view(self) -> StoreView:
        """Return the store's time, epoch and pauses."""
        with self.mutex:
            return self.look(heard=False)

    def declare_new(self) -> None:
        """Lift the pause that follows a new epoch."""
        with self.mutex:
            now_us = self.look(heard=False).now_us
            self._state = self._state and self._state.declared_new(now_us)

    def look(self, *, heard: bool = True) -> StoreView:
        """Return the store's own state."""
        now_us = to_us(self._now_seconds())
        if self._state is None:
            self._state = begun(uuid.uuid4().hex, now_us, self._lease_us)
        elif heard:
            self._state = self._state.heard(now_us, self._lease_us)
        return self._state.view(now_us)

    def find(self, key: RecordKey, now_us: int) -> Record | None:
        """Return a record, unless its retention is over."""
        if self._expires_us.get(key, 0) and now_us >= self._expires_us[key]:
            del self._records[key], self._expires_us[key]
        return self._records.get(key)

    def put(self, key: RecordKey, record: Record, expires_us: int) -> None:
        """Write a record."""
        self._records[key] = record
        if expires_us != AS_IT_STANDS:
            self._expires_us[key] = expires_us
