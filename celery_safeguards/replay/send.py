"""
One letter back to work.

The promise: one click is one message. Whoever wins the compare-and-set publishes, under an id that is allocated in it;
a replay that was cut short is sent again under that id, with the verdict it was begun with.

    check → note the person's word → begin_replay: the id is allocated → publish → mark_replayed

    t0 A begins letter 1: id X     t1 B begins letter 1 → `LetterNotOpen`, with X     t2 A publishes X, and is killed
    t3 a person resumes: X is published again; admission gives both messages of X one start

Whatever is refused is refused before the letter changes. Checks read the record as it is at the click; what moves after
that is admission's to answer, under the original key.

Not covered: two messages of one id where there is no key to hold them apart. `resume` asks before it sends such work
again.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kombu.utils import json as kombu_json

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.deadletter.changes import require_found, require_state
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.errors import ConfigurationError, StoreUnavailable
from celery_safeguards.ledger.record import RecordUnreadable
from celery_safeguards.policy import DidNotHappen, Happened, Policy
from celery_safeguards.replay.plan import (
    OutgoingMessage,
    PersonsVerdict,
    ReplayRefused,
    Work,
    lacking,
    refusal,
    replay_message,
    resend_refusal,
    verdict_header,
)
from celery_safeguards.replay.publishing import publish, route_of
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)
_KOMBU: Any = kombu_json
_VERDICT_NOTE = "verdict"
_CONSENT_NOTE = "may run twice"
_REASON_NOTE = "replay asked"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A letter whose message is out."""

    letter_id: str
    task_id: str


def replay(
    app: Any,
    letter_id: str,
    who: str,
    verdict: PersonsVerdict | None = None,
    *,
    may_run_twice: bool = False,
    reason: str = "",
    task_id: str | None = None,
) -> Replayed:
    """
    Send a letter's message again, under a new task id and its original key.

    Args:
        app: the Celery app whose broker and store are used; it need not know the task.
        letter_id: an open letter.
        who: for the letter's history.
        verdict: `Happened(result)` records the work as done without running it; `DidNotHappen()` lets it start.
        may_run_twice: consent for work without a key that may have had an effect.
        reason: why, for the letter's history.
        task_id: of the new message; one that nothing else has.

    Raises:
        ReplayRefused: it needs a verdict or consent, comes too early, or has no route; nothing was changed.
        LetterNotOpen: somebody else was faster, or it is over.
        LetterTruncated: the message is not whole.
        NoSuchLetter: no letter of that id.
        NotPublished: begun, but the broker did not take it: `resume` it.
        StoreUnavailable: nothing was sent; if the letter is replaying now, `resume` it.

    Safe when: several people replay the same letters at once.

    """
    if not who.strip():
        raise ConfigurationError(f"who={who!r}: a replay is made under a name")
    wiring, task_id = Wiring.of(app), task_id or str(uuid.uuid4())
    letter = require_found(wiring.letters.get(letter_id), letter_id)
    require_state(letter, "open")
    now = wiring.clock.wall_seconds()
    word = _word(task_id, verdict)
    route_of(app, replay_message(letter, task_id, verdict, at_seconds=now))
    work = work_of(app, letter)
    why = refusal(letter, work, verdict, may_run_twice=may_run_twice)
    if why is not None:
        raise ReplayRefused(why, lacking(letter, work, verdict, may_run_twice=may_run_twice))
    notes = notes_of(who, now, f"as task {task_id}", may_run_twice=may_run_twice, reason=reason)
    if word is not None:
        # A replay that is cut short must find it.
        notes.append(HistoryEntry(at_seconds=now, what=_VERDICT_NOTE, who=who, detail=word))
    try:
        begun = wiring.letters.begin_replay(letter_id, task_id, who, now, notes)
    except LetterNotOpen as error:
        if error.replay_task_id != task_id:
            raise
        # The answer to this very step was lost, and it was made again.
        begun = wiring.letters.resume_replay(letter_id)
    return _publish_and_mark(app, letter_id, replay_message(begun, task_id, verdict, at_seconds=now))


