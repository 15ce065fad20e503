"""
The runner of a replay job: sends its letters at their pace, and waits for what becomes of them.

    t0 A sends letters 1 to 70      t1 A writes the step: position 70      t2 A sends 71 to 75, and is killed
    t3 B takes the job at 70 and asks letter 71: it has begun as the task id that this job gives it → sent already
    t4 letter 75 was begun and not published: B sends it under that same id      t5 76 is next

The promise: a letter that was chosen is sent once by this job, whoever runs it and however often a runner is killed.
Only those that a runner had begun when it was killed may leave two messages of one task id, which admission gives one
start; `replay.many.batch` says which letters that may happen to.

How fast they go out, and how many are on their way at once, follows what becomes of them: `jobs.tempo`. A dependency
that is still away gets a few, one after the other, and not the storm. It is written with each step, so the next runner
goes on as slowly.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_safeguards.clock import Clock
from celery_safeguards.deadletter.fingerprint import without_values
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.jobs.job import JobStatus, ReplayJob
from celery_safeguards.jobs.picked import PART_SIZE, Picked
from celery_safeguards.jobs.refusals import JobLost
from celery_safeguards.jobs.steps import Progress, advanced, ended, let_go, taken
from celery_safeguards.jobs.tally import Tally
from celery_safeguards.jobs.tempo import Tempo, least_share
from celery_safeguards.printable import counted
from celery_safeguards.replay.many.answers import look_at
from celery_safeguards.replay.many.batch import MOST_UNWRITTEN, send_batch
from celery_safeguards.replay.many.pace import Pace
from celery_safeguards.replay.many.settling import settle
from celery_safeguards.replay.publishing import LeftInDoubt, NotPublished
from celery_safeguards.wiring import Wiring

LEASE_SECONDS = 60.0
"""Longer than a step may take: store and broker have a time limit each."""

ANSWER_SECONDS = 900.0
"""How long a letter that was sent is waited for."""

_STEP_SECONDS = 1.0
_STEP_LETTERS = 100
_LETTERS_TOGETHER = 50
_ASKED_AT_ONCE = 500
_FEW = 50
_ASK_FEW_SECONDS = 0.2
_TRIES = 5


def run_job(
    app: Any,
    job_id: str,
    *,
    on_step: Callable[[ReplayJob], object] = lambda _job: None,
    should_stop: Callable[[], bool] = lambda: False,
    answer_seconds: float = ANSWER_SECONDS,
) -> ReplayJob:
    """
    Run a job until it is over, until a person pauses or cancels it, or until `should_stop`.

    Args:
        app: see `replay`.
        job_id: a job that runs and that no other runner has.
        on_step: called with the job after each step, about once a second.
        should_stop: asked about once a second; the job is then left for the next runner.
        answer_seconds: how long a letter that was sent is waited for.

    Returns:
        The job as it stands.

    Raises:
        JobNotOpen: it does not run, or another runner has it.
        NoSuchJob: there is none of that id.
        StoreUnavailable: the store did not answer, five times; run it again.

    Safe when: killed at any point; two run it at once: one of them has the job.

    """
    job = _Runner(app, job_id, on_step, should_stop, answer_seconds).run()
    return settle(app, job_id) if job.status == "cancelled" else job


@dataclass(slots=True)
class _Step:
    """What has happened since the job was written."""

    position: int
    on_their_way: dict[str, tuple[float, float]]
    tempo: Tempo
    began: float
    letters: int = 0
    tally: Tally = field(default_factory=Tally)


class _Runner:
    def __init__(
        self,
        app: Any,
        job_id: str,
        on_step: Callable[[ReplayJob], object],
        should_stop: Callable[[], bool],
        answer_seconds: float,
    ) -> None:
        self._app, self._id = app, job_id
        self._on_step, self._should_stop = on_step, should_stop
        self._answer_seconds = answer_seconds
        self._wiring = Wiring.of(app)
        self._clock: Clock = self._wiring.clock
        self._name = f"runner-{uuid.uuid4().hex[:12]}"
        self._part: tuple[int, list[Picked]] = (-1, [])
        self._asked_at = float("-inf")
        self._failures_in_a_row = 0
        self._unmarked: set[str] = set()

    def run(self) -> ReplayJob:
        job = self._wiring.jobs.change(self._id, taken(self._name, self._now(), LEASE_SECONDS))
        try:
            return self._run(job)
        except JobLost:
            found = self._wiring.jobs.get(self._id)
            return job if found is None else found
        except BaseException:
            # The next runner need not wait for the lease; what was not written down, it asks.
            self._leave()
            raise

    def _run(self, job: ReplayJob) -> ReplayJob:
        per_second = job.tempo.per_second(job.per_second)
        self._pace = Pace(per_second, self._clock)
        if per_second:
            # Bounded: a clock that is set back would hold it for as long.
            self._pace.hold(min(job.due_seconds - self._now(), 1 / per_second))
        self._begin_step(job)
        while True:
            try:
                over = self._turn()
            except LeftInDoubt as error:
                # Each try would leave one more.
                return self._end("stopped", f"the broker did not take a message: {without_values(str(error))}")
            except (NotPublished, StoreUnavailable) as error:
                self._failures_in_a_row += 1
                if self._failures_in_a_row < _TRIES:
                    self._clock.sleep(2.0 ** (self._failures_in_a_row - 1))
                    continue
                if isinstance(error, StoreUnavailable):
                    raise
                return self._end("stopped", f"the broker took nothing {_TRIES} times: {without_values(str(error))}")
            if over is not None:
                return over

    def _turn(self) -> ReplayJob | None:
        """Ask, send or rest once; returns the job if it is not to be gone on with."""
        self._ask()
        because = _why_stop(self._job, self._step)
        if because:
            return self._end("stopped", because)
        if not self._left and not self._step.on_their_way:
            return self._end("done", "")
        letters = min(self._pace.due(self._allowed), MOST_UNWRITTEN - self._step.letters)
        if letters:
            self._send(letters)
        else:
            self._clock.sleep(self._rest_seconds())
        if self._step.letters < _STEP_LETTERS and self._clock.monotonic_seconds() - self._step.began < _STEP_SECONDS:
            return None
        job = self._write()
        self._on_step(job)
        if job.status != "running":
            self._mark_rest()
            return job
        if self._should_stop():
            self._mark_rest()
            return self._wiring.jobs.change(self._id, let_go(self._name, self._now()))
        return None

    # --- steps

    def _begin_step(self, job: ReplayJob) -> None:
        self._job = job
        self._step = _Step(job.position, dict(job.on_their_way), job.tempo, self._clock.monotonic_seconds())

    def _write(self) -> ReplayJob:
        step = self._step
        progress = Progress(
            position=step.position,
            tally=self._job.tally + step.tally,
            on_their_way=dict(step.on_their_way),
            tempo=step.tempo,
            due_seconds=self._now() + max(0.0, self._pace.left_seconds),
        )
        job = self._wiring.jobs.change(self._id, advanced(self._name, self._now(), LEASE_SECONDS, progress))
        self._begin_step(job)
        return job

    def _end(self, status: JobStatus, because: str) -> ReplayJob:
        self._mark_rest()
        job = self._write()
        # Paused or cancelled meanwhile: it is no longer the runner's to end.
        if job.runner == self._name:
            job = self._wiring.jobs.change(self._id, ended(self._name, status, because, self._now()))
        self._on_step(job)
        return job

    def _leave(self) -> None:
        try:
            self._wiring.jobs.change(self._id, let_go(self._name, self._now()))
        except StoreUnavailable:
            return  # its lease ends by itself

    # --- sending

    @property
    def _left(self) -> int:
        return self._job.total - self._step.position

    @property
    def _allowed(self) -> int:
        """How many letters may be sent now, whatever the pace."""
        step, canary = self._step, self._job.canary
        window = step.tempo.window(self._job.at_once)
        allowed = min(_LETTERS_TOGETHER, self._left, window - len(step.on_their_way))
        sent = self._job.tally.sent + step.tally.sent
        if sent < canary:
            allowed = min(allowed, canary - sent)
        elif canary and sent == canary and step.on_their_way:
            return 0  # the others wait for the canaries
        return max(0, min(allowed, PART_SIZE - step.position % PART_SIZE))

    def _send(self, letters: int) -> None:
        step = self._step
        dealt = send_batch(self._app, self._job, self._picked(step.position, letters))
        now = self._now()
        step.position += dealt.letters
        step.tally += dealt.tally
        step.letters += dealt.letters
        step.on_their_way |= {each.letter_id: (each.last_failed_seconds, now) for each in dealt.sent}
        self._unmarked |= {each.letter_id for each in dealt.sent}
        self._pace.sent(len(dealt.sent))
        if dealt.letters:
            self._failures_in_a_row = 0
        if dealt.error is not None:
            raise dealt.error

    def _picked(self, position: int, letters: int) -> list[Picked]:
        number, place = divmod(position, PART_SIZE)
        if self._part[0] != number:
            self._part = (number, list(self._wiring.jobs.picked(self._id, number)))
        picked = self._part[1][place : place + letters]
        if not picked:
            raise JobLost(f"job {self._id} has no letters any more: it was ended meanwhile")
        return picked

    def _rest_seconds(self) -> float:
        """Return how long nothing can be done at least."""
        now = self._clock.monotonic_seconds()
        left = self._step.began + _STEP_SECONDS - now
        if self._step.on_their_way:
            left = min(left, self._asked_at + self._ask_seconds - now)
        return max(0.001, min(left, self._pace.left_seconds) if self._allowed else left)

    # --- answers

    @property
    def _ask_seconds(self) -> float:
        return _ASK_FEW_SECONDS if len(self._step.on_their_way) <= _FEW else _STEP_SECONDS

    def _ask(self) -> None:
        """Look what has become of letters that were sent: of all, or of those not looked at for longest."""
        step = self._step
        if not step.on_their_way or self._clock.monotonic_seconds() - self._asked_at < self._ask_seconds:
            return
        asked = list(step.on_their_way)[:_ASKED_AT_ONCE]
        answers = self._looked_at(asked)
        self._asked_at = self._clock.monotonic_seconds()
        for letter_id in asked:
            waits = step.on_their_way.pop(letter_id)
            if letter_id not in answers:
                step.on_their_way[letter_id] = waits
        seen = sum(answers.values(), Tally())
        step.tally += seen
        self._adapt(seen)

    def _adapt(self, seen: Tally) -> None:
        job, step = self._job, self._step
        if job.adapts:
            least = least_share(job.per_second, job.at_once)
            step.tempo = step.tempo.after(succeeded=seen.succeeded, failed=seen.failed_again, least=least)
            self._pace.keep(step.tempo.per_second(job.per_second))

    def _looked_at(self, asked: Sequence[str]) -> Mapping[str, Tally]:
        looked = look_at(self._app, self._job, self._step.on_their_way, asked, self._answer_seconds)
        self._wiring.letters.mark_each_replayed(looked.unmarked, self._now())
        self._unmarked -= set(asked)
        return looked.answers

    def _mark_rest(self) -> None:
        """Have every letter that was sent say so, before the job is left."""
        rest = [letter_id for letter_id in self._step.on_their_way if letter_id in self._unmarked]
        for first in range(0, len(rest), _ASKED_AT_ONCE):
            self._looked_at(rest[first : first + _ASKED_AT_ONCE])

    def _now(self) -> float:
        return self._clock.wall_seconds()


def _why_stop(job: ReplayJob, step: _Step) -> str:
    so_far = job.tally + step.tally
    if job.stop_at and so_far.failed_again >= job.stop_at:
        return f"{counted(so_far.failed_again, 'letter')} failed again"
    bad = so_far.failed_again + so_far.unanswered
    if job.canary and bad and so_far.sent <= job.canary and not step.on_their_way:
        return f"of {so_far.sent} canaries {so_far.failed_again} failed again, {so_far.unanswered} gave no answer"
    return ""
