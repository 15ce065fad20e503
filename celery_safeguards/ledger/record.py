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
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from celery_safeguards.errors import StoreUnavailable

FORMAT = 1


class RecordTooNew(StoreUnavailable):
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
    """The task asked for `store_result=False`."""
    IGNORED = "ignored"
    """The body ended its delivery by `Ignore`."""
    TOO_LARGE = "too_large"
    NOT_ENCODABLE = "not_encodable"


@dataclass(frozen=True, slots=True, kw_only=True)
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
    steps: Mapping[str, Any] = field(default_factory=dict)
    """Steps of the body by name: their result as JSON text, or None while begun and not known to have ended."""
    failure: Mapping[str, Any] = field(default_factory=dict)
    released: bool = False
    """Its letter was discarded: a new publication begins a new series."""
    letter_id: str = ""
    letter: str = ""
    """While dying: the letter to write, whole, so that anybody can finish the burial."""
    final: str = ""
    """While dying: what the record becomes."""

    def to_fields(self) -> dict[str, str]:
        """Return the record as text fields, as a hash keeps them; what is at its default is left out."""
        return {
            each.name: encode(getattr(self, each.name))
            for each in fields(self)
            if each.name in _ALWAYS or getattr(self, each.name) != getattr(_BLANK, each.name)
        }

    @classmethod
    def from_fields(cls, stored: Mapping[str, str]) -> "Record":
        """
        Read a stored record; fields of a newer minor version are left out.

        Raises:
            RecordTooNew: the record was written in a newer format than this version can read.

        """
        if int(stored.get("format", FORMAT)) > FORMAT:
            raise RecordTooNew(f"record format {stored['format']} is newer than {FORMAT}: upgrade this worker")
        return cls(**{name: _DECODE[name](text) for name, text in stored.items() if name in _DECODE})

    def is_live(self, now_us: int) -> bool:
        """Whether its owner holds the claim: the lease runs, and nobody saw the owner die."""
        return self.state is State.IN_PROGRESS and not self.lost_us and now_us < self.lease_until_us


def encode(value: Any) -> str:
    """Return one field's value as text."""
    if isinstance(value, bool):
        return "1" if value else ""
    if isinstance(value, tuple | dict):
        return json.dumps(value, separators=(",", ":"), sort_keys=True)
    return str(value)


def _decoders() -> dict[str, Any]:
    by_type: dict[Any, Any] = {
        int: int,
        bool: lambda text: text == "1",
        str: str,
        State: State,
        ResultForm: ResultForm,
        tuple[str, ...]: lambda text: tuple(json.loads(text)) if text else (),
        Mapping[str, Any]: lambda text: json.loads(text) if text else {},
    }
    return {each.name: by_type[each.type] for each in fields(Record)}


_DECODE = _decoders()
_BLANK = Record(state=State.IN_PROGRESS)
_ALWAYS = frozenset({"state", "rev", "format", "owner", "fence"})
