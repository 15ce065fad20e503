"""
What has become of the letters that a job has sent.

A letter has an answer once its task has succeeded (closed) or died again (open). Not covered: work of a plain task,
which tells nobody how it ended; it is counted as unanswered at once.

A letter that was sent says "replaying" until it is looked at, and then "replayed"; most have ended by then, and need no
step of the store for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.jobs.job import OnTheirWay, ReplayJob
from celery_safeguards.jobs.tally import Tally
from celery_safeguards.replay.many.batch import task_id_of
from celery_safeguards.replay.send import policy_of
from celery_safeguards.wiring import Wiring

_SUCCEEDED, _FAILED_AGAIN, _UNANSWERED = Tally(succeeded=1), Tally(failed_again=1), Tally(unanswered=1)


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen of letters: of those that have an answer which, and those that do not say yet that they are out."""

    answers: Mapping[str, Tally]
    unmarked: Mapping[str, str]
    """Task ids, by letter."""


def look_at(
    app: Any, job: ReplayJob, on_their_way: OnTheirWay, letter_ids: Sequence[str], answer_seconds: float
) -> Looked:
    """
    Look what has become of letters.

    Args:
        app: see `replay`.
        job: that has sent them.
        on_their_way: when each was sent.
        letter_ids: those that are looked at.
        answer_seconds: how long an answer is waited for.

    Raises:
        StoreUnavailable: look again.

    """
    found, now = Wiring.of(app).letters.get_many(letter_ids), Wiring.of(app).clock.wall_seconds()
    answers, unmarked = {}, {}
    for letter_id in letter_ids:
        letter, task_id = found.get(letter_id), task_id_of(job.id, letter_id)
        _, sent_seconds = on_their_way[letter_id]
        answer = _answer(letter, task_id)
        if answer is None and (now - sent_seconds > answer_seconds or _is_plain(app, letter)):
            answer = _UNANSWERED
        if answer is not None:
            answers[letter_id] = answer
        if isinstance(letter, Letter) and letter.state == "replaying" and letter.replay_task_id == task_id:
            unmarked[letter_id] = task_id
    return Looked(answers, unmarked)


def _answer(letter: Letter | LetterUnreadable | None, task_id: str) -> Tally | None:
    if not isinstance(letter, Letter) or letter.work_state == "discarded":
        return _UNANSWERED
    if letter.work_state == "closed":
        return _SUCCEEDED
    if letter.work_state == "open" or letter.replay_task_id != task_id:
        # Whatever its time says: a worker's clock may be behind that of the one before it.
        return _FAILED_AGAIN
    return None


def _is_plain(app: Any, letter: object) -> bool:
    return isinstance(letter, Letter) and letter.task in app.tasks and policy_of(app, letter.task) is None
