"""
Admission in memory: for tests and for one process without a server.

It passes the conformance suite of the Redis store, so a test against it tells what Redis would do. Its clock is
injected; `wipe` and `silence` do what a lost or unreachable server does.
"""

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.store import (
    Answer,
    Change,
    Continuing,
    RecordKey,
    Renewal,
    RenewedClaim,
    changed,
    not_ours,
)
from celery_safeguards.clock import to_us
from celery_safeguards.errors import NotOurs
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.locks.memory import MemoryLockStore
from celery_safeguards.locks.store import HeldLock, LockAsk


class MemoryAdmissionStore:
    """
    Records in a dictionary.

    Safe when: shared by threads of one process.

    Args:
        lease_seconds: how long a claim holds without renewal.
        now_seconds: the store's clock.

    """

    def __init__(self, lease_seconds: float, now_seconds: Callable[[], float]) -> None:
        self._lease_seconds = lease_seconds
        self._now_seconds = now_seconds
        self.mutex = threading.RLock()
        self.locks = MemoryLockStore(self)
        self.wipe()

    @property
    def lease_seconds(self) -> float:
        """How long a claim holds without renewal."""
        return self._lease_seconds

    def wipe(self) -> None:
        """Lose everything, as a server without persistence does."""
        with self.mutex:
            self._records: dict[RecordKey, Record] = {}
            self._expires_us: dict[RecordKey, int] = {}
            self._epoch = ""
            self.locks.wipe()
            self._admit_from_us = self._takeover_from_us = self._away_from_us = self._pulse_us = 0

    def view(self) -> StoreView:
        """Return the store's time, epoch and pauses."""
        with self.mutex:
            return self.look(heard=False)

    def declare_new(self) -> None:
        """Lift the pause that follows a new epoch."""
        with self.mutex:
            self._pulse_us = self.look(heard=False).now_us
            self._admit_from_us = self._takeover_from_us = 0

    def read(self, key: RecordKey) -> Record | None:
        """Return a record as it stands, or None."""
        with self.mutex:
            if self._expires_us.get(key, 0) and self._now_us() >= self._expires_us[key]:
                del self._records[key], self._expires_us[key]
            return self._records.get(key)

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
        """Claim a key that has no record, else return its record."""
        with self.mutex:
            view, record = self.look(), self.read(key)
            barred = not unproven or epoch not in {None, view.epoch} or view.now_us < view.admit_from_us
            if record is not None or barred:
                return Answer(view, record, claimed=False)
            return self._claim_with(lock, view, key, owner, change)

    def take(self, key: RecordKey, rev: int, owner: str, change: Change, *, lock: LockAsk | None = None) -> Answer:
        """Claim a record as it was seen at revision `rev`."""
        with self.mutex:
            view, record = self.look(), self.read(key)
            if (record.rev if record else 0) == rev:
                return self._claim_with(lock, view, key, owner, change)
            target = (owner, change.fields["state"], change.fields.get("asking", False))
            mine = record is not None and target == (record.owner, record.state, record.asking)
            mine = mine and (lock is None or self.locks.read(lock.name)[0].owner == owner)
            held = self.locks.take(lock, view) if mine and lock else None
            return Answer(view, record, claimed=mine, lock=held)

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
        """Write under a claim, if the record is in state `expected` and still at the owner and fence of `held`."""
        with self.mutex:
            record = self.read(key) or (held if recreate else None)
            ours = record is not None and (record.owner, record.fence) == (held.owner, held.fence)
            if record is None or not ours or record.state not in {expected, change.fields["state"]}:
                raise NotOurs(not_ours(key, held, expected, record))
            if record.state is expected:
                if lock is not None:
                    self.locks.check_not_passed_on(lock)
                    self.locks.release(lock)
                self._write(key, record, change)
            return changed(held, change, self._now_us())

    def renew(
        self, claims: Mapping[str, RecordKey], locks: Sequence[HeldLock] = ()
    ) -> tuple[StoreView, dict[str, RenewedClaim]]:
        """Renew the leases of all these claims and locks."""
        with self.mutex:
            view, renewed = self.look(), {owner: self._renew(owner, key) for owner, key in claims.items()}
            for each in locks:
                claim = renewed.get(each.owner, RenewedClaim(Renewal.ABSENT))
                renewed[each.owner] = replace(claim, lock_fence=self.locks.renew_one(each, view))
            return view, renewed

    def begin_continuing(self, key: RecordKey, task_id: str, seconds: float) -> Continuing:
        """Ask to send what follows a done record, for this task id."""
        with self.mutex:
            view, record = self.look(), self.read(key)
            if record is None or record.state is not State.DONE:
                return Continuing.GO
            if task_id in record.continued_by:
                return Continuing.SENT
            if record.continuing and view.now_us < record.lease_until_us:
                return Continuing.BUSY
            until_us = view.now_us + to_us(seconds)
            self._records[key] = replace(record, continuing=task_id, lease_until_us=until_us, rev=record.rev + 1)
            return Continuing.GO

    def end_continuing(self, key: RecordKey, task_id: str) -> None:
        """Note that what follows was sent for this task id."""
        with self.mutex:
            self.look()
            record = self.read(key)
            is_final = record is not None and record.state in {State.DONE, State.DEAD, State.QUARANTINED}
            if record is not None and is_final and task_id not in record.continued_by:
                sent, rev = (*record.continued_by, task_id), record.rev + 1
                self._records[key] = replace(record, continued_by=sent, continuing="", rev=rev)

    def restore(self, key: RecordKey, record: Record, epoch: str) -> bool:
        """Write a live owner's record back after the store has lost it."""
        with self.mutex:
            view, found = self.look(), self.read(key)
            is_claim = found is None or (found.owner, found.state) == (record.owner, State.IN_PROGRESS)
            if view.epoch == epoch or not is_claim:
                return False
            change = Change(after_seconds={"lease_until_us": self._lease_seconds}, retention_seconds=None)
            rev = max(record.rev, found.rev if found else 0)
            self._write(key, replace(record, rev=rev), change)
            return True

    def mark_lost(
        self,
        key: RecordKey,
        owner: str,
        failure: Mapping[str, Any],
        *,
        keep_right_to_send: bool = False,
        lock: LockAsk | None = None,
    ) -> bool:
        """Note that an owner is dead; its claim stays as evidence."""
        with self.mutex:
            if lock is not None:
                self.locks.release(HeldLock(ask=lock))
            record = self.read(key)
            if record is not None and record.owner == owner and record.state is State.DONE:
                if record.continuing and not keep_right_to_send:
                    self._records[key] = replace(record, lease_until_us=self._now_us(), rev=record.rev + 1)
                return False
            if record is None or record.owner != owner or record.state is not State.IN_PROGRESS:
                return False
            if not record.lost_us:
                lost_us, rev = self._now_us(), record.rev + 1
                self._records[key] = replace(record, lost_us=lost_us, failure=dict(failure), rev=rev)
            return True

    def _now_us(self) -> int:
        return to_us(self._now_seconds())

    def look(self, *, heard: bool = True) -> StoreView:
        """Return the store's own state."""
        now_us, lease_us = self._now_us(), to_us(self._lease_seconds)
        if not self._epoch:
            self._epoch = uuid.uuid4().hex
            self._pulse_us = now_us
            self._admit_from_us = self._takeover_from_us = now_us + lease_us
        elif heard:
            if now_us - self._pulse_us > lease_us / 2:
                self._takeover_from_us, self._away_from_us = now_us + lease_us, self._pulse_us
            self._pulse_us = now_us
        return StoreView(
            now_us=now_us,
            epoch=self._epoch,
            admit_from_us=self._admit_from_us,
            takeover_from_us=self._takeover_from_us,
            away_from_us=self._away_from_us,
        )

    def _claim_with(self, lock: LockAsk | None, view: StoreView, key: RecordKey, owner: str, change: Change) -> Answer:
        if lock is None:
            return Answer(view, self._claim(key, owner, change), claimed=True)
        grant = self.locks.acquire(lock)
        if grant.held is None:
            return Answer(view, None, claimed=False, barred=grant)
        return Answer(view, self._claim(key, owner, change), claimed=True, lock=grant.held)

    def _claim(self, key: RecordKey, owner: str, change: Change) -> Record:
        last = self.read(key) or Record(state=State.IN_PROGRESS)
        now_us = self._now_us()
        held = replace(
            last,
            owner=owner,
            fence=max(last.fence + 1, now_us),
            lease_until_us=now_us + to_us(self._lease_seconds),
            lost_us=0,
        )
        return self._write(key, held, change)

    def _write(self, key: RecordKey, record: Record, change: Change) -> Record:
        now_us = self._now_us()
        self._records[key] = replace(changed(record, change, now_us), rev=record.rev + 1)
        keep = change.retention_seconds
        self._expires_us[key] = 0 if keep is None else now_us + to_us(keep)
        return self._records[key]

    def _renew(self, owner: str, key: RecordKey) -> RenewedClaim:
        record = self.read(key)
        if record is None or (record.owner == owner and record.state is not State.IN_PROGRESS):
            return RenewedClaim(Renewal.ABSENT)
        if record.owner != owner or record.lost_us:
            return RenewedClaim(Renewal.TAKEN)
        until_us = self._now_us() + to_us(self._lease_seconds)
        self._records[key] = replace(record, lease_until_us=until_us, rev=record.rev + 1)
        return RenewedClaim(Renewal.RENEWED, self._records[key])
