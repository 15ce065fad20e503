"""
Letters back to work: `replay` sends one, `resume` one that was cut short, `replay_many` a whole list at a chosen pace;
`send_edited` sends an edited copy of one, as work of its own.

A batch promises a result for each letter. Two people who replay the same hundred letters at once send a hundred
messages: each letter is won by one of them, and the other is told so.

Not covered: a batch that is killed leaves at most one letter replaying, which `resume` finishes; the rest stays open.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_safeguards.deadletter.letter import LetterTruncated, LetterUnreadable
from celery_safeguards.deadletter.refusals import LetterNotOpen, NoSuchLetter
from celery_safeguards.errors import ConfigurationError, StoreUnavailable
from celery_safeguards.replay.copies.copying import Prepared, opened_at, prepare
from celery_safeguards.replay.copies.edit import Edit, EditRefused
from celery_safeguards.replay.copies.editing import CopyNotPublished, Edited, send_edited
from celery_safeguards.replay.copies.masked import MaskedEdit, masked
from celery_safeguards.replay.discarding import discard
from celery_safeguards.replay.many.pace import Pace
from celery_safeguards.replay.plan import Need, PersonsVerdict, ReplayRefused
from celery_safeguards.replay.publishing import NotPublished
from celery_safeguards.replay.send import Replayed, replay, resume
from celery_safeguards.wiring import Wiring

__all__ = [
    "CopyNotPublished",
    "Edit",
    "EditRefused",
    "Edited",
    "Fate",
    "MaskedEdit",
    "NotPublished",
    "Prepared",
    "ReplayRefused",
    "Replayed",
    "Result",
    "discard",
    "masked",
    "opened_at",
    "prepare",
    "replay",
    "replay_many",
    "resume",
    "send_edited",
]


class Fate(StrEnum):
    """What became of one letter of a batch."""

    REPLAYED = "replayed"
    NOT_OPEN = "not open"
    REFUSED = "refused"
    NOT_PUBLISHED = "not published"
    STORE_UNAVAILABLE = "store unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One letter of a batch; `reason` says why it was not replayed, and `lacks` what a person must add."""

    letter_id: str
    fate: Fate
    task_id: str | None = None
    reason: str = ""
    lacks: Need = Need.NOTHING

    def __str__(self) -> str:
        return f"{self.fate}: {self.reason}" if self.reason else str(self.fate)


def replay_many(
    app: Any,
    letter_ids: Iterable[str],
    who: str,
    per_second: float | None = None,
    *,
    verdict: PersonsVerdict | None = None,
    may_run_twice: bool = False,
    reason: str = "",
) -> Iterator[Result]:
    """
    Replay letters one after the other, and yield what became of each as it goes.

    One that fails ends nothing but itself. Stop iterating to stop; what was yielded is done.

    Args:
        app: see `replay`.
        letter_ids: take them down before the first one is sent: a replay that dies again reopens its letter, and a
            walk that reads on while it sends need not end.
        who: for each letter's history.
        per_second: > 0, messages a second at most; None: as fast as the store and the broker take them.
        verdict: the same for all.
        may_run_twice: the same for all.
        reason: the same for all.

    """
    if per_second is not None and not 0 < per_second < float("inf"):
        raise ConfigurationError(f"per_second={per_second!r}: give a number above 0")
    if not who.strip():
        raise ConfigurationError(f"who={who!r}: a replay is made under a name")
    pace = Pace(per_second, Wiring.of(app).clock)
    asked: dict[str, Any] = {"verdict": verdict, "may_run_twice": may_run_twice, "reason": reason}
    return (_one(app, letter_id, who, pace, **asked) for letter_id in letter_ids)


def _one(app: Any, letter_id: str, who: str, pace: Pace, **asked: Any) -> Result:
    pace.wait()
    try:
        sent = replay(app, letter_id, who, **asked)
    except LetterNotOpen as error:
        return Result(letter_id=letter_id, fate=Fate.NOT_OPEN, task_id=error.replay_task_id, reason=str(error))
    except ReplayRefused as error:
        return Result(letter_id=letter_id, fate=Fate.REFUSED, reason=str(error), lacks=error.lacks)
    except (LetterTruncated, LetterUnreadable, NoSuchLetter) as error:
        return Result(letter_id=letter_id, fate=Fate.REFUSED, reason=str(error))
    except NotPublished as error:
        return Result(letter_id=letter_id, fate=Fate.NOT_PUBLISHED, reason=str(error))
    except StoreUnavailable as error:
        return Result(letter_id=letter_id, fate=Fate.STORE_UNAVAILABLE, reason=str(error))
    pace.sent()
    return Result(letter_id=letter_id, fate=Fate.REPLAYED, task_id=sent.task_id)
