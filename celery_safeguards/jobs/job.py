"""
A replay of many letters as a job: what was chosen, how it goes, and how far it has come.

               runs out of letters, and all have an answer
      ┌───────────────────────────────────────────────────▶ done
    running ◀── resume ── paused        (a person)
      │  ▲  └──────────────▶ paused
      │  └── resume ── stopped          (too many of its letters have failed again)
      └───────────────▶ stopped         any of these ── cancel ──▶ cancelled

The promise: the letters are taken down before the first is sent, each with its last failure; so one that dies again is
another failure, which this job does not send. The job is written in steps: how far it has come, what became of those
letters, and which are still on their way. A runner that is killed has sent at most the letters of one step more than
was written; the next one asks each of them (see `replay.many.running`).

One runner at a time has a job, by a lease that it renews with each step:

    t0 A has the job until 60    t1 A is frozen    t2 60 is over: B takes it, goes on at A's last step
    t3 A wakes and sends one letter more: B has it, or will find it sent    t4 A's next step is refused: `JobLost`
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from celery_safeguards.errors import ConfigurationError, SafeguardsError
from celery_safeguards.jobs.tempo import Tempo
from celery_safeguards.printable import duration
from celery_safeguards.stored_types import known_fields, names_of_fields, require_types

JobStatus = Literal["running", "paused", "stopped", "cancelled", "done"]
STATUSES: tuple[JobStatus, ...] = ("running", "paused", "stopped", "cancelled", "done")
OVER: frozenset[JobStatus] = frozenset({"cancelled", "done"})
PART_SIZE = 500
"""How many letters are kept together."""

MOST_REASONS = 20
"""How many different reasons a job counts; the others are one."""

MOST_AT_ONCE = 10_000
"""Each step writes down which letters are on their way."""

OTHER_REASONS = "other reasons"
_REASON_CHARS = 200


class NoSuchJob(SafeguardsError):
    """Raised when a job is not in the store."""


class JobUnderWay(SafeguardsError):
    """Raised when a group has a job that is not over: `job_id`."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id} replays this group already: go on with that one, or cancel it"


class JobLost(SafeguardsError):
    """Raised to a runner whose job somebody else has: its lease was over, or the job was paused or ended."""


class JobNotOpen(SafeguardsError):
    """Raised when a job stands otherwise than a step needs."""


class JobUnreadable(SafeguardsError, ValueError):
    """Raised when stored text is no job: damaged, or written by a newer version."""


@dataclass(frozen=True, slots=True)
class Picked:
    """A letter as it was when it was chosen."""

    letter_id: str
    last_failed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of letters: how many were sent, had no need, were refused; of those sent, how many have an answer."""

    sent: int = 0
    skipped: int = 0
    refused: int = 0
    succeeded: int = 0
    failed_again: int = 0
    unanswered: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why letters were skipped or refused."""

    def __add__(self, other: "Tally") -> "Tally":
        numbers = {each: getattr(self, each) + getattr(other, each) for each in _NUMBERS}
        reasons = dict(self.reasons)
        for reason, count in other.reasons.items():
            known = reason if reason in reasons or len(reasons) < MOST_REASONS else OTHER_REASONS
            reasons[known] = reasons.get(known, 0) + count
        return Tally(**numbers, reasons=reasons)

    def because(self, reason: str) -> "Tally":
        """Return it with one more letter of this reason."""
        return self + Tally(reasons={reason[:_REASON_CHARS]: 1})


_NUMBERS = ("sent", "skipped", "refused", "succeeded", "failed_again", "unanswered")


