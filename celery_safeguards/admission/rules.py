"""
The rules of records, for every store that can hold a record still for the length of one step.

A store says how it keeps records (`Room`) and how a step is carried out (`AdmissionRules.step`); what a step does
stands here, once. Redis alone has the same rules in its scripts, which run there and cannot ask Python.

Each step looks at the record first and at its lock then: two steps that meet wait for each other in that order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.store import (
    Answer,
    Change,
    Continuing,
    Erasure,
    RecordKey,
    Renewal,
    RenewedClaim,
    changed,
    not_ours,
)
from celery_safeguards.clock import to_us
from celery_safeguards.errors import NotOurs
from celery_safeguards.ledger.record import Record, RecordUnreadable, State, without_content
from celery_safeguards.locks import rules as lock_rules
from celery_safeguards.locks.store import HeldLock, LockAsk

AS_IT_STANDS = -1
"""For `Room.put`: the record is kept as long as it was to be."""

T = TypeVar("T")
_FINAL = frozenset({State.DONE, State.DEAD, State.QUARANTINED})


class Room(lock_rules.LockRoom, Protocol):
    """What one step sees and changes of records and locks; see `LockRoom`."""

    def record(self, key: RecordKey) -> Record | None:
        """Return a record; None: there is none, or its retention is over."""
        ...

    def expect(self, keys: Sequence[RecordKey], locks: Sequence[str]) -> None:
        """Tell what the step is about to look at, all of it: many are read at once for less, and in one order."""
        ...

    def put(self, key: RecordKey, record: Record, expires_us: int) -> None:
        """Write a record, kept until then; 0: until it is deleted; `AS_IT_STANDS`."""
        ...


class AdmissionRules(ABC):
    """A store of records but for where they are kept; see `AdmissionStore`."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._lease_us = to_us(lease_seconds)

    @property
    def lease_seconds(self) -> float:
        """How long a claim holds without renewal."""
        return self._lease_seconds

    @abstractmethod
    def step(self, act: Callable[[Room], T], *, heard: bool = True) -> T:
        """
        Carry out one step, and count the caller as heard.

        `act` may be called again where another step came between: it does nothing but by its room.

        Raises:
            StoreUnavailable: it may or may not have been done.

        """

    @abstractmethod
    def view(self) -> StoreView:
        """See `AdmissionStore.view`."""

    @abstractmethod
    def declare_new(self) -> None:
        """See `AdmissionStore.declare_new`."""

    def read(self, key: RecordKey) -> Record | None:
        """See `AdmissionStore.read`."""
        return self.step(lambda room: room.record(key), heard=False)

    def read_many(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, Record | RecordUnreadable]:
        """See `AdmissionStore.read_many`."""
        found: dict[RecordKey, Record | RecordUnreadable] = {}
        for key in keys:
            try:
                record = self.read(key)
            except RecordUnreadable as error:
                found[key] = error
                continue
            if record is not None:
                found[key] = record
        return found

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
        """See `AdmissionStore.admit`."""

        def act(room: Room) -> Answer:
            record, view = room.record(key), room.view
            barred = not unproven or epoch not in {None, view.epoch} or view.now_us < view.admit_from_us
            if record is not None or barred:
                return Answer(view, record, claimed=False)
            return self._claim_with(lock, room, key, owner, change)

        return self.step(act)

    def take(self, key: RecordKey, rev: int, owner: str, change: Change, *, lock: LockAsk | None = None) -> Answer:
        """See `AdmissionStore.take`."""

        def act(room: Room) -> Answer:
            record = room.record(key)
            if (record.rev if record else 0) == rev:
                return self._claim_with(lock, room, key, owner, change)
            target = (owner, change.fields["state"], change.fields.get("asking", False))
            mine = record is not None and target == (record.owner, record.state, record.asking)
            found = room.lock(lock.name) if mine and lock else None
            mine = mine and (lock is None or (found is not None and found.owner == owner))
            held = lock_rules.take(room, lock) if mine and lock else None
            return Answer(room.view, record, claimed=mine, lock=held)

        return self.step(act)

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
        """See `AdmissionStore.settle`."""

        def act(room: Room) -> Record:
            record = room.record(key) or (held if recreate else None)
            ours = record is not None and (record.owner, record.fence) == (held.owner, held.fence)
            if record is None or not ours or record.state not in {expected, change.fields["state"]}:
                raise NotOurs(not_ours(key, held, expected, record))
            if record.state is expected:
                if lock is not None:
                    lock_rules.check_not_passed_on(room, lock)
                    lock_rules.release(room, lock)
                _write(room, key, record, change)
            return changed(held, change, room.view.now_us)

        return self.step(act, heard=False)

    def renew(
        self, claims: Mapping[str, RecordKey], locks: Sequence[HeldLock] = ()
    ) -> tuple[StoreView, dict[str, RenewedClaim]]:
        """See `AdmissionStore.renew`."""

        def act(room: Room) -> tuple[StoreView, dict[str, RenewedClaim]]:
            room.expect(list(claims.values()), [each.name for each in locks])
            renewed = {owner: self._renew(room, owner, key) for owner, key in claims.items()}
            for each in locks:
                claim = renewed.get(each.owner, RenewedClaim(Renewal.ABSENT))
                renewed[each.owner] = replace(claim, lock_fence=lock_rules.renew(room, each))
            return room.view, renewed

        return self.step(act)

    def begin_continuing(self, key: RecordKey, task_id: str, seconds: float) -> Continuing:
        """See `AdmissionStore.begin_continuing`."""

        def act(room: Room) -> Continuing:
            view, record = room.view, room.record(key)
            if record is None or record.state is not State.DONE:
                return Continuing.GO
            if task_id in record.continued_by:
                return Continuing.SENT
            if record.continuing and view.now_us < record.lease_until_us:
                return Continuing.BUSY
            _put(room, key, record, continuing=task_id, lease_until_us=view.now_us + to_us(seconds))
            return Continuing.GO

        return self.step(act)

    def end_continuing(self, key: RecordKey, task_id: str) -> None:
        """See `AdmissionStore.end_continuing`."""

        def act(room: Room) -> None:
            record = room.record(key)
            if record is not None and record.state in _FINAL and task_id not in record.continued_by:
                # A failure is marked without a right to send: by then a replay may have succeeded, and be sending.
                sent = {"continuing": "", "publishes": ()} if record.continuing == task_id else {}
                _put(room, key, record, continued_by=(*record.continued_by, task_id), **sent)

        self.step(act)

    def restore(self, key: RecordKey, record: Record, epoch: str) -> bool:
        """See `AdmissionStore.restore`."""

        def act(room: Room) -> bool:
            found = room.record(key)
            is_claim = found is None or (found.owner, found.state) == (record.owner, State.IN_PROGRESS)
            if room.view.epoch == epoch or not is_claim:
                return False
            change = Change(after_seconds={"lease_until_us": self._lease_seconds}, retention_seconds=None)
            # Above both: the copy's revision is that of its claim, and renewals may have moved the new store's on.
            rev = max(record.rev, found.rev if found else 0)
            _write(room, key, record.having(rev=rev), change)
            return True

        return self.step(act)

    def erase(self, key: RecordKey) -> Erasure:
        """See `AdmissionStore.erase`."""

        def act(room: Room) -> Erasure:
            record = room.record(key)
            if record is None:
                return Erasure.ABSENT
            if record.state not in _FINAL:
                return Erasure.UNDER_WAY
            erased = without_content(record)
            if erased:
                _put(room, key, record, **erased)
            return Erasure.ERASED if erased else Erasure.NOTHING

        return self.step(act, heard=False)

    def mark_lost(
        self,
        key: RecordKey,
        owner: str,
        failure: Mapping[str, Any],
        *,
        keep_right_to_send: bool = False,
        lock: LockAsk | None = None,
    ) -> bool:
        """See `AdmissionStore.mark_lost`."""

        def act(room: Room) -> bool:
            record, now_us = room.record(key), room.view.now_us
            if lock is not None:
                lock_rules.release(room, HeldLock(ask=lock))
            if record is None or record.owner != owner:
                return False
            if record.state is State.DONE and record.continuing and not keep_right_to_send:
                _put(room, key, record, lease_until_us=now_us)
            if record.state is not State.IN_PROGRESS:
                return False
            if not record.lost_us:
                _put(room, key, record, lost_us=now_us, failure=dict(failure))
            return True

        return self.step(act, heard=False)

    def _claim_with(self, lock: LockAsk | None, room: Room, key: RecordKey, owner: str, change: Change) -> Answer:
        if lock is None:
            return Answer(room.view, self._claim(room, key, owner, change), claimed=True)
        grant = lock_rules.acquire(room, lock, has_waited=False)
        if grant.held is None:
            return Answer(room.view, None, claimed=False, barred=grant)
        return Answer(room.view, self._claim(room, key, owner, change), claimed=True, lock=grant.held)

    def _claim(self, room: Room, key: RecordKey, owner: str, change: Change) -> Record:
        last, now_us = room.record(key) or Record(state=State.IN_PROGRESS), room.view.now_us
        claimed = last.having(
            owner=owner,
            fence=max(last.fence + 1, now_us),
            lease_until_us=now_us + self._lease_us,
            lost_us=0,
        )
        return _write(room, key, claimed, change)

    def _renew(self, room: Room, owner: str, key: RecordKey) -> RenewedClaim:
        record = room.record(key)
        if record is None or (record.owner == owner and record.state is not State.IN_PROGRESS):
            return RenewedClaim(Renewal.ABSENT)
        if record.owner != owner or record.lost_us:
            return RenewedClaim(Renewal.TAKEN)
        renewed = _put(room, key, record, lease_until_us=room.view.now_us + self._lease_us)
        return RenewedClaim(Renewal.RENEWED, renewed)


def _write(room: Room, key: RecordKey, record: Record, change: Change) -> Record:
    now_us, keep = room.view.now_us, change.retention_seconds
    written = changed(record, change, now_us).having(rev=record.rev + 1)
    room.put(key, written, 0 if keep is None else now_us + to_us(keep))
    return written


def _put(room: Room, key: RecordKey, record: Record, **fields: Any) -> Record:
    written = record.having(**fields, rev=record.rev + 1)
    room.put(key, written, AS_IT_STANDS)
    return written
