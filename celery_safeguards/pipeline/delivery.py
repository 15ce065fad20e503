"""
One delivery of a keyed message: what it is, and the steps that admitting, settling and failing share.

Every write under a claim goes through `settle`: it is tried again while the store is away, until the lease is over;
then nobody knows the outcome, and nothing is acknowledged.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from celery_safeguards.admission.gate import Gate
from celery_safeguards.admission.hold import Hold
from celery_safeguards.admission.plan import Plan
from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.text import ErrorText
from celery_safeguards.errors import (
    DeadLettered,
    DeferralRefused,
    DroppedLocally,
    KeyRefused,
    LetteredError,
    NotOurs,
    Quarantined,
    StoreUnavailable,
)
from celery_safeguards.headers import Lineage
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline.burial import compose_letter, letter_of, new_letter_id, write_letter
from celery_safeguards.pipeline.copies import lineage_headers
from celery_safeguards.pipeline.deferring import put_off
from celery_safeguards.policy import Policy
from celery_safeguards.signals import end_delivery, lease_lost
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)
_MAX_PAUSE_SECONDS = 5.0
TO_MARK = "sg_to_mark"
"""Where a request holds the delivery that is to be marked once Celery has stored and reported its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A keyed message in the hands of this process."""

    task: Any
    request: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    policy: Policy
    plan: Plan
    wiring: Wiring
    lineage: Lineage
    key: str
    gate: Gate
    lock: LockAsk | None = None
    """What is asked for of the task's lock."""

    def arguments(self) -> Mapping[str, Any]:
        """Return the body's arguments by name; empty where they do not fit, which the body will say best."""
        try:
            return self.plan.arguments(self.args, self.kwargs)
        except KeyRefused:
            return {}

    def headers(self, record: Record | None) -> dict[str, Any]:
        """Return what a copy of this message says of its past."""
        return lineage_headers(record, self.key, self.lineage)

    def end(self, outcome: Outcome, reason: str | None = None) -> None:
        """Tell how this delivery ended."""
        end_delivery(self.task, self.request.id, outcome, self.key, reason)

    def log(self, message: str) -> None:
        """Tell the log something that changes no outcome."""
        logger.warning("%s[%s] %s: %s", self.task.name, self.request.id, self.key, message)

    def letters_to_close(self, record: Record) -> list[str]:
        """Return the letters that a success ends: the record's, and the one that this replay came from."""
        return [each for each in dict.fromkeys((record.letter_id, self.lineage.letter_id)) if each]

    def put_off(self, reason: str, record: Record | None, wait_seconds: float | None = None) -> NoReturn:
        """Publish a copy for later and end this delivery; raises `Deferred` or `DroppedLocally`."""
        if self.request.is_eager:
            raise DeferralRefused(f"{reason}: eager execution publishes nothing")
        put_off(
            self.task,
            self.request,
            self.wiring,
            self.lineage,
            headers=self.headers(record),
            reason=reason,
            known_wait_seconds=wait_seconds,
        )

    def drop(self, reason: str, cause: BaseException | None = None) -> NoReturn:
        """End this delivery without a right to acknowledge."""
        self.end(Outcome.FENCED, reason)
        raise DroppedLocally(reason) from cause

    def settle(self, hold: Hold, write: Callable[[], Record]) -> Record:
        """
        Write an outcome, again and again while the store is away and the lease may still be renewed elsewhere.

        Raises:
            NotOurs: another owner holds the record.
            DroppedLocally: the store stayed away.

        """
        clock = self.wiring.clock
        ends = max(hold.lease_ends, clock.monotonic_seconds() + self.gate.lease_seconds)
        pause = self.wiring.settings.settle_retry_seconds
        while True:
            try:
                return write()
            except StoreUnavailable as error:
                if clock.monotonic_seconds() + pause >= ends:
                    self.drop(f"its outcome could not be recorded ({error})", error)
            clock.sleep(self.wiring.chance.uniform(pause / 2, pause))
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def settle_or_drop(self, hold: Hold, write: Callable[[], Record]) -> Record:
        """Write an outcome; one that was fenced out has no right to acknowledge."""
        try:
            return self.settle(hold, write)
        except NotOurs as error:
            lease_lost.send(self.task, task_id=self.request.id, key=self.key, reason=str(error))
            self.drop(f"another owner has the work ({error})", error)

    def letter(
        self,
        record: Record | None,
        *,
        kind: FailureKind,
        reason: str,
        effect_possible: bool,
        error: ErrorText | None = None,
        past: Sequence[FailedAttempt] = (),
    ) -> Letter:
        """
        Return the letter of this message.

        A record keeps one letter over all its series, but for an edited copy of that very letter, whose message stays.
        `past`: its failed attempts, as far as its headers do not tell of them.
        """
        kept = record.letter_id if record else ""
        if kept == self.lineage.edited_from:
            kept = ""
        return compose_letter(
            self.wiring,
            self.request,
            letter_id=kept or self.lineage.letter_id or new_letter_id(),
            kind=kind,
            reason=reason,
            effect_possible=effect_possible,
            error=error or ErrorText(type="", message=reason),
            attempts=record.attempt if record else 0,
            lost_starts=self.gate.lost_starts_of(record),
            past=past,
            key=self.key,
            scope=self.gate.key.scope,
        )

    def inter(self, record: Record) -> Record:
        """
        Finish a burial from what the dying record holds: the letter, then the final state.

        Raises:
            NotOurs: the record has moved on since, for instance into a replay.
            StoreUnavailable: the letter is not durable.

        """
        write_letter(self.wiring, letter_of(record), tasks=self.task.app.tasks)
        return self.gate.finish_burial(record)

    def fail_buried(self, record: Record, cause: BaseException | None) -> NoReturn:
        """Raise what Celery stores for work that is buried now."""
        quarantined = record.state is State.QUARANTINED
        self.end(Outcome.UNKNOWN if quarantined else Outcome.DEAD_LETTERED, record.failure.get("reason"))
        raise self.reported_once(self.lettered(Quarantined if quarantined else DeadLettered, record), record) from cause

    def reported_once(self, error: LetteredError, record: Record) -> LetteredError:
        """
        Return the error as Celery is to report it: to errbacks and the chord of each task id once.

        What was reported is marked after that; killed in between, it is reported once more.
        """
        request = self.request
        if request.is_eager or not (request.errbacks or request.chain or request.chord):
            return error
        if request.id in record.continued_by:
            request.errbacks = request.chain = request.chord = None
        else:
            setattr(request, TO_MARK, self)
        return error

    def lettered(self, error: type[LetteredError], record: Record) -> LetteredError:
        """Return an error that names the record's letter."""
        failure = record.failure
        return error(record.letter_id, str(failure.get("kind", "")), str(failure.get("error", "")))
