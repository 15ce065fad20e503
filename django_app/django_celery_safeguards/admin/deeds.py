"""
What a person does to letters, without a request: the core functions that the command line calls, and what became of
each letter.

Nothing here decides whether it may be done: `replay` and the store of letters do, by compare-and-set. One letter that
is refused ends nothing but itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.deadletter.store import LetterNotOpen, NoSuchLetter
from celery_safeguards.deadletter.text import clean_text
from celery_safeguards.errors import SafeguardsError, StoreUnavailable
from celery_safeguards.policy import DidNotHappen, Happened
from celery_safeguards.replay import Fate, Result, discard, replay_many, resume
from celery_safeguards.wiring import Wiring

MAX_REASON_CHARS = 900
"""A line of a letter's history holds 1,000 characters, and a replay's begins with its task id."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one letter, in words."""

    letter_id: str
    is_done: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """
    What a person gives with what is asked for.

    Attributes:
        who: for the letter's history.
        reason: why; '' where none is asked for.
        consented: letters that may run twice.
        verdict: of letters whose outcome is unknown.

    """

    who: str
    reason: str = ""
    consented: frozenset[str] = frozenset()
    verdict: Happened | DidNotHappen | None = None


def replay_each(app: Any, letter_ids: Sequence[str], given: Given) -> Iterator[Done]:
    """Send letters again, one after the other."""
    for letter_id in letter_ids:
        asked: dict[str, Any] = {"may_run_twice": letter_id in given.consented}
        asked |= {"verdict": given.verdict, "reason": given.reason}
        yield from (_as_done(result) for result in replay_many(app, [letter_id], given.who, **asked))


def discard_each(app: Any, letter_ids: Sequence[str], given: Given) -> Iterator[Done]:
    """Give letters up, one after the other."""
    for letter_id in letter_ids:
        try:
            letter = discard(app, letter_id, given.who, given.reason)
        except (LetterNotOpen, NoSuchLetter, LetterUnreadable, StoreUnavailable) as error:
            yield Done(letter_id, False, str(error))
            continue
        # Discarding what is discarded already is no error: it finishes a release that was cut short.
        before = _discarded_by_another(letter, given)
        yield Done(letter_id, not before, before or "discarded")


def resume_each(app: Any, letter_ids: Sequence[str], given: Given) -> Iterator[Done]:
    """Send replays that were cut short again, each under the task id it has."""
    for letter_id in letter_ids:
        try:
            asked: dict[str, Any] = {"may_run_twice": letter_id in given.consented, "reason": given.reason}
            sent = resume(app, letter_id, given.who, given.verdict, **asked)
        except SafeguardsError as error:
            yield Done(letter_id, False, str(error))
        else:
            yield Done(letter_id, True, f"sent again as task {sent.task_id}")


def resolve_each(app: Any, letter_ids: Sequence[str], given: Given) -> Iterator[Done]:
    """Send letters with a person's word: by a replay, or by resuming one whose history could not keep the word."""
    for letter_id in letter_ids:
        try:
            letter = Wiring.of(app).letters.get(letter_id)
        except (LetterUnreadable, StoreUnavailable) as error:
            yield Done(letter_id, False, str(error))
            continue
        is_cut_short = letter is not None and letter.state == "replaying"
        yield from (resume_each if is_cut_short else replay_each)(app, [letter_id], given)


def _as_done(result: Result) -> Done:
    if result.fate is Fate.REPLAYED:
        return Done(result.letter_id, True, f"replayed as task {result.task_id}")
    return Done(result.letter_id, False, str(result))


def _discarded_by_another(letter: Letter, given: Given) -> str:
    last = next((each for each in reversed(letter.history) if each.what == "discarded"), None)
    if last is None or (last.who, last.detail) == (clean_text(given.who, 1_000), clean_text(given.reason, 1_000)):
        return ""
    return f"it was discarded already, by {last.who}: {last.detail}"