OnTheirWay = Mapping[str, tuple[float, float]]
"""By letter: its last failure when it was chosen, and when it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A step of a runner: see `ReplayJob`; the tally is of all steps, for a step may be written twice."""

    position: int
    tally: Tally
    on_their_way: OnTheirWay
    tempo: Tempo
    due_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """
    One replay of many letters.

    Attributes:
        id: of the job; part of the task ids of its messages.
        who: began it; written into each letter's history.
        reason: why.
        chosen: what was chosen, in words.
        fingerprint: of the group that was chosen; "": letters of several, or some of one.
        total: how many letters.
        per_second: messages a second at most; None: as fast as store and broker take them.
        at_once: letters that are on their way at most, sent and without an answer.
        canary: so many letters are sent first, and must all succeed before the others are; 0: none.
        stop_at: failures at which it stops; 0: it never does.
        may_run_twice: consent, for work without a key.
        adapts: it slows while its letters fail again, see `tempo`; False: it keeps its pace.
        created_seconds: wall clock, as the next.
        changed_seconds: of the last step.
        status: how it stands; `because` says why.
        runner: who has it; "": nobody.
        lease_until_seconds: until then, wall clock.
        position: how many letters have been dealt with.
        tally: what became of them.
        on_their_way: those sent that have no answer yet, with when they were sent.
        tempo: how much of its pace it goes at just now.
        due_seconds: when the next message is due, wall clock: the next runner keeps the pace of the last one.
        settled: of a cancelled job, whether what its runner had begun is known; see `replay.many.settling`.
        unsure: letters that it had begun, of which nobody knows whether they were sent.

    """

    id: str
    who: str
    chosen: str
    total: int
    created_seconds: float
    changed_seconds: float = 0.0
    reason: str = ""
    fingerprint: str = ""
    per_second: float | None = None
    at_once: int = 100
    canary: int = 0
    stop_at: int = 0
    may_run_twice: bool = False
    adapts: bool = True
    status: JobStatus = "running"
    because: str = ""
    runner: str = ""
    lease_until_seconds: float = 0.0
    position: int = 0
    tally: Tally = field(default_factory=Tally)
    on_their_way: OnTheirWay = field(default_factory=dict)
    tempo: Tempo = field(default_factory=Tempo)
    due_seconds: float = 0.0
    settled: bool = False
    unsure: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.who.strip():
            raise ConfigurationError(f"who={self.who!r}: a replay is made under a name")
        if self.per_second is not None and not 0 < self.per_second < float("inf"):
            raise ConfigurationError(f"per_second={self.per_second!r}: give a number above 0")
        for name, least in (("at_once", 1), ("canary", 0), ("stop_at", 0)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name}={getattr(self, name)!r}: give {least} or more")
        if self.at_once > MOST_AT_ONCE:
            raise ConfigurationError(f"at_once={self.at_once!r}: give {MOST_AT_ONCE} or fewer")

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be sent."""
        return self.status in OVER

    @property
    def forgets_letters(self) -> bool:
        """Whether nobody will ask for its letters any more."""
        return self.status == "done" or (self.status == "cancelled" and self.settled)

    def may_be_settled(self, now_seconds: float) -> bool:
        """Whether it is cancelled, nobody runs it, and what was begun is not known yet."""
        is_run = bool(self.runner) and self.lease_until_seconds > now_seconds
        return self.status == "cancelled" and not self.settled and not is_run

    @property
    def window(self) -> int:
        """How many letters may be on their way just now."""
        return self.tempo.window(self.at_once)

    @property
    def per_second_now(self) -> float | None:
        """How many go out in a second just now; None: as fast as store and broker take them."""
        return self.tempo.per_second(self.per_second)

    @property
    def pace_in_words(self) -> tuple[str, ...]:
        """What was asked for, and how it goes just now if that is slower."""
        asked = f"{_rate_in_words(self.per_second)}, at most {self.at_once} on their way"
        if not self.adapts:
            return (f"{asked}, also while letters fail again",)
        if self.tempo.share == 1.0:
            return (asked,)
        now = f"{_rate_in_words(self.per_second_now)}, at most {self.window} on their way"
        return (asked, f"{self.tempo}; just now {now}")

    @property
    def left(self) -> int:
        """How many letters have not been dealt with."""
        return self.total - self.position

    def to_json(self) -> str:
        """Return it as ASCII text."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        tally = {each.name: getattr(self.tally, each.name) for each in fields(Tally)}
        tempo = {each.name: getattr(self.tempo, each.name) for each in fields(Tempo)}
        return json.dumps({**plain, "tally": tally, "tempo": tempo}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """
        Read a job.

        Raises:
            JobUnreadable: the text is damaged, or written by a newer version.

        """
        try:
            plain = json.loads(text)
            given = known_fields(cls, plain)
            tally, tempo = {each: plain["tally"][each] for each in names_of_fields(Tally)}, plain.get("tempo", {})
            require_types(Tally, tally)
            require_types(Tempo, tempo)
            given |= {"tally": Tally(**tally), "tempo": Tempo(**tempo)}
            require_types(cls, given)
            given["unsure"] = tuple(plain.get("unsure", ()))
            on_their_way = plain["on_their_way"]
            given["on_their_way"] = dict(zip(on_their_way, map(tuple, on_their_way.values()), strict=True))
            if plain["status"] not in STATUSES:
                raise JobUnreadable(f"status {plain['status']!r} is none of {', '.join(STATUSES)}")
            return cls(**given)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            if isinstance(error, JobUnreadable):
                raise
            raise JobUnreadable(f"this is no job: {type(error).__name__}: {error}") from error


def _rate_in_words(per_second: float | None) -> str:
    return "as fast as store and broker take them" if per_second is None else f"{per_second:.3g} a second"


JobChange = Callable[[ReplayJob], ReplayJob]
"""Decides what a stored job becomes, or raises."""


def taken(runner: str, now_seconds: float, lease_seconds: float) -> JobChange:
    """Return the change by which a runner gets a job that runs and that nobody has."""

    def change(job: ReplayJob) -> ReplayJob:
        if job.status != "running":
            raise JobNotOpen(f"job {job.id} is {job.status}{f': {job.because}' if job.because else ''}")
        if job.runner not in {"", runner} and job.lease_until_seconds > now_seconds:
            left = duration(job.lease_until_seconds - now_seconds)
            raise JobNotOpen(f"job {job.id} is run by {job.runner}, whose lease ends in {left} at the latest")
        return replace(job, runner=runner, lease_until_seconds=now_seconds + lease_seconds, changed_seconds=now_seconds)

    return change


def advanced(runner: str, now_seconds: float, lease_seconds: float, progress: Progress) -> JobChange:
    """Return the change by which a runner writes a step down, and keeps the job."""

    def change(job: ReplayJob) -> ReplayJob:
        if job.runner != runner:
            raise JobLost(f"job {job.id} is run by {job.runner or 'nobody'} now")
        # Paused or cancelled meanwhile: what was sent is written down all the same.
        keeps = job.status == "running"
        return replace(
            job,
            position=progress.position,
            tally=progress.tally,
            on_their_way=progress.on_their_way,
            tempo=progress.tempo,
            due_seconds=progress.due_seconds,
            runner=runner if keeps else "",
            lease_until_seconds=now_seconds + lease_seconds if keeps else 0.0,
            changed_seconds=now_seconds,
        )

    return change


def ended(runner: str, status: JobStatus, because: str, now_seconds: float) -> JobChange:
    """Return the change by which a runner gives a job back: done, or stopped."""

    def change(job: ReplayJob) -> ReplayJob:
        if job.runner != runner:
            raise JobLost(f"job {job.id} is run by {job.runner or 'nobody'} now")
        given_back = replace(job, runner="", lease_until_seconds=0.0, changed_seconds=now_seconds)
        # Otherwise a person was faster.
        return replace(given_back, status=status, because=because) if job.status == "running" else given_back

    return change


def let_go(runner: str, now_seconds: float) -> JobChange:
    """Return the change by which a runner leaves a job for the next one."""

    def change(job: ReplayJob) -> ReplayJob:
        if job.runner != runner:
            return job
        return replace(job, runner="", lease_until_seconds=0.0, changed_seconds=now_seconds)

    return change


def declared(status: JobStatus, who: str, now_seconds: float) -> JobChange:
    """Return the change by which a person pauses a job, resumes it, or cancels it."""
    allowed: Mapping[JobStatus, Sequence[JobStatus]] = {
        "paused": ("running",),
        "running": ("paused", "stopped"),
        "cancelled": ("running", "paused", "stopped"),
    }
    if not who.strip():
        raise ConfigurationError(f"who={who!r}: a job is changed under a name")

    def change(job: ReplayJob) -> ReplayJob:
        if job.status not in allowed[status]:
            raise JobNotOpen(f"job {job.id} is {job.status}")
        # A runner keeps the name on the job until it has written down what it has sent.
        runner = job.runner if job.lease_until_seconds > now_seconds else ""
        changed = replace(job, status=status, because=f"by {who}", runner=runner, changed_seconds=now_seconds)
        if job.status != "stopped" or status != "running":
            return changed
        # Who resumes what has stopped has seen its failures: as many more stop it again. Where it has stopped without
        # any, as when no broker was there, its canaries still go first.
        bad = job.tally.failed_again + job.tally.unanswered
        stop_at = job.stop_at and job.stop_at + job.tally.failed_again
        return replace(changed, canary=0 if bad else job.canary, stop_at=stop_at)

    return change


def settled(unsure: Sequence[str], now_seconds: float) -> JobChange:
    """Return the change by which it is written down what the last runner of a cancelled job has left."""

    def change(job: ReplayJob) -> ReplayJob:
        if not job.may_be_settled(now_seconds):
            raise JobLost(f"job {job.id} is settled, or somebody runs it")
        free = replace(job, runner="", lease_until_seconds=0.0, changed_seconds=now_seconds)
        return replace(free, settled=True, unsure=tuple(unsure))

    return change


def parts_of(picked: Sequence[Picked]) -> list[str]:
    """Return letters as they are kept: `PART_SIZE` of them in each text."""
    parts = [picked[first : first + PART_SIZE] for first in range(0, len(picked), PART_SIZE)]
    return [json.dumps([[each.letter_id, each.last_failed_seconds] for each in part]) for part in parts]


def picked_of(part: str) -> list[Picked]:
    """Return the letters of one text."""
    loaded: list[list[Any]] = json.loads(part)
    return [Picked(letter_id, last_failed_seconds) for letter_id, last_failed_seconds in loaded]
