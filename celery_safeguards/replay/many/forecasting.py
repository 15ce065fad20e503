"""
A dry run of a replay: for each letter what would become of it, and how many of each; nothing is changed.

Letters are looked at fifty at a time, with one question to each store, so that a group of a hundred thousand takes as
many trips as its replay. Asked for, the tasks' own `verify` and `ensure` are asked too, see `asking`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from celery_safeguards.deadletter.fingerprint import without_values
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.replay.expecting import Expected
from celery_safeguards.replay.many.asking import Answer, Asker
from celery_safeguards.replay.many.choosing import Choice
from celery_safeguards.replay.outlook import Outlook, outlook
from celery_safeguards.replay.plan import Need, Work
from celery_safeguards.replay.send import works_of
from celery_safeguards.wiring import Wiring

_LETTERS_TOGETHER = 50
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?")
_NEEDED = {
    Need.NOTHING: "",
    Need.VERDICT: "needs a person's word whether it has happened",
    Need.CONSENT: "needs consent to run twice",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """
    One letter of a dry run.

    Attributes:
        expected: what would become of it.
        is_sent: whether its message would go out.
        why: of what is expected, for people; a reason why it is not sent, or what its record says.
        notes: what sending it would mean.
        answers: of its task's own functions, if they were asked.

    """

    letter_id: str
    task: str
    expected: Expected
    is_sent: bool
    why: str = ""
    notes: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()


@dataclass(slots=True)
class Forecast:
    """What a replay of letters would do, counted; reasons and notes without what differs between letters."""

    letters: int = 0
    would_be_sent: int = 0
    expected: Counter[Expected] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many answers there were, by whom and which."""

    def count(self, foreseen: Foreseen) -> None:
        """Count one letter more."""
        self.letters += 1
        self.expected[foreseen.expected] += 1
        self.answers.update((each.question, each.said.value) for each in foreseen.answers)
        if foreseen.is_sent:
            self.would_be_sent += 1
            # The first names the queue, whose name may have numbers in it.
            self.notes.update([*foreseen.notes[:1], *(_alike(note) for note in foreseen.notes[1:])])
        else:
            self.refused[_alike(foreseen.why)] += 1


def _alike(said: str) -> str:
    # A moment is one value: by its numbers alone it would become "?T?:?:?+?:?".
    return without_values(_MOMENT.sub("?", said))


def foresee(
    app: Any,
    choice: Choice,
    *,
    may_run_twice: bool = False,
    most: int | None = None,
    asker: Asker | None = None,
) -> Iterator[Foreseen]:
    """
    Return for each letter what a replay would do, as it goes; nothing is changed.

    Args:
        app: one that knows its tasks, or as many as it can.
        choice: which letters.
        may_run_twice: consent, for work without a key.
        most: letters that are looked at; None: all.
        asker: asks the tasks' own functions; None: nobody is asked.

    Safe when: letters change meanwhile: then it tells what would have happened.

    """
    letters = islice(choice.letters(app), most)
    while together := list(islice(letters, _LETTERS_TOGETHER)):
        now, works = Wiring.of(app).clock.wall_seconds(), _works(app, together)
        for letter in together:
            work = works[letter.id]
            ahead = outlook(app, letter, now, work)
            answers = asker.ask(letter, work, ahead.expectation) if asker and isinstance(work, Work) else ()
            yield _foreseen(letter, ahead, answers, may_run_twice=may_run_twice)


def forecast(app: Any, choice: Choice, **options: Any) -> Forecast:
    """Return what a replay of letters would do, counted; see `foresee`."""
    found = Forecast()
    for foreseen in foresee(app, choice, **options):
        found.count(foreseen)
    return found


def _works(app: Any, letters: Sequence[Letter]) -> Mapping[str, Work | StoreUnavailable]:
    try:
        return works_of(app, letters)
    except StoreUnavailable as error:
        return {letter.id: error for letter in letters}


def _foreseen(letter: Letter, ahead: Outlook, answers: tuple[Answer, ...], *, may_run_twice: bool) -> Foreseen:
    consents = may_run_twice and ahead.needs is Need.CONSENT
    is_sent = ahead.refused is None or consents
    why = ahead.expectation.why if is_sent else _NEEDED[ahead.needs] or ahead.refused or ""
    return Foreseen(
        letter_id=letter.id,
        task=letter.task,
        expected=Expected.WOULD_RUN if consents else ahead.expectation.expected,
        is_sent=is_sent,
        why="" if consents else why,
        notes=ahead.notes,
        answers=answers,
    )
