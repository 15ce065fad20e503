"""
The port of locks: what a store of locks must be able to do, and what it promises under races.

A lock is named by its entity and held by one *acquisition* at a time. The owner is a token that one acquisition alone
has; nothing is kept by thread or by process, so that whoever has no token can neither release nor renew:

    t0 A takes it, fence 7   t1 A is frozen   t2 A's lease ends   t3 B takes it, fence 8
    t4 A wakes: its release, its renewal and what it writes under fence 7 are refused; B holds it still

The fence is max(last + 1, server time in microseconds): it never goes back, not even after the store was wiped. Times
are the store's own. Nothing is held without a lease.

Who waits is woken: a release gives the lock to whoever has waited longest and was heard lately, with a lease of two
seconds, and tells them. Who must take it together with a claim has it only kept for so long. Who waits for an owner
that died is woken by the end of its lease.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from celery_safeguards.errors import LockLost, StoreUnavailable
from celery_safeguards.printable import clean

GIVEN_SECONDS = 2.0
"""The lease of a lock that is given to who waits, and for how long one is kept: who died waiting bars no longer."""


class LockUnreadable(StoreUnavailable):
    """Raised when a stored lock is damaged: nobody knows who has it, and whoever asks for it is put off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockAsk:
    """
    One acquisition.

    Attributes:
        name: of the lock.
        owner: token of this acquisition; another one for the next.
        lease_seconds: how long the lock is held without renewal.
        holder: who asks, for people: task, task id, host, pid.

    """

    name: str
    owner: str
    lease_seconds: float
    holder: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLock:
    """
    A lock as its owner holds it.

    Attributes:
        ask: what it was acquired for.
        fence: its fencing token; 0 where only the owner is known, as in the main process of a worker.
        epoch: of the store when it was acquired.

    """

    ask: LockAsk
    fence: int = 0
    epoch: str = ""

    @property
    def name(self) -> str:
        """Of the lock."""
        return self.ask.name

    @property
    def owner(self) -> str:
        """The token of the acquisition."""
        return self.ask.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """
    How a lock stands; times in the store's microseconds, 0 means never.

    Attributes:
        owner: '' while nobody holds it.
        holder: who holds it, or held it last.
        reserved_for: the owner it is kept for after a release.

    """

    name: str
    owner: str = ""
    fence: int = 0
    lease_until_us: int = 0
    since_us: int = 0
    reserved_for: str = ""
    reserved_until_us: int = 0
    holder: Mapping[str, Any] = field(default_factory=dict)

    def is_held(self, now_us: int) -> bool:
        """Whether its lease runs."""
        return bool(self.owner) and now_us < self.lease_until_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """
    The answer to an acquisition.

    Attributes:
        now_us: the store's time.
        epoch: of the store.
        held: the lock, if it was taken.
        lease_seconds: for how long, from `asked_at` on.
        is_reserved: it is kept for this owner for a moment.
        barred_until_us: until when nobody else gets it, as it stands now.
        state: how it stands, where it was not given.
        asked_at: monotonic time of this process, seconds, before the question that this answers; the lease began later.

    """

    now_us: int
    epoch: str = ""
    held: HeldLock | None = None
    lease_seconds: float = 0.0
    is_reserved: bool = False
    barred_until_us: int = 0
    state: LockState | None = None
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An acquisition that waits for a lock; times in the store's microseconds."""

    owner: str
    since_us: int
    holder: Mapping[str, Any]


class LockStore(Protocol):
    """
    A store of locks.

    Every method raises `StoreUnavailable` when the store did not answer: then it may or may not have been done, and
    doing it again is safe.
    """

    def acquire(self, ask: LockAsk, *, reserve: bool = False, wait: bool = False, has_waited: bool = False) -> Grant:
        """
        Take a lock that is free, lapsed, or kept for this owner.

        Of any number of callers one gets it. The same owner asking again is told its own claim, with a fresh lease. A
        lapsed lock is not given away for one lease after the store was away, nor an unknown one after a new epoch.

        Args:
            ask: what for.
            reserve: keep the lock for this owner for two seconds, in place of taking it.
            wait: if it is not free, count this owner as waiting: in its turn it is given the lock, or with `reserve`
                has it kept. Ask again within a second.
            has_waited: this owner has asked with `wait` before.

        """
        ...

    def wait(self, ask: LockAsk, seconds: float) -> int:
        """
        Return when this owner is woken, and at the latest after `seconds`, at most a second.

        Returns:
            The fence of the lock, if it was given to this owner, with a lease of two seconds from some time after its
            last question; 0: ask again.

        """
        ...

    def leave(self, ask: LockAsk) -> None:
        """Stop waiting; a lock kept for this owner goes to the next. One that was given is held: release it."""
        ...

    def release(self, held: HeldLock) -> None:
        """
        Free the lock and wake who is next. Releasing again is no error.

        Raises:
            LockLost: it is another owner's by now, and was left alone.

        """
        ...

    def renew(self, locks: Sequence[HeldLock]) -> list[bool]:
        """Renew the leases of these locks, in their order; False for one that is not this owner's any more."""
        ...

    def read(self, name: str) -> tuple[LockState, int]:
        """Return how a lock stands, and the store's time."""
        ...

    def waiting(self, name: str) -> list[Waiting]:
        """Return who waits for a lock and was heard lately, longest first."""
        ...

    def names(self) -> Iterator[str]:
        """Iterate over the stored names of locks that were used within a day, in no order."""
        ...


def read_holder(text: str) -> Mapping[str, Any]:
    """
    Return who holds a lock or waits for it, as `LockAsk.holder` was stored.

    Raises:
        LockUnreadable: it is damaged.

    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LockUnreadable(f"the lock is damaged: {type(error).__name__}: {clean(error, 200)}") from error
    if not isinstance(found, dict):
        raise LockUnreadable(f"the lock is damaged: who holds it cannot be of type {type(found).__name__}")
    return found


def lost(held: HeldLock, found: LockState | None) -> LockLost:
    """Return the error of an owner that is late."""
    who = f"{found.holder or found.owner} has it at fence {found.fence}" if found and found.owner else "it was released"
    return LockLost(f"{held.name}: lost at fence {held.fence}: {who}")
