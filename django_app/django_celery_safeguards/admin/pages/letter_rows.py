"""A row's letter, read once for each row that was fetched, and what can be done about it."""

import time
from dataclasses import dataclass
from typing import Any

from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.pipeline.indexing import shown
from celery_safeguards.replay.outlook import Outlook, outlook, resume_outlook, unreadable
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.celery_apps import current_app_with_tasks


@dataclass(frozen=True, slots=True)
class Reading:
    """A letter, or why there is none."""

    letter: Letter | None
    problem: str = ""


def reading_of(row: Any) -> Reading:
    """Return what a row of `DeadLetter` holds."""
    found: Reading | None = getattr(row, "_safeguards_reading", None)
    if found is None:
        try:
            found = Reading(Letter.from_json(row.letter))
        except LetterUnreadable as error:
            found = Reading(None, str(error))
        row._safeguards_reading = found  # noqa: SLF001 - Django asks for each field of a page by itself
    return found


def letter_of(row: Any) -> Letter:
    """
    Return the letter of a row that is known to hold one.

    Raises:
        LetterUnreadable: it does not.

    """
    reading = reading_of(row)
    if reading.letter is None:
        raise LetterUnreadable(reading.problem)
    return reading.letter


def letter_id_of(row: Any) -> str:
    """Return a letter's id as it is; of one that cannot be read what its row shows."""
    letter = reading_of(row).letter
    return letter.id if letter is not None else str(row.letter_id)


def seen_letter_of(row: Any) -> Letter:
    """
    Return the letter of a row as a person may see it; see `letter_of`.

    Raises:
        LetterUnreadable: the row holds none.

    """
    found: Letter | None = getattr(row, "_safeguards_seen", None)
    if found is None:
        app = current_app_with_tasks()
        found = row._safeguards_seen = shown(Wiring.of(app), letter_of(row), app.tasks)  # noqa: SLF001 - see above
    return found


def let_go(row: Any) -> None:
    """Forget a row's letter again: five hundred of them at once may be gigabytes."""
    for name in ("letter", "_safeguards_reading", "_safeguards_outlook", "_safeguards_seen"):
        row.__dict__.pop(name, None)


def outlook_of(row: Any) -> Outlook:
    """Return what sending a letter again would do: by a replay, or by resuming one that was cut short."""
    found: Outlook | None = getattr(row, "_safeguards_outlook", None)
    if found is None:
        app, reading = current_app_with_tasks(), reading_of(row)
        if reading.letter is None:
            found = unreadable(reading.problem)
        elif reading.letter.state == "replaying":
            found = resume_outlook(app, reading.letter)
        else:
            found = outlook(app, reading.letter, time.time())
        row._safeguards_outlook = found  # noqa: SLF001 - see above
    return found
