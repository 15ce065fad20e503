"""
Edit as new: a copy of a letter's message with other arguments, another queue or another time, as work of its own.

The promise: a copy is never out without a trace, and of two people who have looked at the same letter one sends.

    check → begin_edit: the history says "edit begun", if nobody was at the letter since → publish → "edited as new"

    t0 Ann and Bob look at letter 1       t1 Ann begins an edit as task X      t2 Bob begins: `LetterChanged`
    t3 Ann's process is killed, before the broker has X or after: the history says that X was begun, no more
    t4 whoever edits next is told of X; where no key holds two messages apart, he must say that it may run twice

The line comes before the publish: the other order could lose the trace of a message that is out. So a line may tell of
a copy that was never sent, and says so where that is known ("edit not sent").

The copy is published by the task's own `apply_async`: its key, its size, its deadline and a team's own additions are
those of any first publish. It has an id of its own; its parent is the task that died, its root is that one's. It brings
`sg_edited_from`, so that a letter of its own, if it dies, leads back. The original stays as it is: whoever has sent a
copy discards it or keeps it.

Not covered: a copy and a replay of the original. They are two messages, of two keys or of none; the replay is told.
"""

import logging
import uuid
from dataclasses import dataclass
from typing import Any

from celery_safeguards.deadletter.changes import look_at, require_found, require_look
from celery_safeguards.errors import (
    ConfigurationError,
    KeyRefused,
    MessageTooLarge,
    SafeguardsError,
    StoreUnavailable,
)
from celery_safeguards.pipeline.guarding import guarded_publish
from celery_safeguards.replay.copies.copying import Prepared, prepare
from celery_safeguards.replay.copies.edit import Edit, EditRefused, in_words
from celery_safeguards.replay.copies.edit_history import EDITED, NOT_SENT
from celery_safeguards.replay.copies.masked import without_values
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)


class CopyNotPublished(SafeguardsError):
    """Raised when the broker is not known to have taken a copy; the letter's history names its task id."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A copy that is out."""

    letter_id: str
    task_id: str
    changed: tuple[str, ...]


def send_edited(
    app: Any,
    letter_id: str,
    who: str,
    edit: Edit,
    reason: str,
    *,
    look: str | None = None,
    may_run_twice: bool = False,
) -> Edited:
    """
    Send an edited copy of a letter's message, as work of its own; the letter stays.

    Args:
        app: one that knows the task.
        letter_id: an open or a discarded letter.
        who: for the letter's history.
        edit: see `prepare`.
        reason: why, for the letter's history.
        look: `look_at` of the letter as `who` has seen it; None: as it is now.
        may_run_twice: consent, where nothing holds the copy and an effect of the original apart.

    Raises:
        ConfigurationError: `who` or `reason` is empty.
        EditRefused: it cannot be sent as asked, would not run, or needs consent; nothing was sent.
        LetterChanged: something was done to the letter since it was looked at.
        LetterNotOpen: something is under way with the letter, or it is closed.
        LetterTruncated: the message is not whole.
        NoSuchLetter: no letter of that id.
        CopyNotPublished: the broker is not known to have taken it.
        StoreUnavailable: nothing was sent.

    Safe when: several people edit the same letter at once.

    """
    for name, value in (("who", who), ("reason", reason)):
        if not value.strip():
            raise ConfigurationError(f"{name}={value!r}: a copy is sent only with a name and a reason")
    wiring, task_id = Wiring.of(app), str(uuid.uuid4())
    letter = require_found(wiring.letters.get(letter_id), letter_id)
    if look is not None:
        require_look(letter, look)
    prepared = prepare(app, letter, edit)
    if prepared.consent and not may_run_twice:
        raise EditRefused(f"{prepared.consent}: say that it may run twice")
    consented = ", may run twice" if prepared.consent else ""
    detail = f"changes {in_words(prepared.changed)}{consented}: {reason}"
    # What was checked is what was looked at: a change in between is refused by this step.
    wiring.letters.begin_edit(letter_id, task_id, who, detail, look_at(letter), wiring.clock.wall_seconds())
    _publish(app, prepared, task_id, who)
    _note(wiring, letter_id, EDITED, who, f"as task {task_id}: {detail}")
    return Edited(letter_id, task_id, prepared.changed)


def _publish(app: Any, prepared: Prepared, task_id: str, who: str) -> None:
    edit, letter_id = prepared.edit, prepared.letter.id
    wiring = Wiring.of(app)
    try:
        with guarded_publish(app, prepared.task.name, is_first=True):
            prepared.task.apply_async(tuple(edit.args), dict(edit.kwargs), task_id, **prepared.options)
    except (KeyRefused, MessageTooLarge) as error:
        why = without_values(app, prepared.letter, edit, str(error))
        _note(wiring, letter_id, NOT_SENT, who, f"as task {task_id}: {why}")
        raise EditRefused(f"it was not sent: {why}") from error
    except Exception as error:
        # Whatever went wrong, from the broker to a team's own `apply_async`: the message may have arrived.
        why = without_values(app, prepared.letter, edit, repr(error))
        raise CopyNotPublished(
            f"the copy of letter {letter_id} is begun as task {task_id}, and not known to be sent: {why}. "
            "Look for that task before it is sent again"
        ) from error


def _note(wiring: Wiring, letter_id: str, what: str, who: str, detail: str) -> None:
    try:
        wiring.letters.add_note(letter_id, what, who, detail, wiring.clock.wall_seconds())
    except StoreUnavailable as error:
        # The line before tells that it was begun; what is out cannot be taken back.
        logger.warning("letter %s: %r is not in its history: %s", letter_id, f"{what} {detail}", error)
