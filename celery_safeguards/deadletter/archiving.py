"""
A letter put away, and brought back: by compare-and-set, as every step of its life.

| was | archived | a success of the work | the work dies again | restored |
|---|---|---|---|---|
| open, replayed | yes | closed | open | where it was |
| closed, discarded | yes | stays archived | open, where `bury` would reopen it | where it was |
| replaying | refused: a message is about to leave | | | |

Archiving gives nothing up. An open letter that was put away still holds its idempotency key, so that nobody publishes
its work a second time beside it; who means to give the work up discards it.
"""

from dataclasses import replace

from celery_safeguards.deadletter.changes import Change, or_now, require_said, require_state
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter, State
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.errors import ConfigurationError

ARCHIVABLE: tuple[State, ...] = ("open", "replayed", "closed", "discarded")
_ARCHIVED: State = "archived"


def archiving(who: str, reason: str, at_seconds: float | None) -> Change:
    """Put a letter away, unless a replay of it is under way or somebody has done so."""
    require_said(_ARCHIVED, who, reason)
    entry = HistoryEntry(at_seconds=or_now(at_seconds), what=_ARCHIVED, who=who, detail=reason)

    def change(stored: Letter) -> Letter:
        if stored.state == _ARCHIVED:
            last = next((each for each in reversed(stored.history) if each.what == _ARCHIVED), None)
            if last == entry:
                # The answer to this very step was lost, and it is made again.
                return stored
            raise LetterNotOpen(stored.id, stored.state, hint=f"by {last.who}, {last.detail}" if last else "")
        require_state(stored, *ARCHIVABLE)
        return replace(stored.noted(entry), state=_ARCHIVED, archived_from=stored.state)

    return change


def restoring(who: str, reason: str, at_seconds: float | None) -> Change:
    """Bring an archived letter back; the reason may be empty."""
    if not who.strip():
        raise ConfigurationError(f"who={who!r}: a letter is restored under a name")

    def change(stored: Letter) -> Letter:
        require_state(stored, "archived")
        back = stored.work_state
        detail = f"to {back}: {reason}" if reason.strip() else f"to {back}"
        entry = HistoryEntry(at_seconds=or_now(at_seconds), what="restored", who=who, detail=detail)
        return replace(stored.noted(entry), state=back, archived_from=None)

    return change
