"""
The complete message as the broker carried it, JSON-safe without losing what Celery's JSON protocol carries.

Whatever that protocol carries comes back equal (datetimes, bytes, UUIDs; tuples become lists, as on the wire). What it
cannot carry is kept as repr and named in `WireMessage.degraded`.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from kombu.utils import json as kombu_json

from celery_safeguards.deadletter.text import clean_text
from celery_safeguards.headers import outgoing
from celery_safeguards.stored_types import known_fields, names_of_fields, require_types

BODY_HEAD_BYTES = 4_096
"""How much of its body a letter over the size cap keeps."""
_CAPPED_HEADER_CHARS = 500
_KOMBU: Any = kombu_json
_ENCODER: Any = kombu_json.JSONEncoder()

_OF_STRANGERS = frozenset({"content_type", "content_encoding"})
_CARRIED = frozenset({str, float, bool})
"""Of these exactly, and of nothing that is derived from them, the JSON text is read as what it was."""

_INT_BITS = 64
"""A number with thousands of digits has no text (`sys.set_int_max_str_digits`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireMessage:
    """
    The complete message as the broker carried it.

    Construction makes the three mappings JSON-safe and drops the headers that live inside the worker only, so every
    instance can be written.
    """

    body: bytes
    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    delivery_info: Mapping[str, Any] = field(default_factory=dict)
    """Exchange, routing key, priority."""

    degraded: tuple[str, ...] = ()
    """Entries that JSON cannot carry and that are kept as repr, such as `headers.tenant`."""

    truncated: bool = False
    """The message is not whole: `body` is its head only, or large headers were cut."""

    body_bytes: int | None = None
    """Length of the whole body, where it was cut."""

    body_sha256: str | None = None

    def __post_init__(self) -> None:
        degraded = dict.fromkeys(self.degraded)
        for place in ("headers", "properties", "delivery_info"):
            carried: dict[str, Any] = {}
            for name, value in outgoing(getattr(self, place)).items():
                carried[str(name)] = as_carried(value, f"{place}.{name}", degraded)
            object.__setattr__(self, place, carried)
        object.__setattr__(self, "degraded", tuple(degraded))
        object.__setattr__(self, "body", _as_bytes(self.body))

    def to_plain(self) -> dict[str, Any]:
        """Return what the letter's JSON holds of it."""
        plain = {name: getattr(self, name) for name in names_of_fields(type(self))}
        return {**plain, "body": base64.b64encode(self.body).decode("ascii")}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the message of a letter's JSON."""
        given = known_fields(cls, plain)
        given["body"] = base64.b64decode(plain["body"], validate=True)
        # What type of content it is of, a stranger has said.
        require_types(cls, {name: value for name, value in given.items() if name not in _OF_STRANGERS})
        return cls(**given)

    def without_body(self) -> Self:
        """Return it with the body's head, length and digest in place of the body."""
        if self.body_sha256 is not None:
            return self
        return replace(
            self,
            truncated=True,
            body=self.body[:BODY_HEAD_BYTES],
            body_bytes=len(self.body),
            body_sha256=hashlib.sha256(self.body).hexdigest(),
        )

    def without_large_entries(self) -> Self:
        """Return it with every long header and property cut to a piece of its repr, and named in `degraded`."""
        cut: dict[str, Any] = {}
        degraded = dict.fromkeys(self.degraded)
        for place in ("headers", "properties", "delivery_info"):
            cut[place] = dict(getattr(self, place))
            for name, value in cut[place].items():
                if len(dumps(value)) > _CAPPED_HEADER_CHARS:
                    cut[place][name] = clean_text(safe_repr(value), _CAPPED_HEADER_CHARS)
                    degraded[f"{place}.{name}"] = None
        return replace(self, **cut, truncated=True, degraded=tuple(degraded))


def as_carried(value: Any, place: str, degraded: dict[str, None]) -> Any:
    """Return what a reader of the JSON text will see of a value; note its place where that is not the value."""
    if value is None or type(value) in _CARRIED or (type(value) is int and value.bit_length() < _INT_BITS):
        return value

    def encode(odd: Any) -> Any:
        try:
            return _ENCODER.default(odd)
        except Exception:  # noqa: BLE001  a user's `__json__` may raise anything
            degraded[place] = None
            return safe_repr(odd)

    # Keys that JSON cannot have, circles, and nesting deeper than the interpreter goes.
    try:
        return loads(dumps(value, encode))
    except (TypeError, ValueError, RecursionError):
        degraded[place] = None
        return safe_repr(value)


def _revived(plain: dict[str, Any]) -> Any:
    """Decode kombu's typed envelopes; one of a type that this process does not know stays as it is."""
    try:
        return _KOMBU.object_hook(plain)
    except Exception:  # noqa: BLE001  decoders are registered by users
        return plain


def dumps(value: Any, encode: Callable[[Any], Any] = _ENCODER.default) -> str:
    """Return a value as ASCII JSON text, in kombu's typed encoding."""
    return json.dumps(value, default=encode, ensure_ascii=True, separators=(",", ":"))


def loads(text: str) -> Any:
    """Read what `dumps` wrote."""
    return _KOMBU.loads(text, object_hook=_revived)


def safe_repr(value: object) -> str:
    """Return a repr, whatever the value's class does."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  the class is the user's
        return f"<{type(value).__qualname__} whose __repr__ raises {type(error).__name__}>"


def _as_bytes(body: Any) -> bytes:
    # Transports hand over bytes, a view of a buffer, or text that they have decoded already.
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
