"""
What has become of the letters that a job has sent.

A letter has an answer once its task has succeeded (closed) or died again (open). Not covered: work of a plain task,
which tells nobody how it ended; it is counted as unanswered at once.
"""

from collections.abc import Sequence
from typing import Any

from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.jobs.job import OnTheirWay, ReplayJob, Tally
from celery_safeguards.replay.batch import task_id_of
from celery_safeguards.replay.send import policy_of
from celery_safeguards.wiring import Wiring

_SUCCEEDED, _FAILED_AGAIN, _UNANSWERED = Tally(succeeded=1), Tally(failed_again=1), Tally(unanswered=1)


def answered(
    app: Any, job: ReplayJob, on_their_way: OnTheirWay, letter_ids: Sequence[str], answer_seconds: float
) -> dict[str, Tally]:
    """
    Return what has become of those letters that have an answer.

    Args:
        app: see `replay`.
        job: that has sent them.
        on_their_way: when each was sent.
        letter_ids: those that are asked.
        answer_seconds: how long an answer is waited for.

    Raises:
        StoreUnavailable: ask again.

    """
    found, now = Wiring.of(app).letters.get_many(letter_ids), Wiring.of(app).clock.wall_seconds()
    answers = {}
    for letter_id in letter_ids:
        chosen_seconds, sent_seconds = on_their_way[letter_id]
        answer = _answer(found.get(letter_id), task_id_of(job.id, letter_id), chosen_seconds)
        letter = found.get(letter_id)
        if answer is None and (now - sent_seconds > answer_seconds or _is_plain(app, letter)):
            answer = _UNANSWERED
        if answer is not None:
            answers[letter_id] = answer
    return answers


def _answer(letter: Letter | LetterUnreadable | None, task_id: str, chosen_seconds: float) -> Tally | None:
    if not isinstance(letter, Letter) or letter.state == "discarded":
        return _UNANSWERED
    if letter.state == "closed":
        return _SUCCEEDED
    if letter.state == "open" or letter.replay_task_id != task_id:
        return _FAILED_AGAIN if letter.last_failed_seconds > chosen_seconds else _UNANSWERED
    return None


def _is_plain(app: Any, letter: object) -> bool:
    return isinstance(letter, Letter) and letter.task in app.tasks and policy_of(app, letter.task) is None
