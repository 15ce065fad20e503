"""Records and locks as rows: which columns they have, and what stands in them."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger import record
from celery_safeguards.ledger.record import Record, RecordUnreadable
from celery_safeguards.locks.rules import Place
from celery_safeguards.locks.store import LockState, LockUnreadable, read_holder
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import row_id, shown

HEAD = (
    *("format", "state", "owner", "fence", "rev"),
    *("lease_until_us", "lost_us", "series_began_us", "not_before_us", "doubt_us", "asking"),
)
"""In the order of a record's head line."""
RECORD = (*HEAD, "body", "task")
RECORD_NAMES = ("id", "namespace", "scope", "key")
LOCK = ("owner", "fence", "lease_until_us", "since_us", "reserved_for", "reserved_until_us", "body")
FREED = ("freed_owner", "freed_fence")
PLACE = ("owner", "since_us", "heard_us", "is_kept", "holder")

_to_json = json.JSONEncoder(separators=(",", ":")).encode


def record_id(namespace: str, key: RecordKey) -> str:
    """Return the id of a record's row."""
    return row_id(namespace, key.scope, key.key)


def record_names(namespace: str, key: RecordKey) -> list[Any]:
    """Return the values of `RECORD_NAMES`."""
    return [record_id(namespace, key), namespace, shown(key.scope, NAME_CHARS), shown(key.key, NAME_CHARS)]


def record_row(record: Record) -> list[Any]:
    """Return the values of `RECORD`."""
    head = [getattr(record, name) for name in HEAD]
    head[1] = str(record.state)
    return [*head, record.body(), shown(record.task, NAME_CHARS)]


def record_of(row: Sequence[Any]) -> Record:
    """
    Return a record from the values of `HEAD` and its body.

    Raises:
        RecordUnreadable: it is damaged, or was written in a newer format.

    """
    return Record.from_text(_record_text(row))


def record_or_error(row: Sequence[Any]) -> Record | RecordUnreadable:
    """Return it as `record_of` does, or why it cannot be read."""
    return record.record_or_error(_record_text(row))


def _record_text(row: Sequence[Any]) -> str:
    format_, state, owner, *numbers, asking, body = row
    head = [format_, state, owner or "-", *numbers, int(asking)]
    return f"{' '.join(map(str, head))}\n{body}"


def lock_id(namespace: str, name: str) -> str:
    """Return the id of a lock's row."""
    return row_id(namespace, name)


def lock_row(state: LockState) -> list[Any]:
    """Return the values of `LOCK`."""
    body = _to_json({"name": state.name, "holder": dict(state.holder)})
    return [*(getattr(state, name) for name in LOCK[:-1]), body]


def lock_of(row: Sequence[Any]) -> LockState:
    """
    Return a lock from the values of `LOCK`.

    Raises:
        LockUnreadable: it is damaged.

    """
    *values, body = row
    given = read_holder(body)
    name, holder = given.get("name"), given.get("holder")
    if not isinstance(name, str) or not isinstance(holder, dict):
        raise LockUnreadable("the lock is damaged: it has no name, or does not say who holds it")
    return LockState(name=name, holder=holder, **dict(zip(LOCK[:-1], values, strict=True)))


def lock_name(body: str, shown_name: str) -> str:
    """Return the name that a lock's body holds; of one that is damaged the name that is shown, which may be cut."""
    with suppress(LockUnreadable):
        name = read_holder(body).get("name")
        if isinstance(name, str):
            return name
    return shown_name


def place_row(place: Place) -> list[Any]:
    """Return the values of `PLACE`."""
    return [place.owner, place.since_us, place.heard_us, place.is_kept, _to_json(dict(place.holder))]


def place_of(row: Sequence[Any]) -> Place:
    """
    Return a place in the line from the values of `PLACE`.

    Raises:
        LockUnreadable: it is damaged.

    """
    owner, since_us, heard_us, is_kept, text = row
    holder = read_holder(text)
    return Place(owner=owner, since_us=since_us, heard_us=heard_us, is_kept=bool(is_kept), holder=holder)
