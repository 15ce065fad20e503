"""
The record of one idempotency key: who holds it, how often it was started, how it ended.

    (none) --admit--> in_progress --settle--> done
                      in_progress --settle--> retry_due --admit, when due--> in_progress
                      in_progress --admit, lapsed or owner seen to die, by `on_unknown`--> in_progress (new fence)
                      in_progress --settle, or admit--> dying --letter written--> dead | quarantined
                                                                                  dead --replay--> in_progress

The lease is a field in the server's time, never the key's time to live: a record that vanished with its lease would
read as "never started". Owner and fence name one claim; every write is compared with them, not with a clock. The fence
is max(last + 1, server time in microseconds), so it never goes back, not even after the store was wiped.

Stored, a record is one text. A head line holds what stores compare and set, separated by blanks: format, state, owner,
fence, rev, lease_until_us, lost_us, series_began_us, not_before_us, doubt_us, asking. Then the body: all else, as JSON.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.printable import clean
from celery_safeguards.stored_types import require_types

FORMAT = 1


class RecordUnreadable(StoreUnavailable):
    """Raised when a stored record is damaged: nobody knows what its work did, and its message is put off."""


class RecordTooNew(RecordUnreadable):
    """Raised when a newer version wrote a record: for this worker it is unavailable, and its message is put off."""


class State(StrEnum):
    """Where a record stands. `dying` is a burial whose letter is not confirmed yet."""

    IN_PROGRESS = "in_progress"
    RETRY_DUE = "retry_due"
    DYING = "dying"
    DEAD = "dead"
    QUARANTINED = "quarantined"
    DONE = "done"


class ResultForm(StrEnum):
    """What a done record holds of its result."""

    STORED = "stored"
    WITHHELD = "withheld"
    """The task asked for `store_result=False`, or it was erased."""
    IGNORED = "ignored"
    """The body ended its delivery by `Ignore`."""
    TOO_LARGE = "too_large"
    NOT_ENCODABLE = "not_encodable"


@dataclass(frozen=True, kw_only=True)
class Record:
    """
    Everything known of one key. Times are the store's, in microseconds; 0 means never.

    `rev` grows with every write, renewals included: a decision taken on a record is written only if nothing moved.
    """

    state: State
    rev: int = 0
    format: int = FORMAT
    scope: str = ""
    key: str = ""
    task: str = ""
    owner: str = ""
    fence: int = 0
    lease_until_us: int = 0
    lost_us: int = 0
    """When the main process of its worker saw the owner die."""
    asking: bool = False
    """The claim is held to ask `verify`; the body was not started under it."""
    asked: int = 0
    """How often `verify` gave no clear answer on this doubt."""
    attempt: int = 0
    """Starts of the body in this series."""
    lost_starts: int = 0
    """Starts without a settled outcome in this series."""
    series_began_us: int = 0
    not_before_us: int = 0
    effect_possible: bool = False
    """Whether the last attempt may have had an outside effect, unless it is known to be done."""
    doubt_us: int = 0
    """When that attempt ended ambiguously or was lost; `verify` waits from here."""
    task_id: str = ""
    series: tuple[str, ...] = ()
    """The task ids that ever started this key: each of them has had its series."""
    fingerprint: str = ""
    result_form: ResultForm = ResultForm.STORED
    result: str = ""
    continued_by: tuple[str, ...] = ()
    """The task ids whose links, chain and chord have been sent what follows."""
    continuing: str = ""
    """The task id for which it is being sent, until the lease ends."""
    publishes: tuple[str, ...] = ()
    """Messages of an atomic body that are not known to be sent; see `pipeline/publishes.py`."""
    steps: Mapping[str, Any] = field(default_factory=dict)
    """Steps of the body by name: their result as JSON text, or None while begun and not known to have ended."""
    failure: Mapping[str, Any] = field(default_factory=dict)
    attempt_history: tuple[str, ...] = ()
    """The failed attempts of this series, the newest last; see `ledger.past`."""
    released: bool = False
    """Its letter was discarded: a new publication begins a new series."""
    letter_id: str = ""
    letter: str = ""
    """While dying: the letter to write, whole, so that anybody can finish the burial."""
    final: str = ""
    """While dying: what the record becomes."""

    def body(self) -> str:
        """Return what only its writers read, as JSON: every field that is not in the head line."""
        return to_json({name: value for name, value in vars(self).items() if name not in _IN_HEAD})

    @classmethod
    def from_text(cls, text: str) -> "Record":
        """
        Read a stored record: its head line, then its body. Fields of a newer minor version are left out.

        Raises:
            RecordTooNew: the record was written in a newer format than this version can read.
            RecordUnreadable: it is damaged.

        """
        try:
            head, _, body = text.partition("\n")
            format_, *words = head.split(" ")
            if int(format_) > FORMAT:
                raise RecordTooNew(f"record format {format_} is newer than {FORMAT}: upgrade this worker")
            state, owner, *times, asking = words
            made = object.__new__(cls)
            made.__dict__.update(_known(json.loads(body)))
            made.__dict__.update(zip(_WHOLE_NUMBERS, map(int, times), strict=True))
            made.__dict__.update(state=State(state), owner=owner if owner != _NOBODY else "", asking=asking == "1")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise RecordUnreadable(
                f"the record is damaged: {type(error).__name__}: {clean(str(error), 200)}"
            ) from error
        return made

    def having(self, **fields: Any) -> "Record":
        """Return the record with other values: `dataclasses.replace` at a tenth of the time, on every task's way."""
        made = object.__new__(Record)
        made.__dict__.update(self.__dict__, **fields)
        return made

    def is_live(self, now_us: int) -> bool:
        """Whether its owner holds the claim: the lease runs, and nobody saw the owner die."""
        return self.state is State.IN_PROGRESS and not self.lost_us and now_us < self.lease_until_us


