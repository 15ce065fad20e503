"""
What a letter's history says of its edited copies.

    edit begun  ──▶  edited as new      it is out
                └─▶  edit not sent      it is not
                └─▶  (nothing)          nobody knows: whoever began it was killed, or the broker gave no answer
"""

import re

from celery_safeguards.deadletter.changes import EDIT_BEGUN
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.printable import when

EDITED = "edited as new"
NOT_SENT = "edit not sent"
_TASK_OF = re.compile(r"as task (\S+?)(?::|$)")


def copies_of(letter: Letter) -> list[tuple[HistoryEntry, str, bool]]:
    """Return each edited copy of a letter: when and by whom it was begun, its task id, and whether it is surely out."""
    ended = {_task_id_of(entry): entry.what for entry in letter.history if entry.what in {EDITED, NOT_SENT}}
    begun = [(entry, _task_id_of(entry)) for entry in letter.history if entry.what == EDIT_BEGUN]
    return [(entry, id_, ended.get(id_) == EDITED) for entry, id_ in begun if ended.get(id_) != NOT_SENT]


def copies_in_words(letter: Letter) -> tuple[str, ...]:
    """Return the edited copies of a letter, for whoever is about to send something of it."""
    return tuple(
        f"{'an edited copy is out' if is_out else 'an edited copy may be out: nobody knows whether it was sent'}, "
        f"as task {task_id}, by {entry.who} at {when(entry.at_seconds)}"
        for entry, task_id, is_out in copies_of(letter)
    )


def _task_id_of(entry: HistoryEntry) -> str:
    found = _TASK_OF.match(entry.detail)
    return found[1] if found else ""
