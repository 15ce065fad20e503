"""
A dead letter: one failed message with everything needed to understand it and to send it again.

The promise: what failed can be replayed as it came. The letter keeps the *wire message* (body byte for byte, content
type, encoding, headers, properties); task, ids and group are copied out of it for lists only. Arguments rebuilt from
a shortened repr cannot be replayed, so none are stored.

The failures it covers:

- *Recording the failure fails.* NUL, lone surrogates, a 5 MB traceback, an exception whose `__str__` raises or that
  holds a lock: all become bounded, clean text. No exception is ever pickled.
- *Odd headers.* Whatever Celery's JSON protocol carries comes back equal (datetimes, bytes, UUIDs; tuples become
  lists, as on the wire). What it cannot carry is kept as repr and named in `WireMessage.degraded`.
- *Oversized messages.* `Letter.capped` keeps the body's first `BODY_HEAD_BYTES` bytes, its length and its SHA-256, and
  says so: a letter that is not whole refuses to be replayed.

Not covered: `id`, `key` and `scope` are kept exactly, since they name things elsewhere. A store whose columns cannot
hold a NUL cleans its own copies. Headers keep NUL and surrogates too, as ASCII escapes inside the JSON text.
"""

import base64
import hashlib
import json
import re
import traceback as tracebacks
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from kombu.utils import json as kombu_json

from celery_safeguards.errors import SafeguardsError
from celery_safeguards.headers import outgoing
from celery_safeguards.outcome import FailureKind

FORMAT = 1
BODY_HEAD_BYTES = 4_096
"""How much of its body a letter over the size cap keeps."""
MAX_HISTORY = 100
MAX_DETAIL_CHARS = 1_000
_CAPPED_TEXT_CHARS = 2_000
_CAPPED_HEADER_CHARS = 500

State = Literal["open", "replaying", "replayed", "closed", "discarded"]
STATES: tuple[State, ...] = ("open", "replaying", "replayed", "closed", "discarded")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# kombu has no annotations.
_KOMBU: Any = kombu_json
_ENCODER: Any = kombu_json.JSONEncoder()


class LetterUnreadable(SafeguardsError, ValueError):
    """Raised when stored text is no letter: damaged, or written by something else."""


class LetterTooNew(LetterUnreadable):
    """Raised when a letter was written by a newer version of this package: read it with that version."""


class LetterTruncated(SafeguardsError):
    """Raised to a replay of a letter that was over `safeguards_max_letter_bytes`: its message is not whole."""


