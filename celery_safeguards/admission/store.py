"""
The port of admission: what a store of records must be able to do, and what it promises under races.

A store keeps one record for each key and decides nothing: `ledger.decide` does. It offers a claim where there is no
record (the usual case, one round trip), a compare-and-set by revision for everything else that admission decides, and
writes under owner and fence for whoever holds a claim. All times are the store's own.

A first delivery costs `admit` and `settle`. A duplicate of done, busy or dead work costs `admit`. Only a take-over, a
due retry and a replay cost `take` besides; they follow a wait of seconds by nature, and in exchange the table of
answers stands once, in Python, for every store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from celery_safeguards._store_view import StoreView
from celery_safeguards.clock import to_us
from celery_safeguards.ledger.record import Record, RecordUnreadable, State
from celery_safeguards.locks.store import Grant, HeldLock, LockAsk


@dataclass(frozen=True, slots=True)
class RecordKey:
    """The name of a record: `scope` separates what uses keys of the same text."""

    scope: str
    key: str

    def __str__(self) -> str:
        return f"{self.scope}#{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    Fields of a record to write.

    Attributes:
        fields: by name of `Record`'s fields.
        after_seconds: fields that hold a time, as seconds from the store's now.
        retention_seconds: how long the record lives from now; None: until it is deleted, as long as its letter.

    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    after_seconds: Mapping[str, float] = field(default_factory=dict)
    retention_seconds: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What `admit` and `take` found; `barred` when the lock that goes with the claim is held by somebody else."""

    view: StoreView
    record: Record | None
    claimed: bool
    lock: HeldLock | None = None
    barred: Grant | None = None


class Renewal(StrEnum):
    """How a claim stands."""

    RENEWED = "renewed"
    ABSENT = "absent"
    """There is no record, or this owner has written its outcome."""
    TAKEN = "taken"
    """Another owner holds the key, or the claim was marked lost."""


@dataclass(frozen=True, slots=True)
class RenewedClaim:
    """
    What became of one owner's claim and lock.

    Attributes:
        renewal: of the claim; absent for an owner that has a lock alone.
        record: there when the claim was renewed.
        lock_fence: of the lock, if it was renewed; 0 if it is not this owner's.

    """

    renewal: Renewal
    record: Record | None = None
    lock_fence: int = 0


class Continuing(StrEnum):
    """Whether this delivery may send what follows."""

    GO = "go"
    SENT = "sent"
    """It was sent for this task id before."""
    BUSY = "busy"
    """Somebody is sending."""


class Erasure(StrEnum):
    """What became of a record whose content is to be erased."""

    ERASED = "erased"
    NOTHING = "nothing"
    """There was no content to take."""
    UNDER_WAY = "under_way"
    """Its work is not over."""
    ABSENT = "absent"


