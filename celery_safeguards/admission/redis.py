"""Admission on Redis: each method is one script, one round trip; the scripts say why they are safe to run twice."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_safeguards._redis import Client, Keys, Script
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
from celery_safeguards.ledger.record import FORMAT, Record, RecordUnreadable, State, body_of, record_or_error, to_json
from celery_safeguards.locks.redis import holder_text, renewal_words, state_of
from celery_safeguards.locks.store import Grant, HeldLock, LockAsk, lost

_VIEW, _READ, _ADMIT, _TAKE, _SETTLE, _CONTINUE, _RESTORE, _MARK_LOST, _ERASE = (
    Script.of("store.lua", "admission/record.lua", f"admission/{name}.lua")
    for name in ("view", "read", "admit", "take", "settle", "continue", "restore", "mark_lost", "erase")
)
_RECORDS_A_TRIP = 200
# A script that takes no lock is not made to read how locks are taken.
_ADMIT_WITH_LOCK, _TAKE_WITH_LOCK, _SETTLE_WITH_LOCK, _MARK_LOST_WITH_LOCK, _RENEW = (
    Script.of("store.lua", "locks/lock.lua", "admission/record.lua", f"admission/{name}.lua")
    for name in ("admit", "take", "settle", "mark_lost", "renew")
)
_BLANK = Record(state=State.IN_PROGRESS)


class RedisAdmissionStore:
    """
    Records in Redis.

    Safe when: shared by threads; created before a fork and used after it; the server is restarted, failed over or
    wiped in between. A server without persistence forgets, and its new epoch tells everyone.
    """

    def __init__(self, client: Client, keys: Keys, lease_seconds: float) -> None:
        self._client = client
        self._keys = keys
        self._lease_seconds = lease_seconds

    @property
    def lease_seconds(self) -> float:
        """How long a claim holds without renewal."""
        return self._lease_seconds

    def view(self) -> StoreView:
        """Return the store's time, epoch and pauses."""
        return _view(self._run(_VIEW, [self._keys.meta], [""]))

    def declare_new(self) -> None:
        """Lift the pause that follows a new epoch."""
        self._run(_VIEW, [self._keys.meta], ["1"])

    def read(self, key: RecordKey) -> Record | None:
        """Return a record as it stands, or None."""
        (text,) = self._client.run(_READ, [self._record_key(key)], [])
        return _record(text)

    def read_many(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, Record | RecordUnreadable]:
        """See `AdmissionStore.read_many`."""
        found: dict[RecordKey, Record | RecordUnreadable] = {}
        for first in range(0, len(keys), _RECORDS_A_TRIP):
            some = keys[first : first + _RECORDS_A_TRIP]
            texts = self._client.run(_READ, [self._record_key(key) for key in some], [])
            found |= {key: record_or_error(text) for key, text in zip(some, texts, strict=True) if text}
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
        """Claim a key that has no record, else return its record."""
        new = [FORMAT, body_of(change.fields), _retention_ms(change)]
        args = [owner, "1" if unproven else "", epoch or "", *new]
        # An owner is as good a name for a new epoch as any, and is there already.
        if lock is None:
            status, view, found = self._record_script(_ADMIT, key, args, owner)
        else:
            args += [to_us(lock.lease_seconds), holder_text(lock)]
            status, view, found = self._record_script(_ADMIT_WITH_LOCK, key, args, owner, self._keys.lock(lock.name))
        if status == "barred":
            return Answer(view, None, claimed=False, barred=_barred(lock, view, found))
        if status != "claimed":
            return Answer(view, _record(found), claimed=False)
        # The script answers with the fences alone: all else of a new record is known here.
        fence, lock_fence = found.split(" ")
        now_us = view.now_us
        head = {"rev": 1, "owner": owner, "fence": int(fence), "series_began_us": now_us}
        head["lease_until_us"] = now_us + to_us(self._lease_seconds)
        held = HeldLock(ask=lock, fence=int(lock_fence), epoch=view.epoch) if lock else None
        return Answer(view, _BLANK.having(**change.fields, **head), claimed=True, lock=held)

    def take(self, key: RecordKey, rev: int, owner: str, change: Change, *, lock: LockAsk | None = None) -> Answer:
        """Claim a record as it was seen at revision `rev`."""
        args = [owner, rev, *_write(change, body_of(change.fields))]
        if lock is None:
            status, view, found = self._record_script(_TAKE, key, args)
        else:
            args += [to_us(lock.lease_seconds), holder_text(lock)]
            status, view, found = self._record_script(_TAKE_WITH_LOCK, key, args, None, self._keys.lock(lock.name))
        if status == "barred":
            return Answer(view, None, claimed=False, barred=_barred(lock, view, found))
        if status != "taken":
            return Answer(view, _record(found), claimed=False)
        lock_fence, text = found.split("\n", 1)
        held = HeldLock(ask=lock, fence=int(lock_fence), epoch=view.epoch) if lock else None
        return Answer(view, _record(text), claimed=True, lock=held)

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
        script, keys = _SETTLE, [self._record_key(key)]
        # Whole, as its owner knows it: under a claim nobody else writes what is not in the head.
        after = held.having(**change.fields)
        needs_now = "1" if change.after_seconds else ""
        head = [held.owner, held.fence, held.rev, expected, "1" if recreate else "", needs_now]
        args = [*head, *_write(change, after.body(), held)]
        if lock is not None:
            script = _SETTLE_WITH_LOCK
            keys += [self._keys.lock(lock.name), self._keys.waiting(lock.name)]
            args += [lock.fence, self._keys.wake("")]
        status, now, found = self._client.run(script, keys, args).split("\n", 2)
        if status in {"settled", "already"}:
            return changed(after, change, int(now)) if change.after_seconds else after
        if status == "lost" and lock is not None:
            raise lost(lock, state_of(lock.name, found))
        raise NotOurs(not_ours(key, held, expected, _record(found)))

    def renew(
        self, claims: Mapping[str, RecordKey], locks: Sequence[HeldLock] = ()
    ) -> tuple[StoreView, dict[str, RenewedClaim]]:
        """Renew the leases of all these claims and locks."""
        records = [self._record_key(key) for key in claims.values()]
        keys = [self._keys.meta, *records, *(self._keys.lock(each.name) for each in locks)]
        words = [word for each in locks for word in renewal_words(each)]
        head, *rows, fences = self._run(_RENEW, keys, [len(records), *claims, *words])
        renewed = {owner: _renewed(row) for owner, row in zip(claims, rows, strict=True)}
        for each, fence in zip(locks, fences, strict=True):
            claim = renewed.get(each.owner, RenewedClaim(Renewal.ABSENT))
            renewed[each.owner] = replace(claim, lock_fence=int(fence))
        return _view(head), renewed

    def begin_continuing(self, key: RecordKey, task_id: str, seconds: float) -> Continuing:
        """Ask to send what follows a done record, for this task id."""
        status, _, _ = self._record_script(_CONTINUE, key, [task_id, "begin", to_us(seconds)])
        return Continuing(status)

    def end_continuing(self, key: RecordKey, task_id: str) -> None:
        """Note that what follows was sent for this task id."""
        self._record_script(_CONTINUE, key, [task_id, "end"])

    def restore(self, key: RecordKey, record: Record, epoch: str) -> bool:
        """Write a live owner's record back after the store has lost it."""
        renewed = {"lease_until_us": self._lease_seconds}
        change = Change(fields={"state": record.state}, after_seconds=renewed, retention_seconds=None)
        args = [record.owner, record.fence, record.rev, epoch, *_write(change, record.body(), record)]
        status, _, _ = self._record_script(_RESTORE, key, args)
        return status == "restored"

    def erase(self, key: RecordKey) -> Erasure:
        """Take the result, the steps and the texts of the failure from a record that is over."""
        return Erasure(self._client.run(_ERASE, [self._record_key(key)], []))

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
        args = [owner, to_json(failure), "1" if keep_right_to_send else ""]
        if lock is None:
            return bool(self._client.run(_MARK_LOST, [self._record_key(key)], args))
        keys = [self._record_key(key), self._keys.lock(lock.name), self._keys.waiting(lock.name)]
        return bool(self._client.run(_MARK_LOST_WITH_LOCK, keys, [*args, self._keys.wake("")]))

    def _record_key(self, key: RecordKey) -> str:
        return self._keys.record(key.scope, key.key)

    def _run(self, script: Script, keys: list[str], args: list[Any], epoch_name: str | None = None) -> Any:
        # Any caller may be the one that finds the store new: each brings a name for the new epoch.
        return self._client.run(script, keys, [to_us(self._lease_seconds), epoch_name or uuid.uuid4().hex, *args])

    def _record_script(
        self, script: Script, key: RecordKey, args: list[Any], epoch_name: str | None = None, *more_keys: str
    ) -> tuple[str, StoreView, str]:
        keys = [self._keys.meta, self._record_key(key), *more_keys]
        status, *view, found = self._run(script, keys, args, epoch_name).split("\n", 5)
        return status, _view(view), found