def resume(
    app: Any,
    letter_id: str,
    who: str | None = None,
    verdict: PersonsVerdict | None = None,
    *,
    may_run_twice: bool = False,
    reason: str = "",
) -> Replayed:
    """
    Send a replay that was cut short again, under the task id and with the verdict it was begun with.

    Args:
        app: see `replay`.
        letter_id: a letter that is replaying.
        who: for the letter's history.
        verdict: only where the history could not keep it: it holds 1,000 characters of one note.
        may_run_twice: consent for work without a key: its first message may be out already.
        reason: why, for the letter's history.

    Raises:
        ReplayRefused: consent or the verdict is missing; nothing was sent.
        LetterNotOpen: it is not replaying.
        NoSuchLetter: no letter of that id.
        NotPublished: the broker did not take it.

    Safe when: whoever began it has ended, or the work has a key.

    """
    wiring = Wiring.of(app)
    letter = wiring.letters.resume_replay(letter_id)
    verdict = verdict or verdict_of(letter)
    why = resend_refusal(letter, work_of(app, letter), verdict, may_run_twice=may_run_twice)
    if why is not None:
        raise ReplayRefused(why)
    now = wiring.clock.wall_seconds()
    message = replay_message(letter, letter.replay_task_id or "", verdict, at_seconds=now)
    route_of(app, message)
    why = f": {reason}" if reason else ""
    wiring.letters.add_note(letter_id, "replay resumed", who, f"as task {message.task_id}{why}", now)
    return _publish_and_mark(app, letter_id, message)


def notes_of(who: str, at_seconds: float, which: str, *, may_run_twice: bool, reason: str) -> list[HistoryEntry]:
    """Return what the history of a letter keeps of what a person has said with a replay; `which`: of which task."""
    notes = [(_CONSENT_NOTE, which)] if may_run_twice else []
    notes += [(_REASON_NOTE, f"{which}: {reason}")] if reason else []
    return [HistoryEntry(at_seconds=at_seconds, what=what, who=who, detail=detail) for what, detail in notes]


def work_of(app: Any, letter: Letter) -> Work:
    """
    Return what the store and this app know of a letter's work.

    Raises:
        StoreUnavailable: the store did not answer, or the record cannot be read.

    """
    work = works_of(app, [letter])[letter.id]
    if isinstance(work, RecordUnreadable):
        raise work
    return work


def works_of(app: Any, letters: Sequence[Letter]) -> Mapping[str, Work | RecordUnreadable]:
    """Return what the store and this app know of the work of letters, by their ids."""
    admission = Wiring.of(app).admission
    keys = {
        letter.id: RecordKey(letter.scope, letter.key)
        for letter in letters
        if letter.key is not None and letter.scope is not None
    }
    records = admission.read_many(list(dict.fromkeys(keys.values()))) if keys else {}
    view = admission.view()
    works: dict[str, Work | RecordUnreadable] = {}
    for letter in letters:
        record = records.get(keys[letter.id]) if letter.id in keys else None
        if isinstance(record, RecordUnreadable):
            works[letter.id] = record
        else:
            works[letter.id] = Work(store=view, record=record, policy=policy_of(app, letter.task))
    return works


def verdict_of(letter: Letter) -> PersonsVerdict | None:
    """Return the verdict that a letter's replay was begun with; None: none, or its history could not keep it whole."""
    begins = f'{{"task_id": "{letter.replay_task_id}"'
    word = next((e.detail for e in letter.history if e.what == _VERDICT_NOTE and e.detail.startswith(begins)), None)
    try:
        said = _KOMBU.loads(word) if word is not None else None
    except ValueError:
        return None  # cut: it was too long for the history
    if said is None:
        return None
    return Happened(said["result"]) if said["happened"] else DidNotHappen()


def _publish_and_mark(app: Any, letter_id: str, message: OutgoingMessage) -> Replayed:
    publish(app, letter_id, message)
    try:
        Wiring.of(app).letters.mark_replayed(letter_id, message.task_id)
    except StoreUnavailable as error:
        # The message is out. Its end closes or reopens the letter from "replaying" too.
        logger.warning("letter %s is sent as task %s, but not marked so: %s", letter_id, message.task_id, error)
    return Replayed(letter_id, message.task_id)


def policy_of(app: Any, task: str) -> Policy | None:
    """Return the policy of a task that this app knows."""
    policy = getattr(app.tasks.get(task), "policy", None)
    return policy if isinstance(policy, Policy) else None


def _word(task_id: str, verdict: PersonsVerdict | None) -> str | None:
    """Return a verdict as the letter's history keeps it; the id stands first, where no cut reaches it."""
    if verdict is None:
        return None
    try:
        return str(_KOMBU.dumps({"task_id": task_id, **verdict_header(verdict)}))
    except (TypeError, ValueError, RecursionError) as error:
        raise ReplayRefused(f"the result of Happened({verdict!r}) is none that JSON can carry") from error