class AdmissionStore(Protocol):
    """
    A store of records.

    Every method raises `StoreUnavailable` when the store did not answer: then it may or may not have been done, and
    doing it again is safe.
    """

    @property
    def lease_seconds(self) -> float:
        """How long a claim holds without renewal; the same for all workers of a namespace."""
        ...

    def view(self) -> StoreView:
        """Return the store's time, epoch and pauses."""
        ...

    def declare_new(self) -> None:
        """Lift the pause that follows a new epoch. Safe when: nobody can be running a body of this namespace."""
        ...

    def read(self, key: RecordKey) -> Record | None:
        """Return a record as it stands, or None."""
        ...

    def read_many(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, Record | RecordUnreadable]:
        """Return those records that are there; one that a newer version wrote: why it cannot be read."""
        ...

    def admit(
        self,
        key: RecordKey,
        owner: str,
        change: Change,
        *,
        unproven: bool,
        epoch: str | None,
        lock: LockAsk | None = None,
    ) -> Answer:
        """
        Claim a key that has no record, else return its record.

        The first claim is in progress and its series begins now; of `change` the rest is written.

        With a lock, claim and lock are taken together or not at all; the lock's owner must be the claim's.
        Claims only if the message proves no earlier start (`unproven`), its `epoch` is None or the store's, and the
        pause after a new epoch is over. Of any number of callers one claims; the same owner asking again is told its
        own record.
        """
        ...

    def take(self, key: RecordKey, rev: int, owner: str, change: Change, *, lock: LockAsk | None = None) -> Answer:
        """
        Claim a record as it was seen at revision `rev` (0: no record); `claimed` is False when it has moved since.

        Gives a new fence and lease, and clears a mark of loss. Of any number of callers at one revision one claims.
        With a lock, both are taken or neither.
        """
        ...

    def settle(
        self,
        key: RecordKey,
        held: Record,
        expected: State,
        change: Change,
        *,
        recreate: bool = False,
        lock: HeldLock | None = None,
    ) -> Record:
        """
        Write under a claim, if the record is in state `expected` and still at the owner and fence of `held`.

        The clock is not asked: a lapsed claim that nobody took still settles. Writing the same again is no error.

        Args:
            key: of the record.
            held: the record as the owner of the claim knows it.
            expected: the state it must be in.
            change: what to write; must hold `state`.
            recreate: write `held` with the change where the store has lost the record. Only within the lease by the
                local clock: within one lease of a wipe nobody else is admitted.
            lock: released with the write.

        Returns:
            `held` with the change; what others may write meanwhile, the lease and the revision, is as it was.

        Raises:
            NotOurs: another owner or fence, another state, or no record.
            LockLost: another owner has had the lock since; nothing was written.

        """
        ...

    def renew(
        self, claims: Mapping[str, RecordKey], locks: Sequence[HeldLock] = ()
    ) -> tuple[StoreView, dict[str, RenewedClaim]]:
        """
        Renew the leases of all these claims and locks; with none, only show that a worker is alive.

        The answer is by owner. A lock whose fence is not known is renewed by its owner alone.
        """
        ...

    def begin_continuing(self, key: RecordKey, task_id: str, seconds: float) -> Continuing:
        """
        Ask to send what follows a done record, for this task id.

        Of any number of callers one gets `GO`, and the others `BUSY` until it has called `end_continuing` or `seconds`
        are over. A record that is gone answers `GO`: nothing is known of it.
        """
        ...

    def end_continuing(self, key: RecordKey, task_id: str) -> None:
        """
        Note that what follows, or the failure, was sent for this task id, and end its right to send, not another's.

        Nothing if the record is not final.
        """
        ...

    def restore(self, key: RecordKey, record: Record, epoch: str) -> bool:
        """Write a live owner's record back after the store has lost it, if the epoch is not `epoch` any more."""
        ...

    def erase(self, key: RecordKey) -> Erasure:
        """
        Take the result, the steps and the texts of the failure from a record that is over; all else of it stays.

        So a duplicate is still known for one, and is told that the result was withheld. One step writes these fields
        and no others: what `end_continuing` writes at the same time stays, where a settle of the record as it was read
        would undo it, and what follows would be sent twice. Steps of dead work stay: they hold back a second effect.
        """
        ...

    def mark_lost(
        self,
        key: RecordKey,
        owner: str,
        failure: Mapping[str, Any],
        *,
        keep_right_to_send: bool = False,
        lock: LockAsk | None = None,
    ) -> bool:
        """
        Note that an owner is dead, and of what; its claim stays as evidence. Returns whether it held one.

        One that had settled gives up its right to send what follows, unless it is to run out by itself. Its lock is
        released: nothing dead can still be working.
        """
        ...


def changed(record: Record, change: Change, now_us: int) -> Record:
    """Return a record as it stands after a change that was written at `now_us`."""
    written = dict(change.fields)
    for name, seconds in change.after_seconds.items():
        written[name] = now_us + to_us(seconds)
    return record.having(**written)


def not_ours(key: RecordKey, held: Record, expected: State, found: Record | None) -> str:
    """Return what `NotOurs` says: how the record stands, and how its writer knew it."""
    stands = f"held by {found.owner} at {found.fence}, {found.state}" if found else "gone"
    return f"{key} is {stands}, not {held.owner} at {held.fence}, {expected}"
