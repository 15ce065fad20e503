"""
The two statements of a plain delivery: claim a key that has no row, and write the outcome on a record that stands.

Their texts are few and hold no value, so they are put together once in a process, and a server that keeps prepared
statements plans each of them once for a connection.
"""

from collections.abc import Callable, Iterable
from typing import Any

from celery_safeguards.admission.store import Change, RecordKey
from celery_safeguards.clock import to_us
from celery_safeguards.ledger.record import Record, State
from django_celery_safeguards import rows
from django_celery_safeguards.house import STATE, House
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import shown

_BLANK = Record(state=State.IN_PROGRESS)
_COLUMNS = (*rows.RECORD_NAMES, *rows.RECORD, "expires_us")
_BY_THE_CLOCK = frozenset({"fence", "series_began_us", "lease_until_us", "expires_us"})
_WRITTEN = ("format", "state", "asking", "body", "task", "series_began_us", "not_before_us", "doubt_us")
"""What an outcome writes, beside the retention and the revision."""


class PlainStatements:
    """
    The statements of one house; each method returns a statement and its values.

    Safe when: shared by threads.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._texts: dict[tuple[Any, ...], str] = {}

    def claim(self, key: RecordKey, owner: str, change: Change, epoch: str | None) -> tuple[str, list[Any]]:
        """Return the claim of a first start: written if no row is there, and the store's state does not forbid it."""
        house, keep = self._house, change.retention_seconds
        text = self._text(self._claim_text, keep is None, epoch is None)
        row = [*rows.record_names(house.namespace, key), *rows.record_row(claimed_record(change, owner=owner, rev=1))]
        values = [value for name, value in zip(_COLUMNS, row, strict=False) if name not in _BY_THE_CLOCK]
        values += [*_kept(keep), house.namespace, *([] if epoch is None else [epoch])]
        return text, values + [house.namespace] * len(STATE)

    def outcome(self, key: RecordKey, held: Record, expected: State, change: Change) -> tuple[str, list[Any]]:
        """Return the write of an outcome; it answers with the times `after_seconds`, in their order."""
        keep, after_seconds = change.retention_seconds, change.after_seconds
        text = self._text(self._outcome_text, keep is None, *after_seconds)
        # Whole, as its owner knows it: under a claim nobody else writes what is not in the head.
        after = held.having(**change.fields)
        given = {name: getattr(after, name) for name in _WRITTEN if name not in {"state", "body", "task"}}
        given |= {"state": str(after.state), "body": after.body(), "task": shown(after.task, NAME_CHARS)}
        given |= {name: to_us(seconds) for name, seconds in after_seconds.items()}
        id_ = rows.record_id(self._house.namespace, key)
        stands = [id_, held.owner, held.fence, str(expected)]
        return text, [*(given[name] for name in _names_written(after_seconds)), *_kept(keep), *stands]

    def _text(self, make: Callable[..., str], *shape: Any) -> str:
        known = (make.__name__, *shape)
        return self._texts.get(known) or self._texts.setdefault(known, make(*shape))

    def _claim_text(self, is_kept_for_ever: bool, has_no_epoch: bool) -> str:
        house, records, state = self._house, self._house.tables.records, self._house.tables.state
        now = {"fence": "clock.now_us", "series_began_us": "clock.now_us"}
        now["lease_until_us"] = f"clock.now_us + {house.lease_us}"
        now["expires_us"] = "0" if is_kept_for_ever else "clock.now_us + %s"
        selected = ", ".join(now.get(name, "%s") for name in _COLUMNS)
        same_epoch = "" if has_no_epoch else f" AND {state.are(['epoch'])}"
        # The state stands beside the claim: asked for apart, it might change in between.
        told = ", ".join(
            f"(SELECT {state.list([name])} FROM {state.name} WHERE {state.are(['namespace'])})" for name in STATE
        )
        return (
            f"INSERT INTO {records.name} ({records.list(_COLUMNS)}) SELECT {selected} "
            f"FROM {state.name}, (SELECT {house.dialect.now_us} AS now_us) clock "
            f"WHERE {state.are(['namespace'])} AND {state.list(['admit_from_us'])} <= clock.now_us{same_epoch} "
            f"ON CONFLICT ({records.list(['id'])}) DO NOTHING "
            f"RETURNING {records.list(('fence', 'series_began_us', 'lease_until_us'))}, {told}"
        )

    def _outcome_text(self, is_kept_for_ever: bool, *after_seconds: str) -> str:
        records, now_us = self._house.tables.records, self._house.dialect.now_us
        sets = {name: f"{now_us} + %s" if name in after_seconds else "%s" for name in _names_written(after_seconds)}
        sets["expires_us"] = "0" if is_kept_for_ever else f"{now_us} + %s"
        sets["rev"] = f"{records.list(['rev'])} + 1"
        written = ", ".join(f"{records.list([name])} = {value}" for name, value in sets.items())
        # A record whose retention is over is none: to see that is the rules' business.
        return (
            f"UPDATE {records.name} SET {written} "
            f"WHERE {records.are(('id', 'owner', 'fence', 'state'))} "
            f"AND ({records.list(['expires_us'])} = 0 OR {records.list(['expires_us'])} > {now_us}) "
            f"RETURNING {records.list((*after_seconds, 'id'))}"
        )


def claimed_record(change: Change, **head: Any) -> Record:
    """Return the record of a first start as its claim leaves it."""
    return _BLANK.having(**change.fields, **head)


def _names_written(after_seconds: Iterable[str]) -> tuple[str, ...]:
    return (*_WRITTEN, *(name for name in after_seconds if name not in _WRITTEN))


def _kept(retention_seconds: float | None) -> list[int]:
    return [] if retention_seconds is None else [max(1, to_us(retention_seconds))]
