"""
What a step makes of a stored letter: pure functions that every store applies under its own lock or compare-and-set.

See `deadletter.store` for the states, and for the race that `burial` decides.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from celery_safeguards.attempts import joined
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter, LetterTruncated, State
from celery_safeguards.deadletter.refusals import LetterChanged, LetterNotOpen, NoSuchLetter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import ConfigurationError

Change = Callable[[Letter], Letter | None]
"""Decides what a stored letter becomes; None: it stays as it is."""

OF_ONE_LETTER = (LetterNotOpen, LetterTruncated)
"""What a change raises of its letter alone: the others of a step go on."""
EDIT_BEGUN = "edit begun"
ERASED = "erased"
ERASABLE: tuple[State, ...] = ("replayed", "closed", "discarded")
"""Where nobody needs the letter's message any more: of a replayed one it is out."""
EDITABLE: tuple[State, ...] = ("open", "discarded")
"""Where no message of the letter's own is under way; a discarded one has given its key free."""
RESTORE_FIRST = "restore it first"


def as_buried(letter: Letter) -> Letter:
    """Return what a first burial stores: every burial begins open."""
    return replace(letter, state="open", replay_task_id=None, archived_from=None)


def reburial(letter: Letter) -> Change:
    """Reopen a stored letter if this burial is a later one."""

    def change(stored: Letter) -> Letter | None:
        # Without a fence the message itself is the proof: only the replay carries the id that the letter allocated.
        own_replay_died = (
            letter.burial == 0
            and letter.task_id == stored.replay_task_id
            and stored.work_state in {"replaying", "replayed"}
        )
        if letter.burial <= stored.burial and not own_replay_died:
            return None
        died_again = HistoryEntry(
            at_seconds=letter.last_failed_seconds,
            what="died again",
            detail=(
                f"burial {letter.burial}, task {letter.task_id}: {letter.kind}, {letter.error_type}, {letter.reason}; "
                f"was {stored.state}, last error: {stored.kind}, {stored.error_type}: {stored.error_message[:300]}"
            ),
        )
        return replace(
            as_buried(letter),
            burial=max(letter.burial, stored.burial),
            # An unfenced replay was never admitted: what was open about the effect before is open still.
            effect_possible=letter.effect_possible or (own_replay_died and stored.effect_possible),
            first_seen_seconds=stored.first_seen_seconds,
            history=(*stored.history, *letter.history, died_again),
            earlier_task_ids=_earlier_ids(stored, letter),
            attempt_history=joined(stored.attempt_history, letter.attempt_history),
        )

    return change


def _earlier_ids(stored: Letter, letter: Letter) -> tuple[str, ...]:
    """Return the task ids that a letter had, without the one that it has now."""
    ids = dict.fromkeys((*stored.earlier_task_ids, stored.task_id, stored.replay_task_id))
    return tuple(each for each in ids if each and each != letter.task_id)


def beginning_of_replay(new_task_id: str, who: str, at_seconds: float, notes: Sequence[HistoryEntry] = ()) -> Change:
    """Take an open letter for a replay; `notes` are written before its beginning."""

    def change(stored: Letter) -> Letter:
        require_state(stored, "open")
        stored.require_whole()
        entry = HistoryEntry(at_seconds=at_seconds, what="replay begun", who=who, detail=f"as task {new_task_id}")
        history = (*stored.history, *notes, entry)
        return replace(stored, history=history, state="replaying", replay_task_id=new_task_id)

    return change


def end_of_replay(task_id: str, at_seconds: float | None) -> Change:
    """Note that the replay was published."""

    def change(stored: Letter) -> Letter | None:
        if stored.state != "replaying" or stored.replay_task_id != task_id:
            return None
        entry = HistoryEntry(at_seconds=or_now(at_seconds), what="replayed", detail=f"as task {task_id}")
        return replace(stored.noted(entry), state="replayed")

    return change


def look_at(letter: Letter) -> str:
    """Return what a person has seen of a letter: another text once it died again, or anything was done to it."""
    seen = [letter.state, letter.replay_task_id, letter.burial, letter.last_failed_seconds]
    whole = json.dumps([*seen, *(entry.plain for entry in letter.history)])
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def beginning_of_edit(new_task_id: str, who: str, detail: str, look: str, at_seconds: float | None) -> Change:
    """Note an edited copy that is about to be sent, unless anything was done to the letter since it was looked at."""
    entry = HistoryEntry(
        at_seconds=or_now(at_seconds), what=EDIT_BEGUN, who=who, detail=f"as task {new_task_id}: {detail}"
    )

    def change(stored: Letter) -> Letter:
        if stored.history and stored.history[-1] == entry:
            # The answer to this very step was lost, and it is made again.
            return stored
        require_look(stored, look)
        require_state(stored, *EDITABLE)
        stored.require_whole()
        return stored.noted(entry)

    return change