def clean_text(text: str, max_chars: int, *, keep: Literal["first", "last"] = "first") -> str:
    """
    Return text that every store can hold, of bounded length.

    NUL and lone surrogates become U+FFFD, one for one.

    Args:
        text: any text.
        max_chars: > 0; the mark that tells how much was dropped is counted in.
        keep: `first` for messages; `last` for tracebacks, whose end names the error.

    """
    if len(text) > max_chars:
        # The mark's own length depends on the number it names: measured with the longest number possible.
        room = max_chars - len(f"[{len(text)} characters dropped]") - 1
        if room <= 0:
            text = text[:max_chars] if keep == "first" else text[-max_chars:]
        elif keep == "first":
            text = f"{text[:room]}\n[{len(text) - room} characters dropped]"
        else:
            text = f"[{len(text) - room} characters dropped]\n{text[-room:]}"
    return _UNSTORABLE.sub("\ufffd", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorText:
    """An exception as text: class path, message, traceback."""

    type: str
    message: str = ""
    traceback: str = ""


def describe_error(error: BaseException, max_message_chars: int, max_traceback_chars: int) -> ErrorText:
    """
    Return an exception as clean text, whatever its class does.

    Safe when: `__str__` or `__repr__` raises, the constructor cannot be called again, or it holds a lock or a socket.
    """
    cls = type(error)
    path = f"{cls.__module__}.{cls.__qualname__}"
    # The classes are the user's: reading them may raise anything, and a failure must be recorded all the same.
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001
        message = f"<its __str__ raises {type(second).__name__}>"
    try:
        trace = "".join(tracebacks.format_exception(error))
    except Exception as second:  # noqa: BLE001
        trace = "".join(tracebacks.format_tb(error.__traceback__)) + f"{path}: <formatting raises {type(second)}>\n"
    return ErrorText(
        type=clean_text(path, _CAPPED_TEXT_CHARS),
        message=clean_text(message, max_message_chars),
        traceback=clean_text(trace, max_traceback_chars, keep="last"),
    )


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
                carried[str(name)] = _as_carried(value, f"{place}.{name}", degraded)
            object.__setattr__(self, place, carried)
        object.__setattr__(self, "degraded", tuple(degraded))
        object.__setattr__(self, "body", _as_bytes(self.body))

    def to_plain(self) -> dict[str, Any]:
        """Return what the letter's JSON holds of it."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**plain, "body": base64.b64encode(self.body).decode("ascii")}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the message of a letter's JSON."""
        given = _known(cls, plain)
        given["body"] = base64.b64decode(plain["body"], validate=True)
        given["degraded"] = tuple(plain["degraded"])
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
                if len(_dumps(value)) > _CAPPED_HEADER_CHARS:
                    cut[place][name] = clean_text(_safe_repr(value), _CAPPED_HEADER_CHARS)
                    degraded[f"{place}.{name}"] = None
        return replace(self, **cut, truncated=True, degraded=tuple(degraded))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """Something that was done to a letter: when (wall clock), what, by whom (None: by the system), and details."""

    at_seconds: float
    what: str
    who: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", clean_text(self.what, MAX_DETAIL_CHARS))
        object.__setattr__(self, "detail", clean_text(self.detail, MAX_DETAIL_CHARS))
        if self.who is not None:
            object.__setattr__(self, "who", clean_text(self.who, MAX_DETAIL_CHARS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """
    One dead letter, format version 1.

    The ids, the group and the chord are for lists and warnings only; a replay is made from `wire`.
    """

    id: str
    task: str
    task_id: str
    wire: WireMessage
    kind: FailureKind
    effect_possible: bool
    reason: str
    """Why no further attempt is made, such as `attempt 4 of 4`."""

    first_seen_seconds: float
    last_failed_seconds: float
    """Both wall clock."""

    key: str | None = None
    scope: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    chord: bool | str | None = None
    error_type: str = ""
    error_message: str = ""
    traceback: str = ""
    attempts: int = 0
    deliveries: int = 0
    lost_starts: int = 0
    host: str = ""
    pid: int = 0
    burial: int = 0
    """Fence of the burial; 0 for work without an idempotency key."""

    state: State = "open"
    replay_task_id: str | None = None
    """Allocated when a replay begins; every resend of that replay uses it."""

    history: tuple[HistoryEntry, ...] = ()

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("id='': a letter without an id would hide all others without one")
        for name in _TEXTS:
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, _UNSTORABLE.sub("\ufffd", value))
        object.__setattr__(self, "history", tuple(self.history)[-MAX_HISTORY:])

    @classmethod
    def capture(cls, *, wire: WireMessage, error: ErrorText, **given: Any) -> Self:
        """
        Return the letter of a failed message, with task, ids and group read from its headers.

        Args:
            wire: the message as it was received.
            error: from `describe_error`.
            given: every other field of `Letter`; a field given here is not read from the headers.

        """
        read = {
            "task": _text(wire.headers.get("task")) or "",
            "task_id": _text(wire.headers.get("id")) or _text(wire.properties.get("correlation_id")) or "",
            "root_id": _text(wire.headers.get("root_id")),
            "parent_id": _text(wire.headers.get("parent_id")),
            "group_id": _text(wire.headers.get("group")),
            "error_type": error.type,
            "error_message": error.message,
            "traceback": error.traceback,
        }
        return cls(wire=wire, **{**read, **given})

    def to_json(self) -> str:
        """Return it as ASCII text, format version 1."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain["wire"] = self.wire.to_plain()
        plain["history"] = [[entry.at_seconds, entry.what, entry.who, entry.detail] for entry in self.history]
        return _dumps({"v": FORMAT, **plain})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """
        Read a letter.

        Raises:
            LetterTooNew: the text has a format version above this package's.
            LetterUnreadable: the text is damaged or is no letter.

        """
        try:
            plain = _loads(text)
            version = plain["v"]
            if version > FORMAT:
                raise LetterTooNew(
                    f"letter format {version!r} is newer than format {FORMAT}: upgrade celery-safeguards here"
                )
            given = _known(cls, plain)
            given["wire"] = WireMessage.from_plain(plain["wire"])
            given["kind"] = FailureKind(plain["kind"])
            given["history"] = tuple(
                HistoryEntry(at_seconds=at, what=what, who=who, detail=detail)
                for at, what, who, detail in plain["history"]
            )
            if plain["state"] not in STATES:
                raise LetterUnreadable(f"state {plain['state']!r} is none of {', '.join(STATES)}")
            return cls(**given)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, LetterUnreadable):
                raise
            raise LetterUnreadable(f"this is no letter: {type(error).__name__}: {error}") from error

    def capped(self, max_bytes: int) -> "Letter":
        """
        Return a letter whose JSON fits; one that fits already is returned as it is.

        What is worth least goes first: the traceback's beginning, then the body (a head of `BODY_HEAD_BYTES` stays),
        then large headers. From the body on, the letter cannot be replayed.

        Args:
            max_bytes: size of the JSON text; below about 20,000 the smallest letter may still be larger.

        """
        letter: Letter = self
        for shrink in (_with_short_texts, _without_body, _without_large_entries):
            if len(letter.to_json()) <= max_bytes:
                break
            letter = shrink(letter)
        return letter

    def noted(self, entry: HistoryEntry) -> Self:
        """Return it with one more line of history; the oldest beyond `MAX_HISTORY` is dropped."""
        return replace(self, history=(*self.history, entry))

    def require_whole(self) -> None:
        """
        Refuse a letter whose message was cut.

        Raises:
            LetterTruncated: naming the setting that cut it.

        """
        if self.wire.truncated:
            raise LetterTruncated(
                f"letter {self.id} cannot be replayed: its message was larger than safeguards_max_letter_bytes and "
                f"only the beginning was kept (body of {self.wire.body_bytes} bytes, sha256 {self.wire.body_sha256}). "
                f"Publish the work anew, and raise safeguards_max_letter_bytes for such messages"
            )


_TEXTS = (
    *("task", "task_id", "root_id", "parent_id", "group_id", "chord"),
    *("error_type", "error_message", "traceback", "reason", "host"),
)


def _with_short_texts(letter: Letter) -> Letter:
    return replace(
        letter,
        error_message=clean_text(letter.error_message, _CAPPED_TEXT_CHARS),
        traceback=clean_text(letter.traceback, _CAPPED_TEXT_CHARS, keep="last"),
    )


def _without_body(letter: Letter) -> Letter:
    return replace(letter, wire=letter.wire.without_body())


def _without_large_entries(letter: Letter) -> Letter:
    return replace(letter, wire=letter.wire.without_large_entries())


def _as_carried(value: Any, place: str, degraded: dict[str, None]) -> Any:
    """Return what a reader of the JSON text will see of a value; note its place where that is not the value."""

    def encode(odd: Any) -> Any:
        try:
            return _ENCODER.default(odd)
        except Exception:  # noqa: BLE001  a user's `__json__` may raise anything
            degraded[place] = None
            return _safe_repr(odd)

    # Keys that JSON cannot have, circles, and nesting deeper than the interpreter goes.
    try:
        return _loads(_dumps(value, encode))
    except (TypeError, ValueError, RecursionError):
        degraded[place] = None
        return _safe_repr(value)


def _revived(plain: dict[str, Any]) -> Any:
    """Decode kombu's typed envelopes; one of a type that this process does not know stays as it is."""
    try:
        return _KOMBU.object_hook(plain)
    except Exception:  # noqa: BLE001  decoders are registered by users
        return plain


def _dumps(value: Any, encode: Callable[[Any], Any] = _ENCODER.default) -> str:
    return json.dumps(value, default=encode, ensure_ascii=True, separators=(",", ":"))


def _loads(text: str) -> Any:
    return _KOMBU.loads(text, object_hook=_revived)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  the class is the user's
        return f"<{type(value).__qualname__} whose __repr__ raises {type(error).__name__}>"


def _known(cls: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: plain[each.name] for each in fields(cls) if each.name in plain}


def _as_bytes(body: Any) -> bytes:
    # Transports hand over bytes, a view of a buffer, or text that they have decoded already.
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