def _barred(lock: LockAsk | None, view: StoreView, found: str) -> Grant:
    until, text = found.split("\n", 1)
    state = state_of(lock.name if lock else "", text)
    return Grant(now_us=view.now_us, barred_until_us=int(until), state=state)


def _write(change: Change, body: str, held: Record | None = None) -> list[Any]:
    """Return a write as the scripts lay it over a record; a time that is not given stands as `held` or they have it."""
    fields, after = change.fields, change.after_seconds
    asking = fields.get("asking", held.asking if held else False)
    times = [
        f"+{to_us(after[name])}" if name in after else fields.get(name, getattr(held, name) if held else "")
        for name in ("series_began_us", "not_before_us", "doubt_us")
    ]
    lease = f"+{to_us(after['lease_until_us'])}" if "lease_until_us" in after else ""
    return [FORMAT, fields["state"], "1" if asking else "0", lease, *times, body, _retention_ms(change)]


def _retention_ms(change: Change) -> int:
    """Return how long the record is kept; 0: until it is deleted."""
    return 0 if change.retention_seconds is None else max(1, round(change.retention_seconds * 1000))


def _view(parts: Sequence[str]) -> StoreView:
    now, epoch, admit_from, takeover_from = parts
    return StoreView(now_us=int(now), epoch=epoch, admit_from_us=int(admit_from), takeover_from_us=int(takeover_from))


def _record(text: str | None) -> Record | None:
    return Record.from_text(text) if text else None


def _renewed(row: Sequence[str]) -> RenewedClaim:
    status, text = row
    return RenewedClaim(Renewal(status), _record(text))