# What an instance does not hold, its class does: a record is read, changed and written with what was set alone.
Record.steps = Record.failure = MappingProxyType({})

_NOBODY = "-"
_WHOLE_NUMBERS = ("fence", "rev", "lease_until_us", "lost_us", "series_began_us", "not_before_us", "doubt_us")
_IN_HEAD = frozenset({"format", "state", "owner", "asking", *_WHOLE_NUMBERS})
_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("series", "continued_by", "publishes", "attempt_history"), tuple),
    "result_form": ResultForm,
}
_KNOWN = frozenset(each.name for each in fields(Record)) - _IN_HEAD
_encode = json.JSONEncoder(separators=(",", ":")).encode
_encode_as_it_is = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def to_json(value: Mapping[str, Any]) -> str:
    """Return JSON that every store can read."""
    text = _encode(value)
    # Half a surrogate pair, as a broken text of a user's has it, is JSON for Python alone: no store could read it.
    return text if "\\ud" not in text else _encode_as_it_is(value).encode(errors="replace").decode()


def without_content(record: Record) -> dict[str, Any]:
    """Return the fields to write so that a record which is over keeps no result and no text; none: it has none."""
    changed: dict[str, Any] = {}
    if record.failure.keys() - {"kind"}:
        changed["failure"] = {name: value for name, value in record.failure.items() if name == "kind"}
    if record.state is State.DONE:
        if record.result_form is ResultForm.STORED and record.result not in {"", "null"}:
            changed |= {"result": "", "result_form": ResultForm.WITHHELD}
        if record.steps:
            # Of dead work they stay: they hold back a second effect.
            changed["steps"] = {}
    return changed


def body_of(changed_fields: Mapping[str, Any]) -> str:
    """Return the part of a change that belongs to a record's body, as JSON."""
    return to_json({name: value for name, value in changed_fields.items() if name not in _IN_HEAD})


def _known(stored: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in stored.items() if name in _KNOWN}
    require_types(Record, known)
    for name, read in _READ.items():
        if name in known:
            known[name] = read(known[name])
    return known


def record_or_error(text: str) -> Record | RecordUnreadable:
    """Return a record, or why it cannot be read: for who reads several."""
    try:
        return Record.from_text(text)
    except RecordUnreadable as error:
        return error
