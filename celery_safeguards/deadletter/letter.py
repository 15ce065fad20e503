"""
A dead letter: one failed message with everything needed to understand it and to send it again.

The promise: what failed can be replayed as it came. The letter keeps the *wire message* (body byte for byte, content
type, encoding, headers, properties); task, ids and group are copied out of it for lists only. Arguments rebuilt from
a shortened repr cannot be replayed, so none are stored.

The failures it covers:

- *Recording the failure fails.* Errors become bounded, clean text (`text.py`).
- *Odd headers.* They are kept as Celery's JSON protocol carries them (`wire.py`).
- *Oversized messages.* `Letter.capped` keeps the body's first `BODY_HEAD_BYTES` bytes, its length and its SHA-256, and
  says so: a letter that is not whole refuses to be replayed.

Not covered: `id`, `key` and `scope` are kept exactly, since they name things elsewhere. A store whose columns cannot
hold a NUL cleans its own copies. Headers keep NUL and surrogates too, as ASCII escapes inside the JSON text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from celery_safeguards.attempts import MOST_IN_LETTER, FailedAttempt, joined, read_attempts
from celery_safeguards.deadletter.fingerprint import fingerprint_of
from celery_safeguards.deadletter.history import MAX_HISTORY, HistoryEntry, history_of
from celery_safeguards.deadletter.text import ErrorText, clean_text, storable
from celery_safeguards.deadletter.wire import WireMessage, dumps, loads
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.headers import ATTEMPTS, EDITED_FROM
from celery_safeguards.outcome import FailureKind
from celery_safeguards.stored_types import known_fields, names_of_fields, require_types

FORMAT = 1
MOST_EARLIER_IDS = 20
_CAPPED_TEXT_CHARS = 2_000

State = Literal["open", "replaying", "replayed", "closed", "discarded", "archived"]
STATES: tuple[State, ...] = ("open", "replaying", "replayed", "closed", "discarded", "archived")


class LetterUnreadable(SafeguardsError, ValueError):
    """Raised when stored text is no letter: damaged, or written by something else."""


class LetterTooNew(LetterUnreadable):
    """Raised when a letter was written by a newer version of this package: read it with that version."""


class LetterTruncated(SafeguardsError):
    """Raised to a replay of a letter that was over `safeguards_max_letter_bytes`: its message is not whole."""


class LetterErased(LetterTruncated):
    """Raised to a replay or an edit of a letter whose content was erased."""


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
    fingerprint: str = ""
    """Of its failure, the same for all of one cause; made from the whole texts unless it is given."""

    earlier_task_ids: tuple[str, ...] = ()
    """Under which it has died before, the newest last: a log line of the first failure still names it."""

    terms: tuple[str, ...] = ()
    """Of its searchable arguments; see `deadletter.terms`."""

    terms_note: str = ""
    """Which of them could not be read, and why."""

    shown_error: str = ""
    """What lists and groups show of its error, redacted where the letter was written; empty: as it is."""

    shown_reason: str = ""
    """The same of its reason."""

    archived_from: State | None = None
    """Of an archived letter: the state that `restore` brings it back to."""

    erased: bool = False
    """Nothing is left of its message, its error and what people have said: see `changes.erasing`."""

    release: str = ""
    """Which version of the project's code has buried it, as `safeguards_release` names it; empty: it is not known."""

    attempt_history: tuple[FailedAttempt, ...] = ()
    """Each attempt that has failed, over all replays, the newest last; see `celery_safeguards.attempts`."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("id='': a letter without an id would hide all others without one")
        if (self.archived_from is None) is (self.state == "archived") or self.archived_from == "archived":
            raise ValueError(f"state={self.state!r}, archived_from={self.archived_from!r}: an archived letter has both")
        for name in _TEXTS:
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, storable(value))
        object.__setattr__(self, "history", tuple(self.history)[-MAX_HISTORY:])
        object.__setattr__(self, "earlier_task_ids", tuple(self.earlier_task_ids)[-MOST_EARLIER_IDS:])
        object.__setattr__(self, "terms", tuple(self.terms))
        object.__setattr__(self, "attempt_history", tuple(self.attempt_history)[-MOST_IN_LETTER:])
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", _fingerprint(self))

    @classmethod
    def capture(cls, *, wire: WireMessage, error: ErrorText, past: Sequence[FailedAttempt] = (), **given: Any) -> Self:
        """
        Return the letter of a failed message, with task, ids, group and earlier attempts read from its headers.

        Args:
            wire: the message as it was received.
            error: from `describe_error`.
            past: failed attempts that its headers do not tell of.
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
        told = read_attempts(wire.headers.get(ATTEMPTS), str(given.get("task_id", read["task_id"])))
        return cls(wire=wire, attempt_history=joined(told, past), **{**read, **given})

    @property
    def edited_from(self) -> str | None:
        """The letter of which its message is an edited copy."""
        return _text(self.wire.headers.get(EDITED_FROM))

    @property
    def work_state(self) -> State:
        """How its work stands: its state, or of an archived letter the one that it would come back to."""
        return self.archived_from or self.state

    def to_json(self) -> str:
        """Return it as ASCII text, format version 1."""
        plain = {name: getattr(self, name) for name in names_of_fields(type(self))}
        plain["wire"] = self.wire.to_plain()
        plain["history"] = [entry.plain for entry in self.history]
        plain["attempt_history"] = [attempt.plain for attempt in self.attempt_history]
        return dumps({"v": FORMAT, **plain})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """
        Read a letter.

        Raises:
            LetterTooNew: the text has a format version above this package's.
            LetterUnreadable: the text is damaged or is no letter.

        """
        try:
            plain = loads(text)
            version = plain["v"]
            if version > FORMAT:
                raise LetterTooNew(
                    f"letter format {version!r} is newer than format {FORMAT}: upgrade celery-safeguards here"
                )
            given = known_fields(cls, plain)
            given["wire"] = WireMessage.from_plain(plain["wire"])
            given["kind"] = FailureKind(plain["kind"])
            given["history"] = history_of(plain["history"])
            given["attempt_history"] = tuple(FailedAttempt.of(each) for each in plain.get("attempt_history", ()))
            for state in (plain["state"], plain.get("archived_from") or "open"):
                if state not in STATES:
                    raise LetterUnreadable(f"state {state!r} is none of {', '.join(STATES)}")
            require_types(cls, given)
            return cls(**given)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
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
            LetterErased: there is none any more.
            LetterTruncated: naming the setting that cut it.

        """
        if self.erased:
            raise LetterErased(f"letter {self.id} was erased: nothing is left of its message")
        if self.wire.truncated:
            raise LetterTruncated(
                f"letter {self.id} cannot be replayed: its message was larger than safeguards_max_letter_bytes and "
                f"only the beginning was kept (body of {self.wire.body_bytes} bytes, sha256 {self.wire.body_sha256}). "
                f"Publish the work anew, and raise safeguards_max_letter_bytes for such messages"
            )


_TEXTS = (
    *("task", "task_id", "root_id", "parent_id", "group_id", "chord"),
    *("error_type", "error_message", "traceback", "reason", "host", "terms_note", "shown_error", "shown_reason"),
    "release",
)


def letter_or_error(text: str) -> Letter | LetterUnreadable:
    """Return a letter, or why it cannot be read: for who reads several."""
    try:
        return Letter.from_json(text)
    except LetterUnreadable as error:
        return error


def readable(found: Letter | LetterUnreadable) -> Letter:
    """
    Return what is a letter.

    Raises:
        LetterUnreadable: it is the reason why there is none.

    """
    if isinstance(found, LetterUnreadable):
        raise found
    return found


def _fingerprint(letter: Letter) -> str:
    return fingerprint_of(
        kind=letter.kind,
        task=letter.task,
        error_type=letter.error_type,
        message=letter.error_message,
        traceback=letter.traceback,
    )


def _with_short_texts(letter: Letter) -> Letter:
    return replace(
        letter,
        error_message=clean_text(letter.error_message, _CAPPED_TEXT_CHARS),
        traceback=clean_text(letter.traceback, _CAPPED_TEXT_CHARS, keep="last"),
        attempt_history=tuple(attempt.without_texts() for attempt in letter.attempt_history),
    )


def _without_body(letter: Letter) -> Letter:
    return replace(letter, wire=letter.wire.without_body())


def _without_large_entries(letter: Letter) -> Letter:
    return replace(letter, wire=letter.wire.without_large_entries())


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
