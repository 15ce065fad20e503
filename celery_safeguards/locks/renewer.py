"""
Renewal where no worker's main process does it: for locks that plain code holds, and for eager tasks.

One thread of the process renews all its locks, each third of the shortest lease, in one round trip. A renewal that
finds the lock gone tells its owner at the next checkpoint; one that cannot be confirmed in time does, too:

    confirmed at t0 (when the renewal was *sent*)          held until t0 + lease by this process's monotonic clock

The thread does not survive a fork, and what it renewed is not the child's: whoever asks in another process gets a
renewer of its own.
"""

import logging
import os
import threading
import weakref
from dataclasses import dataclass, replace
from math import inf

from celery_safeguards.clock import Clock
from celery_safeguards.errors import LockLost, StoreUnavailable
from celery_safeguards.locks.store import HeldLock, LockStore

logger = logging.getLogger(__name__)
_IDLE_SECONDS = 30.0
_AGAIN_SECONDS = 1.0


@dataclass(slots=True)
class _Kept:
    held: HeldLock
    until: float
    confirmed: float
    lease_seconds: float
    """Of the lease that began at `confirmed`: the first one may be shorter than the lock's."""
    is_lost: bool = False

    @property
    def ends(self) -> float:
        """When its lease may be over, monotonic."""
        return self.confirmed + self.lease_seconds

    @property
    def due(self) -> float:
        """When to renew it next, monotonic."""
        return self.confirmed + self.lease_seconds / 3


class Renewer:
    """
    Renews the locks of one process.

    Args:
        store: of the locks.
        clock: for the leases.
        most_seconds: a lease counts for no longer here: for so long a store that was wiped waits for its owners, and
            one that renews later would find its lock given away.

    Safe when: used by any number of threads and greenlets.

    """

    def __init__(self, store: LockStore, clock: Clock, most_seconds: float = inf) -> None:
        self._store = store
        self._clock = clock
        self._most_seconds = most_seconds
        self._kept: dict[str, _Kept] = {}
        self._wake = threading.Event()
        self._sleeps_until = 0.0
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def keep(
        self, held: HeldLock, asked_at: float, max_hold_seconds: float, lease_seconds: float | None = None
    ) -> None:
        """
        Renew a lock from now on.

        Args:
            held: the lock.
            asked_at: monotonic time before it was asked for.
            max_hold_seconds: for how long; after that its lease runs out.
            lease_seconds: of its first lease, if that is not the lock's own.

        """
        first_seconds = min(self._most_seconds, held.ask.lease_seconds if lease_seconds is None else lease_seconds)
        self._kept[held.owner] = kept = _Kept(held, asked_at + max_hold_seconds, asked_at, first_seconds)
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="celery-safeguards-renewer", daemon=True)
                self._sleeps_until = 0.0
                self._thread.start()
        if kept.due < self._sleeps_until:
            self._wake.set()

    def forget(self, owner: str) -> bool:
        """Renew this owner's lock no more; returns whether a renewal has found it lost."""
        kept = self._kept.pop(owner, None)
        return kept is not None and kept.is_lost

    def check(self, owner: str) -> None:
        """
        Return if the lock still is this owner's, by what was confirmed last.

        Raises:
            LockLost: it was taken, or its lease may be over.

        """
        kept = self._kept.get(owner)
        if kept is None:
            raise LockLost("it was released, or is another process's")
        if kept.is_lost:
            raise LockLost(f"{kept.held.name}: another owner has it")
        if self._clock.monotonic_seconds() >= kept.ends:
            raise LockLost(f"{kept.held.name}: its lease is over, and could not be renewed")

    def tick(self) -> None:
        """Renew once."""
        sent = self._clock.monotonic_seconds()
        kept = [each for each in tuple(self._kept.values()) if sent < each.until and not each.is_lost]
        if not kept:
            return
        # After its lease another may have had it: then it must not be written back into a store that was wiped since.
        held = [each.held if sent < each.ends else replace(each.held, fence=0) for each in kept]
        for each, is_renewed in zip(kept, self._store.renew(held), strict=True):
            if is_renewed:
                each.confirmed, each.lease_seconds = sent, min(each.held.ask.lease_seconds, self._most_seconds)
            else:
                each.is_lost = True

    def _run(self) -> None:
        again_at = 0.0
        while self._go_on():
            now = self._clock.monotonic_seconds()
            # Whatever is kept from here on wakes the thread: it may have come too late to be looked at below.
            self._sleeps_until = inf
            kept = [each.due for each in tuple(self._kept.values()) if now < each.until and not each.is_lost]
            self._sleeps_until = max(min(kept, default=now + _IDLE_SECONDS), again_at)
            if now < self._sleeps_until:
                # A lock that comes while it sleeps is due later, mostly: only a shorter lease wakes the thread.
                self._wake.wait(self._sleeps_until - now)
                self._wake.clear()
                continue
            try:
                self.tick()
            except StoreUnavailable as error:
                logger.warning("locks could not be renewed: %s", error)
                again_at = now + _AGAIN_SECONDS
            except Exception:
                # The thread must outlive what it cannot foresee: without it every lock of this process lapses.
                logger.exception("renewal of locks failed")
                again_at = now + _AGAIN_SECONDS

    def _go_on(self) -> bool:
        """Whether there is anything to renew, or was a moment ago; else the thread ends."""
        with self._starting:
            if self._kept or self._clock.monotonic_seconds() < self._sleeps_until:
                return True
            self._thread = None
            return False


_RENEWERS: "weakref.WeakKeyDictionary[LockStore, dict[int, Renewer]]" = weakref.WeakKeyDictionary()


def renewer_of(store: LockStore, clock: Clock, most_seconds: float) -> Renewer:
    """Return this process's renewer of a store; `most_seconds` as for `Renewer`."""
    # By `setdefault`, not by a lock, which a fork could copy while it is held: of two threads that come first, both
    # must get the same one.
    by_pid = _RENEWERS.get(store)
    if by_pid is None:
        by_pid = _RENEWERS.setdefault(store, {})
    found = by_pid.get(os.getpid())
    return found if found is not None else by_pid.setdefault(os.getpid(), Renewer(store, clock, most_seconds))
