"""
A replay job made: which letters, taken down before the first is sent.

The letters are sent in the order in which they failed first, or last: the oldest first. What fails later than this
moment is not of the job; what fails again is another failure.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.picked import Picked
from celery_safeguards.outcome import FailureKind
from celery_safeguards.wiring import Wiring

_LETTERS_A_TRIP = 50
_LEAST_STOP = 10
_PURGED_WITH_ONE = 100


class NothingChosen(SafeguardsError):
    """Raised when there is no letter to replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    Which open letters: those named, or all that match.

    Attributes:
        letter_ids: these and no others, in this order; None: those that match the rest.
        fingerprint: of one group.
        task: of one task.
        kind: of one kind of failure.

    """

    letter_ids: tuple[str, ...] | None = None
    fingerprint: str | None = None
    task: str | None = None
    kind: FailureKind | None = None

    def __str__(self) -> str:
        if self.letter_ids is not None:
            return "chosen by its id" if len(self.letter_ids) == 1 else "chosen by their ids"
        given = (("group", self.fingerprint), ("task", self.task), ("kind", self.kind))
        said = ", ".join(f"{name} {value}" for name, value in given if value)
        return f"open letters of {said}" if said else "all open letters"

    def missing(self, app: Any) -> tuple[str, ...]:
        """Return the ids of those named that are not there, or cannot be read. Raises `StoreUnavailable`."""
        return tuple(each for each in dict.fromkeys(self.letter_ids or ()) if _read(app, each) is None)

    def letters(self, app: Any) -> Iterator[Letter]:
        """Return the letters that are open now and can be read, those that match the newest first."""
        store = Wiring.of(app).letters
        if self.letter_ids is not None:
            for letter_id in dict.fromkeys(self.letter_ids):
                letter = _read(app, letter_id)
                if letter is not None:
                    yield letter
            return
        cursor: str | None = None
        while True:
            page = store.list(
                limit=_LETTERS_A_TRIP,
                before=cursor,
                state="open",
                task=self.task,
                kind=self.kind,
                fingerprint=self.fingerprint,
            )
            yield from page.letters
            cursor = page.next_cursor
            if cursor is None:
                return


Order = Literal["first_seen", "last_failed"]
ORDERS: tuple[Order, ...] = ("first_seen", "last_failed")


def make_job(
    app: Any, choice: Choice, who: str, *, order: Order = "first_seen", stop_at: int | None = None, **options: Any
) -> ReplayJob:
    """
    Take letters down and keep them as a job, which `run_job` then runs.

    Args:
        app: see `replay`.
        choice: which letters.
        who: for each letter's history.
        order: of the letters that match, the oldest first; those given by their ids keep their order.
        stop_at: see `ReplayJob`; None: a tenth of the letters, and not before 10.
        options: of `ReplayJob`: reason, per_second, at_once, canary, may_run_twice.

    Raises:
        ConfigurationError: an option cannot hold.
        NothingChosen: there is no such letter.
        JobUnderWay: the group has a job that is not over.

    """
    wiring = Wiring.of(app)
    now = wiring.clock.wall_seconds()
    made: dict[str, Any] = {"id": uuid.uuid4().hex, "who": who, "chosen": str(choice), **options}
    made |= {"created_seconds": now, "changed_seconds": now, "fingerprint": choice.fingerprint or ""}
    # Refused before a long walk, not after it.
    ReplayJob(total=0, stop_at=stop_at or 0, **made)
    letters = [(letter.first_seen_seconds, _picked(letter)) for letter in choice.letters(app)]
    if not letters:
        raise NothingChosen(f"{choice}: there are none")
    if choice.letter_ids is None:
        letters.reverse()
        if order == "first_seen":
            letters.sort(key=lambda seen_and_picked: seen_and_picked[0])
    stop_at = max(_LEAST_STOP, len(letters) // 10) if stop_at is None else stop_at
    job = ReplayJob(total=len(letters), stop_at=stop_at, **made)
    # A hundred old ones go with each new one: so nobody has to remember it.
    wiring.jobs.purge(now - wiring.settings.job_retention_seconds, _PURGED_WITH_ONE)
    wiring.jobs.create(job, [picked for _, picked in letters])
    return job


def _picked(letter: Letter) -> Picked:
    return Picked(letter.id, letter.last_failed_seconds)


def named(letter_ids: Iterable[str]) -> Choice:
    """Return the choice of letters by their ids."""
    return Choice(letter_ids=tuple(letter_ids))


def _read(app: Any, letter_id: str) -> Letter | None:
    try:
        return Wiring.of(app).letters.get(letter_id)
    except LetterUnreadable:
        return None
