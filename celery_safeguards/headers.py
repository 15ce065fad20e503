"""
The headers a guarded message carries, prefix `sg_`.

They travel with every copy of a message (retry, deferral, replay). Other keys exist only inside a worker, between the
main process and the pool's child: `OWNER`, `WIRE`, `ALIVE` and, on the hardened transport, the delivery's `TAG` and
whether it `CALLS` who waits for its end. They never go out again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

VERSION = "sg_v"
"""Format of these headers; 1 today."""
KEY = "sg_key"
"""The idempotency key, rendered once, at first publish."""
FINGERPRINT = "sg_fp"
"""Digest of the arguments at first publish: same key with another fingerprint is a conflict."""
EPOCH = "sg_epoch"
"""The store's epoch at publish: another epoch at admit proves that the store has forgotten."""
SEEN = "sg_seen"
"""The highest claim fence that admit has shown this message's lineage; above 0 it proves an earlier start."""
DEFERRALS = "sg_deferrals"
"""How often this message was put off."""
DEFERRED_SINCE = "sg_deferred_since"
"""Wall time of the first deferral, seconds."""
BEGAN = "sg_began"
"""Wall time at which an unkeyed message's first attempt failed, seconds; a keyed one has it in its record."""
ATTEMPTS = "sg_attempts"
"""The failed attempts of an unkeyed message, without what the errors said; see `attempts`."""
LETTER = "sg_letter"
"""The dead letter that a replay came from."""
EDITED_FROM = "sg_edited_from"
"""The dead letter of which this message is an edited copy: work of its own, with a letter of its own if it dies."""
VERDICT = "sg_verdict"
"""What a person said of quarantined work: `{"happened": true, "result": ...}` or `{"happened": false}`."""

OWNER = "sg_owner"
WIRE = "sg_wire"
TAG = "sg_tag"
CALLS = "sg_calls"
ALIVE = "sg_alive"
"""How many other deliveries of this id run in this worker: their starts are not lost."""
_INSIDE_ONLY = frozenset({OWNER, WIRE, TAG, CALLS, ALIVE})
_OF_ONE_MESSAGE = _INSIDE_ONLY | {
    VERSION, KEY, FINGERPRINT, EPOCH, SEEN, DEFERRALS, DEFERRED_SINCE, BEGAN, ATTEMPTS, LETTER, VERDICT
}  # fmt: skip

FORMAT = 1


class FixedHeaders(dict[str, Any]):
    """Headers of a publish whose key was worked out at an earlier call: it is not worked out again."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a message says of its own past."""

    key: str | None = None
    fingerprint: str | None = None
    epoch: str | None = None
    seen: int = 0
    deferrals: int = 0
    deferred_since: float | None = None
    began: float | None = None
    attempts: tuple[str, ...] = ()
    letter_id: str | None = None
    edited_from: str | None = None
    verdict: Mapping[str, Any] | None = None

    @classmethod
    def from_headers(cls, headers: Mapping[str, Any] | None) -> "Lineage":
        """Read the headers of a message; what is absent or of the wrong shape proves nothing."""
        if not headers:
            return _NOTHING
        return cls(**{name: read(headers[header]) for header, name, read in _READ if header in headers})


_NOTHING = Lineage()


def outgoing(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the headers a copy of a message may carry: everything but what lives inside the worker only."""
    return {name: value for name, value in (headers or {}).items() if name not in _INSIDE_ONLY}


def passed_on(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the headers that a message of its own may have from another one: nothing of that one's past."""
    return {name: value for name, value in (headers or {}).items() if name not in _OF_ONE_MESSAGE}


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list | tuple) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


_READ: tuple[tuple[str, str, Callable[[object], Any]], ...] = (
    (KEY, "key", _text),
    (FINGERPRINT, "fingerprint", _text),
    (EPOCH, "epoch", _text),
    (SEEN, "seen", _whole),
    (DEFERRALS, "deferrals", _whole),
    (DEFERRED_SINCE, "deferred_since", _real),
    (BEGAN, "began", _real),
    (ATTEMPTS, "attempts", _texts),
    (LETTER, "letter_id", _text),
    (EDITED_FROM, "edited_from", _text),
    (VERDICT, "verdict", _mapping),
)
