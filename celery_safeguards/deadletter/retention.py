"""
How long letters and groups are kept: what is over for as long as the project says, everything else for ever.

| the letter is | it is kept |
|---|---|
| open, replaying, replayed | for ever: nobody knows that its work is done, and nobody has given it up |
| closed, discarded | `safeguards_letter_retention_seconds` from then on |
| archived | as what it was: putting away neither stops the time nor begins it |

The time at which a letter's work came to its end is the one that its history has of it, so nothing else needs to agree
with it. A letter that died again is open, and has none any more; its next end begins the time anew.

The race that the comparison decides, a purge against a failure:

    t0 a purge finds the letter: closed, for 91 days   t1 its work dies again: open   t2 the purge removes it
    without it: the failure of t1 is gone    with it: t2 reads the letter as it is then, and leaves it

A group goes as long after its newest failure, once no letter of it is left and people have said nothing that must stay:
it is not muted, has no note and is nobody's.

Not covered: who buries so slowly that the letter of that very failure has been closed and removed meanwhile writes it
once more, as open. The least retention is an hour.
"""

from celery_safeguards.deadletter.group import LetterGroup
from celery_safeguards.deadletter.history import MAX_HISTORY
from celery_safeguards.deadletter.letter import Letter, State
from celery_safeguards.printable import duration, when

OVER: tuple[State, ...] = ("closed", "discarded")
"""States of work that nobody waits for any more, and what histories call its end."""


def over_since(letter: Letter) -> float | None:
    """Return when the work of a letter came to its end, wall clock; None: it has not, or nobody knows when."""
    if letter.work_state not in OVER:
        return None
    ends = [entry.at_seconds for entry in letter.history if entry.what in OVER]
    if not ends and len(letter.history) == MAX_HISTORY:
        # Its end was pushed out by what was noted since: that came later, all of it.
        return letter.history[0].at_seconds
    return ends[-1] if ends else None


def is_over(letter: Letter, before_seconds: float) -> bool:
    """Whether the work of a letter came to its end before a time."""
    since = over_since(letter)
    return since is not None and since < before_seconds


def is_forgotten(group: LetterGroup, before_seconds: float) -> bool:
    """Whether a group has no letters, nothing of people's that must stay, and no failure since a time."""
    is_said = group.status == "muted" or bool(group.note) or bool(group.assignee)
    return not group.letters and not is_said and group.last_failed_seconds < before_seconds


def kept_until(letter: Letter, retention_seconds: float) -> float | None:
    """Return until when a letter is kept at least, wall clock; None: for ever. A retention of 0 is for ever."""
    since = over_since(letter)
    return None if since is None or not retention_seconds else since + retention_seconds


def left_in_words(letter: Letter, retention_seconds: float, now_seconds: float) -> str:
    """Return how long a letter is still kept, for a cell of a list."""
    until = kept_until(letter, retention_seconds)
    if until is None:
        return "for ever"
    return duration(until - now_seconds) if until > now_seconds else "until the next purge"


def kept_in_words(letter: Letter, retention_seconds: float, now_seconds: float) -> str:
    """Return how long a letter is still kept, and why."""
    until = kept_until(letter, retention_seconds)
    if until is None:
        is_unfinished = letter.work_state not in OVER
        why = f"it is {letter.work_state}" if is_unfinished else "as the settings say" if not retention_seconds else ""
        return f"for ever: {why or 'nobody knows since when it is over'}"
    if until <= now_seconds:
        return f"until the next purge: its time was over at {when(until)}"
    return f"for another {duration(until - now_seconds)}, until {when(until)}"
