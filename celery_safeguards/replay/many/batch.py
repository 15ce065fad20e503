"""
Some letters of a job, sent together: one question to each store for all of them, one step that begins them, and one
trip to the broker where it takes several messages at once.

    t0 A begins letters 71 to 90 as the task ids that this job gives them    t1 publishes them, and is killed meanwhile
    t2 B asks letters 71 to 90: all are replaying under this job's ids → each is sent (again), under that same id

No letter counts as sent before the trip is over: one that fails is made again letter by letter.

So what may not be sent twice goes alone, as by a click: work without a key that is not `repeatable`. A runner that is
killed leaves one of those at most, which is then refused until a person has looked.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from celery_safeguards.deadletter.fingerprint import without_values
from celery_safeguards.deadletter.letter import Letter, LetterTruncated, LetterUnreadable
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import SafeguardsError, StoreUnavailable
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.picked import Picked
from celery_safeguards.jobs.tally import Tally
from celery_safeguards.ledger.record import RecordUnreadable
from celery_safeguards.replay.plan import (
    OutgoingMessage,
    ReplayRefused,
    Work,
    may_be_resent,
    refusal,
    replay_message,
)
from celery_safeguards.replay.publishing import LeftInDoubt, NotPublished, publish, publish_together, route_of
from celery_safeguards.replay.send import notes_of, policy_of, resume, works_of
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)
MOST_UNWRITTEN = 150
"""Letters that a runner begins before it writes a step."""

_Found = Mapping[str, Letter | LetterUnreadable]
_Works = Mapping[str, Work | RecordUnreadable]
_TASK_IDS = uuid.UUID("6e5f3a0c-51a5-4c1f-9f0b-0f6c2f4b8d11")


@dataclass(slots=True)
class Dealt:
    """
    What became of letters, in their order.

    Attributes:
        letters: so many of the first have been dealt with.
        tally: how.
        sent: those that are on their way.
        error: why the others have not been: they are asked again.

    """

    letters: int = 0
    tally: Tally = field(default_factory=Tally)
    sent: list[Picked] = field(default_factory=list)
    error: SafeguardsError | None = None

    def skip(self, reason: str) -> None:
        """Count a letter that needs no replay."""
        self.letters += 1
        self.tally = (self.tally + Tally(skipped=1)).because(without_values(reason))

    def refuse(self, reason: str) -> None:
        """Count a letter that must not be sent as it is."""
        self.letters += 1
        self.tally = (self.tally + Tally(refused=1)).because(without_values(reason))

    def send(self, picked: Picked) -> None:
        """Count a letter that is on its way."""
        self.letters += 1
        self.tally += Tally(sent=1)
        self.sent.append(picked)


def send_batch(app: Any, job: ReplayJob, picked: Sequence[Picked]) -> Dealt:
    """
    Deal with letters of a job, which is the caller's.

    Args:
        app: see `replay`.
        job: who, why, and whether work without a key may run twice.
        picked: the letters, in their order.

    Safe when: the same letters are dealt with again.

    """
    batch = _Batch(app, job)
    try:
        batch.send(picked)
    except (NotPublished, StoreUnavailable) as error:
        batch.dealt.error = error
    return batch.dealt


def task_id_of(job_id: str, letter_id: str) -> str:
    """Return the id that a job sends a letter under: the same, whoever runs it."""
    return str(uuid.uuid5(_TASK_IDS, f"{job_id}:{letter_id.encode('utf-8', 'surrogatepass').hex()}"))


@dataclass(frozen=True, slots=True)
class _Look:
    """What is to be done with a letter, and why."""

    what: Literal["send", "resume", "sent", "skip", "refuse"]
    why: str = ""
    wire: WireMessage | None = None
    message: OutgoingMessage | None = None
    """Made of that wire message."""


class _Batch:
    def __init__(self, app: Any, job: ReplayJob) -> None:
        self.dealt = Dealt()
        self._app, self._job = app, job
        self._wiring = Wiring.of(app)
        self._letters = self._wiring.letters

    def send(self, picked: Sequence[Picked]) -> None:
        found = self._letters.get_many([each.letter_id for each in picked])
        works = works_of(self._app, [letter for letter in found.values() if isinstance(letter, Letter)])
        for some, is_alone in self._together(picked, found):
            looks = {each.letter_id: self._look(each, found, works) for each in some}
            if is_alone:
                self._send_alone(some[0], looks)
            else:
                self._send_some(some, looks)

    def _send_alone(self, picked: Picked, looks: Mapping[str, _Look]) -> None:
        """Send a letter of which no second message may go out: that it is out is written down at once."""
        sent = len(self.dealt.sent)
        try:
            self._send_some([picked], looks)
        except NotPublished as error:
            raise LeftInDoubt(str(error)) from error
        if len(self.dealt.sent) == sent:
            return  # refused: whoever sends it by `resume` must find it replaying
        try:
            task_id = task_id_of(self._job.id, picked.letter_id)
            self._letters.mark_each_replayed({picked.letter_id: task_id}, self._wiring.clock.wall_seconds())
        except StoreUnavailable as error:
            # The message is out, and its end closes or reopens the letter from "replaying" too.
            logger.warning("letter %s is sent by job %s, but not marked so: %s", picked.letter_id, self._job.id, error)

    def _together(self, picked: Sequence[Picked], found: _Found) -> Iterator[tuple[Sequence[Picked], bool]]:
        """Part letters into those that go together, and those that go alone."""
        some: list[Picked] = []
        for each in picked:
            letter = found.get(each.letter_id)
            if not isinstance(letter, Letter) or self._may_be_resent(letter):
                some.append(each)
                continue
            yield some, False
            yield [each], True
            some = []
        yield some, False

    def _may_be_resent(self, letter: Letter) -> bool:
        return may_be_resent(letter, policy_of(self._app, letter.task), may_run_twice=self._job.may_run_twice)

    def _look(self, picked: Picked, found: _Found, works: _Works) -> _Look:
        letter = found.get(picked.letter_id)
        if not isinstance(letter, Letter):
            return _Look("refuse", str(letter)) if letter else _Look("skip", "it is gone from the store")
        task_id = task_id_of(self._job.id, letter.id)
        if _was_begun(letter, task_id):
            is_cut_short = letter.state == "replaying" and letter.replay_task_id == task_id
            return _Look("resume" if is_cut_short else "sent")
        if letter.last_failed_seconds > picked.last_failed_seconds:
            return _Look("skip", "it has failed again since it was chosen")
        if letter.state != "open":
            return _Look("skip", f"it is {letter.state}")
        try:
            message = replay_message(letter, task_id, at_seconds=self._wiring.clock.wall_seconds())
            route_of(self._app, message)
        except (ReplayRefused, LetterTruncated) as error:
            return _Look("refuse", str(error))
        work = works[letter.id]
        why = self._refusal(letter, work)
        return _Look("send", wire=letter.wire, message=message) if why is None else _Look("refuse", why)

    def _refusal(self, letter: Letter, work: Work | RecordUnreadable) -> str | None:
        if isinstance(work, RecordUnreadable):
            return str(work)
        return refusal(letter, work, may_run_twice=self._job.may_run_twice)

    def _send_some(self, some: Sequence[Picked], looks: Mapping[str, _Look]) -> None:
        job, now = self._job, self._wiring.clock.wall_seconds()
        task_ids = {id_: task_id_of(job.id, id_) for id_, look in looks.items() if look.what == "send"}
        notes = notes_of(job.who, now, f"job {job.id}", may_run_twice=job.may_run_twice, reason=job.reason)
        begun = self._letters.begin_replays(task_ids, job.who, now, notes) if task_ids else {}
        made = {id_: self._message(each, looks[id_]) for id_, each in begun.items()}
        outgoing = {id_: each for id_, each in made.items() if isinstance(each, OutgoingMessage)}
        are_out = publish_together(self._app, outgoing.values())
        for each in some:
            if each.letter_id in outgoing:
                if not are_out:
                    publish(self._app, each.letter_id, outgoing[each.letter_id])
                self.dealt.send(each)
            else:
                self._deal_with(each, looks[each.letter_id], made.get(each.letter_id))

    def _deal_with(self, picked: Picked, look: _Look, error: OutgoingMessage | SafeguardsError | None) -> None:
        """Deal with a letter that has no message to go out now."""
        # Begun by this very step, whose answer was lost, or by a runner that had the job before.
        is_own = isinstance(error, LetterNotOpen) and error.replay_task_id == task_id_of(self._job.id, picked.letter_id)
        if look.what == "resume" or is_own:
            self._resume(picked)
        elif look.what == "skip" or isinstance(error, LetterNotOpen):
            self.dealt.skip(look.why or str(error))
        elif look.what == "refuse" or isinstance(error, SafeguardsError):
            self.dealt.refuse(look.why or str(error))
        else:
            self.dealt.send(picked)

    def _message(self, begun: Letter | SafeguardsError, look: _Look) -> OutgoingMessage | SafeguardsError:
        """Return the message of a letter that has begun, or why it has none."""
        if isinstance(begun, SafeguardsError):
            return begun
        if look.message is not None and begun.wire == look.wire:
            return look.message
        # It has died once more since it was looked at: what it is now is sent, if that can be, and the others are.
        task_id, now = task_id_of(self._job.id, begun.id), self._wiring.clock.wall_seconds()
        try:
            message = replay_message(begun, task_id, at_seconds=now)
            route_of(self._app, message)
        except ReplayRefused as error:
            return error
        return message

    def _resume(self, picked: Picked) -> None:
        job = self._job
        try:
            resume(self._app, picked.letter_id, job.who, may_run_twice=job.may_run_twice, reason=f"job {job.id}")
        except (ReplayRefused, RecordUnreadable) as error:
            self.dealt.refuse(str(error))
        except LetterNotOpen:
            self.dealt.send(picked)  # its message was out: its end has come meanwhile
        else:
            self.dealt.send(picked)


def _was_begun(letter: Letter, task_id: str) -> bool:
    return any(entry.what == "replay begun" and entry.detail == f"as task {task_id}" for entry in letter.history)
