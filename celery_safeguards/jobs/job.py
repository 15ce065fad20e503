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
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, Self

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.jobs.refusals import JobUnreadable
from celery_safeguards.jobs.tally import Tally
from celery_safeguards.jobs.tempo import Tempo
from celery_safeguards.stored_types import known_fields, names_of_fields, require_types

JobStatus = Literal["running", "paused", "stopped", "cancelled", "done"]
STATUSES: tuple[JobStatus, ...] = ("running", "paused", "stopped", "cancelled", "done")
OVER: frozenset[JobStatus] = frozenset({"cancelled", "done"})
MOST_AT_ONCE = 10_000
"""Each step writes down which letters are on their way."""

OnTheirWay = Mapping[str, tuple[float, float]]
"""By letter: its last failure when it was chosen, and when it was sent."""


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