def closing(note: str, at_seconds: float | None) -> Change:
    """Close a letter whose operation has succeeded, also one that was put away before it was over."""

    def change(stored: Letter) -> Letter | None:
        if stored.work_state in {"closed", "discarded"}:
            return None
        entry = HistoryEntry(at_seconds=or_now(at_seconds), what="closed", detail=f"was {stored.state}; {note}")
        return replace(stored.noted(entry), state="closed", archived_from=None)

    return change


def discarding(who: str, reason: str, at_seconds: float | None) -> Change:
    """Give up an open letter."""
    require_said("discarded", who, reason)

    def change(stored: Letter) -> Letter:
        require_state(stored, "open")
        entry = HistoryEntry(at_seconds=or_now(at_seconds), what="discarded", who=who, detail=reason)
        return replace(stored.noted(entry), state="discarded")

    return change


def erasing(who: str, reason: str, last_failed_seconds: float, at_seconds: float | None) -> Change:
    """
    Take from a letter what its message and its error said, and what people have; it stays as what it was.

    Its ids, task, kind, times, counts, state and fingerprint stay, and of its history who did what when. A replay of it
    that is out and dies again writes a new letter in its place, with all that died then.
    """
    for name, value in (("who", who), ("reason", reason)):
        if not value.strip():
            raise ConfigurationError(f"{name}={value!r}: a letter is erased only with a name and a reason")

    def change(stored: Letter) -> Letter | None:
        if stored.erased:
            return None
        if stored.state not in ERASABLE:
            raise LetterNotOpen(stored.id, stored.state, stored.replay_task_id)
        if stored.last_failed_seconds != last_failed_seconds:
            raise LetterChanged(stored.id, "died again")
        entry = HistoryEntry(at_seconds=or_now(at_seconds), what=ERASED, who=who, detail=reason)
        return replace(
            stored,
            erased=True,
            wire=WireMessage(body=b"", truncated=True),
            reason=ERASED,
            error_message="",
            traceback="",
            key=None,
            scope=None,
            chord=None,
            terms=(),
            terms_note="",
            shown_error="",
            shown_reason="",
            attempt_history=tuple(each.without_texts() for each in stored.attempt_history),
            history=(*(replace(each, detail="") for each in stored.history), entry),
        )

    return change


def noting(what: str, who: str | None, detail: str, at_seconds: float | None) -> Change:
    """Add a line of history."""
    entry = HistoryEntry(at_seconds=or_now(at_seconds), what=what, who=who, detail=detail)
    return lambda stored: stored.noted(entry)


def require_said(done: str, who: str, reason: str) -> None:
    """
    Refuse what nobody could tell of later.

    Raises:
        ConfigurationError: `who` or `reason` is empty.

    """
    for name, value in (("who", who), ("reason", reason)):
        if not value.strip():
            raise ConfigurationError(f"{name}={value!r}: a letter is {done} only with a name and a reason")


def require_state(letter: Letter, *states: State) -> None:
    """
    Refuse a letter in any other state.

    Raises:
        LetterNotOpen: with the state it is in.

    """
    if letter.state not in states:
        hint = RESTORE_FIRST if letter.state == "archived" else ""
        raise LetterNotOpen(letter.id, letter.state, letter.replay_task_id, hint)


def require_look(letter: Letter, look: str) -> None:
    """
    Refuse a letter that is not what was looked at any more.

    Raises:
        LetterChanged: with what was done last.

    """
    if look_at(letter) != look:
        last = letter.history[-1] if letter.history else None
        raise LetterChanged(letter.id, f"{last.what} by {last.who or 'the system'}" if last else "")


def require_found(letter: Letter | None, letter_id: str) -> Letter:
    """
    Refuse a letter that is not there.

    Raises:
        NoSuchLetter: it is None.

    """
    if letter is None:
        raise no_such_letter(letter_id)
    return letter


def no_such_letter(letter_id: str) -> NoSuchLetter:
    """Return the error of a letter that is not there."""
    return NoSuchLetter(f"there is no letter {letter_id}")


def to_cursor(last_failed_seconds: float, name: str) -> str:
    """Return the place of a letter in the list, as text."""
    return f"{last_failed_seconds!r}:{name}"


def from_cursor(cursor: str) -> tuple[float, str]:
    """
    Return the time and the name of a cursor.

    Raises:
        ConfigurationError: it is none.

    """
    seconds, colon, name = cursor.partition(":")
    try:
        if colon and math.isfinite(float(seconds)):
            return float(seconds), name
    except ValueError:
        pass
    raise ConfigurationError(f"before={cursor!r}: give the `next_cursor` of a page, or nothing for the first page")


def require_limit(limit: int) -> None:
    """
    Refuse a page without room.

    Raises:
        ConfigurationError: the limit is below 1.

    """
    if limit < 1:
        raise ConfigurationError(f"limit={limit!r}: a page has at least 1 letter")


def or_now(at_seconds: float | None) -> float:
    """Return a wall-clock time, now unless one is given."""
    return time.time() if at_seconds is None else at_seconds
