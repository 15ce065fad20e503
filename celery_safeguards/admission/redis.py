"""Admission on Redis: each method is one script, one round trip; the scripts say why they are safe to run twice."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from celery_safeguards._redis import Client, Keys
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
from celery_safeguards.ledger.decide import StoreView
from celery_safeguards.ledger.record import Record, State, encode

_PACKAGE = __package__ or ""


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
        return _view(self._run("view.lua", [self._keys.meta], [""]))

    def declare_new(self) -> None:
        """Lift the pause that follows a new epoch."""
        self._run("view.lua", [self._keys.meta], ["1"])

    def read(self, key: RecordKey) -> Record | None:
        """Return a record as it stands, or None."""
        return _record(self._client.run(_PACKAGE, "read.lua", [self._record_key(key)], [], prelude="prelude.lua"))

    def admit(self, key: RecordKey, owner: str, change: Change, *, unproven: bool, epoch: str | None) -> Answer:
        """Claim a key that has no record, else return its record."""
        args = [owner, encode(unproven), epoch or "", *_write(change)]
        status, view, found = self._record_script("admit.lua", key, args)
        if status != "claimed":
            return Answer(view, _record(found), claimed=False)
        # The script answers with the fence alone: all else of a new record is known here.
        lease_us = to_us(self._lease_seconds)
        new = Record(
            state=State.IN_PROGRESS, rev=1, owner=owner, fence=int(found), lease_until_us=view.now_us + lease_us
        )
        return Answer(view, changed(new, change, view.now_us), claimed=True)

    def take(self, key: RecordKey, rev: int, owner: str, change: Change) -> Answer:
        """Claim a record as it was seen at revision `rev`."""
        target = [encode(change.fields["state"]), encode(change.fields.get("asking", False))]
        args = [owner, rev, *target, *_write(change)]
        status, view, found = self._record_script("take.lua", key, args)
        return Answer(view, _record(found), claimed=status == "taken")

    def settle(
        self,
        key: RecordKey,
        held: Record,
        expected: State,
        change: Change,
        *,
        recreate: bool = False,
    ) -> Record:
        """Write under a claim, if the record is in state `expected` and still at the owner and fence of `held`."""
        head = [held.owner, held.fence, expected, change.fields["state"]]
        status, view, found = self._record_script("settle.lua", key, [*head, "", *_write(change)])
        if status == "gone" and recreate:
            status, view, found = self._record_script("settle.lua", key, [*head, "1", *_write(change, onto=held)])
        if status in {"settled", "already"}:
            return changed(held, change, view.now_us)
        raise NotOurs(not_ours(key, held, expected, _record(found)))

    def renew(self, claims: Mapping[str, RecordKey]) -> tuple[StoreView, dict[str, RenewedClaim]]:
        """Renew the leases of all these claims."""
        keys = [self._keys.meta, *(self._record_key(key) for key in claims.values())]
        head, *rows = self._run("renew.lua", keys, list(claims))
        return _view(head), {owner: _renewed(row) for owner, row in zip(claims, rows, strict=True)}

    def begin_continuing(self, key: RecordKey, task_id: str, seconds: float) -> Continuing:
        """Ask to send what follows a done record, for this task id."""
        status, _, _ = self._record_script("continue.lua", key, [task_id, "begin", to_us(seconds)])
        return Continuing(status)

    def end_continuing(self, key: RecordKey, task_id: str) -> None:
        """Note that what follows was sent for this task id."""
        self._record_script("continue.lua", key, [task_id, "end"])

    def restore(self, key: RecordKey, record: Record, epoch: str) -> bool:
        """Write a live owner's record back after the store has lost it."""
        change = Change(after_seconds={"lease_until_us": self._lease_seconds}, retention_seconds=None)
        args = [record.owner, epoch, *_write(change, onto=record)]
        status, _, _ = self._record_script("restore.lua", key, args)
        return status == "restored"

    def mark_lost(
        self, key: RecordKey, owner: str, failure: Mapping[str, Any], *, keep_right_to_send: bool = False
    ) -> bool:
        """Note that an owner is dead; its claim stays as evidence."""
        args = [owner, encode(dict(failure)), encode(keep_right_to_send)]
        return bool(self._client.run(_PACKAGE, "mark_lost.lua", [self._record_key(key)], args, prelude="prelude.lua"))

    def _record_key(self, key: RecordKey) -> str:
        return self._keys.record(key.scope, key.key)

    def _run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        # Any caller may be the one that finds the store new: each brings a name for the new epoch.
        args = [to_us(self._lease_seconds), uuid.uuid4().hex, *args]
        return self._client.run(_PACKAGE, script, keys, args, prelude="prelude.lua")

    def _record_script(self, script: str, key: RecordKey, args: list[Any]) -> tuple[str, StoreView, str]:
        keys = [self._keys.meta, self._record_key(key)]
        status, *view, found = self._run(script, keys, args).split("\n", 5)
        return status, _view(view), found


def _write(change: Change, onto: Record | None = None) -> list[Any]:
    """Return a change as the scripts' `write` reads it."""
    fields = {**(onto.to_fields() if onto else {}), **{name: encode(value) for name, value in change.fields.items()}}
    retention_ms = 0 if change.retention_seconds is None else max(1, round(change.retention_seconds * 1000))
    times = {name: str(to_us(seconds)) for name, seconds in change.after_seconds.items()}
    return [retention_ms, _compact(fields), _compact(times) if times else ""]


_compact = json.JSONEncoder(separators=(",", ":")).encode


def _view(parts: Sequence[str]) -> StoreView:
    now, epoch, admit_from, takeover_from = parts
    return StoreView(now_us=int(now), epoch=epoch, admit_from_us=int(admit_from), takeover_from_us=int(takeover_from))


def _record(text: str) -> Record | None:
    return Record.from_fields(json.loads(text)) if text else None


def _renewed(row: Sequence[str]) -> RenewedClaim:
    status, text = row
    return RenewedClaim(Renewal(status), _record(text))
