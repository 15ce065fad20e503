"""
What a person does to a letter, without a request: by the core functions that the command line calls as well.

Nothing here decides whether it may be done: `replay` and the store of letters do, by compare-and-set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.deadletter.refusals import LetterNotOpen, NoSuchLetter
from celery_safeguards.deadletter.text import clean_text
from celery_safeguards.errors import SafeguardsError, StoreUnavailable
from celery_safeguards.policy import DidNotHappen, Happened
from celery_safeguards.replay import Fate, NotPublished, Result, discard, replay_many, resume
from celery_safeguards.wiring import Wiring


@dataclass(frozen=True, slots=True)
class Done:
    """
    What became of one letter, in words.

    Attributes:
        is_away: whether the broker or the store did not answer, and would not answer for the next letter either.

    """

    letter_id: str
    is_done: bool
    text: str
    is_away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """
    What a person gives with what is asked for.

    Attributes:
        who: for the letter's history.
        reason: why; '' where none is asked for.
        may_run_twice: consent, for work without a key.
        verdict: of letters whose outcome is unknown.

    """

    who: str
    reason: str = ""
    may_run_twice: bool = False
    verdict: Happened | DidNotHappen | None = None


def replay_letter(app: Any, letter_id: str, given: Given) -> Done:
    """Send a letter again."""
    asked: dict[str, Any] = {"verdict": given.verdict, "reason": given.reason, "may_run_twice": given.may_run_twice}
    (result,) = replay_many(app, [letter_id], given.who, **asked)
    return _as_done(result)


def resume_letter(app: Any, letter_id: str, given: Given) -> Done:
    """Send a replay that was cut short again, under the task id that it has."""
    asked: dict[str, Any] = {"reason": given.reason, "may_run_twice": given.may_run_twice}
    try:
        sent = resume(app, letter_id, given.who, given.verdict, **asked)
    except SafeguardsError as error:
        return Done(letter_id, False, str(error), is_away=isinstance(error, NotPublished | StoreUnavailable))
    return Done(letter_id, True, f"sent again as task {sent.task_id}")


def resolve_letter(app: Any, letter_id: str, given: Given) -> Done:
    """Send a letter with a person's word: by a replay, or by resuming one whose history could not keep the word."""
    try:
        letter = Wiring.of(app).letters.get(letter_id)
    except (LetterUnreadable, StoreUnavailable) as error:
        return Done(letter_id, False, str(error), is_away=isinstance(error, StoreUnavailable))
    is_cut_short = letter is not None and letter.state == "replaying"
    return (resume_letter if is_cut_short else replay_letter)(app, letter_id, given)


def discard_letter(app: Any, letter_id: str, given: Given) -> Done:
    """Give a letter up."""
    try:
        letter = discard(app, letter_id, given.who, given.reason)
    except (LetterNotOpen, NoSuchLetter, LetterUnreadable, StoreUnavailable) as error:
        return Done(letter_id, False, str(error), is_away=isinstance(error, StoreUnavailable))
    # Discarding what is discarded already is no error: it finishes a release that was cut short.
    before = _discarded_by_another(letter, given)
    return Done(letter_id, not before, before or "discarded")


def archive_letter(app: Any, letter_id: str, given: Given) -> Done:
    """Put a letter away."""
    return _moved(app, letter_id, lambda letters: letters.archive([letter_id], given.who, given.reason))


def restore_letter(app: Any, letter_id: str, given: Given) -> Done:
    """Bring a letter back from the archive."""
    return _moved(app, letter_id, lambda letters: letters.restore([letter_id], given.who, reason=given.reason))


def _moved(app: Any, letter_id: str, step: Callable[[Any], Mapping[str, Letter | SafeguardsError]]) -> Done:
    try:
        became = step(Wiring.of(app).letters)[letter_id]
    except StoreUnavailable as error:
        return Done(letter_id, False, str(error), is_away=True)
    if isinstance(became, SafeguardsError):
        return Done(letter_id, False, str(became))
    return Done(letter_id, True, "archived" if became.archived_from else f"restored to {became.state}")


def _as_done(result: Result) -> Done:
    if result.fate is Fate.REPLAYED:
        return Done(result.letter_id, True, f"replayed as task {result.task_id}")
    is_away = result.fate in {Fate.NOT_PUBLISHED, Fate.STORE_UNAVAILABLE}
    return Done(result.letter_id, False, str(result), is_away=is_away)


def _discarded_by_another(letter: Letter, given: Given) -> str:
    last = next((each for each in reversed(letter.history) if each.what == "discarded"), None)
    if last is None or (last.who, last.detail) == (clean_text(given.who, 1_000), clean_text(given.reason, 1_000)):
        return ""
    return f"it was discarded already, by {last.who}: {last.detail}"
