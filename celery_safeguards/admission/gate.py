"""
One delivery's dialogue with the store: ask, and write what was decided.

The gate turns decisions into changes of the record and tells whether they were written. A False answer to `take`
means that the record moved between the question and the write: ask again. Nothing here calls the outside.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.changes import (
    BEGINS,
    Changes,
    attempt_fields,
    done_fields,
    past_fields,
    settled_fields,
)
from celery_safeguards.admission.hold import Ending, Hold, LockIsHeld, Question
from celery_safeguards.admission.plan import Plan
from celery_safeguards.admission.store import AdmissionStore, Change, Continuing
from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.clock import Clock
from celery_safeguards.errors import LockLost, NotOurs
from celery_safeguards.ledger.decide import (
    Arrival,
    Ask,
    Bury,
    Go,
    Resume,
    decide,
    doubt_of,
)
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.locks.store import HeldLock, LockAsk


class Gate:
    """The dialogue of one delivery about one key."""

    def __init__(
        self,
        store: AdmissionStore,
        plan: Plan,
        key: str,
        arrival: Arrival,
        clock: Clock,
        lock: LockAsk | None = None,
    ) -> None:
        self.key = plan.record_key(key)
        self.arrival = arrival
        self.lock = lock
        self._store = store
        self._plan = plan
        self._clock = clock
        self._changes = Changes(plan, self.key, arrival)

    @property
    def lease_seconds(self) -> float:
        """How long a claim holds without renewal."""
        return self._store.lease_seconds

    def ask(self) -> Question:
        """
        Put the question, and claim the key at once where it has no record and nothing stands against it.

        Raises:
            LockIsHeld: but for the lock, it would have been claimed.
            LockLost: the claim is this delivery's already, its answer was lost on the way, and so is its lock.

        """
        arrival, asked_at = self.arrival, self._clock.monotonic_seconds()
        unproven = not arrival.seen and arrival.verdict is None
        first = self._changes.start(None, new_series=True)
        lock = self.lock
        answer = self._store.admit(self.key, arrival.owner, first, unproven=unproven, epoch=arrival.epoch, lock=lock)
        if answer.barred is not None:
            raise LockIsHeld(answer.barred)
        if answer.claimed and answer.record is not None:
            hold = self._held(answer.record, asked_at, answer.view, answer.lock)
            return Question(Go("no record"), None, answer.view, hold)
        decision = decide(answer.record, arrival, self._plan.ledger, answer.view)
        resumed = None
        if isinstance(decision, Resume) and answer.record is not None:
            # The lease runs from the first question, whose answer was lost: nothing is known of when that was sent.
            held = HeldLock(ask=lock) if lock else None
            resumed = self.renew(self._held(answer.record, asked_at, answer.view, held))
        return Question(decision, answer.record, answer.view, resumed)

    def start(self, go: Go, record: Record | None) -> Hold | None:
        """Claim the record for one more start of the body. Raises `LockIsHeld`."""
        return self._take(
            record, self._changes.start(record, new_series=go.new_series or record is None), lock=self.lock
        )

    def start_held(self, hold: Hold) -> Hold:
        """
        Start the body under a claim that was held to ask: same owner, same fence, a fresh lease.

        Compared with the fence, not with the revision: the claim was renewed while the outside was asked.

        Raises:
            NotOurs: the claim was taken meanwhile; the answer counts no more.

        """
        asked_at = self._clock.monotonic_seconds()
        fresh = self._changes.start(hold.record, new_series=False)
        lease = {"lease_until_us": self._store.lease_seconds}
        began = {} if hold.record.attempt else BEGINS
        fields = {**fresh.fields, "effect_possible": False, "doubt_us": 0}
        change = replace(fresh, fields=fields, after_seconds={**began, **lease})
        record = self._store.settle(self.key, hold.record, State.IN_PROGRESS, change)
        return replace(hold, record=record, lease_ends=asked_at + self._store.lease_seconds)

    def hold_to_ask(self, ask: Ask, record: Record | None) -> Hold | None:
        """Claim the record to ask `verify`; no start is counted. Raises `LockIsHeld`: what it asks about must hold."""
        fields: dict[str, Any] = {"state": State.IN_PROGRESS, "asking": True, "effect_possible": True}
        if ask.new_series or record is None:
            fields |= {"attempt": 0, "lost_starts": 0, "asked": 0}
        fields |= past_fields(record, new_series=ask.new_series)
        return self._take(record, self._changes.taking(record, {**fields, "doubt_us": ask.doubt_us}), lock=self.lock)

    def hold_to_bury(self, bury: Bury, record: Record | None, burial: Mapping[str, Any]) -> Hold | None:
        """Claim the record for a burial; `burial` holds its letter and failure."""
        fields = {
            "state": State.DYING,
            "asking": False,
            "final": bury.final,
            "released": False,
            "effect_possible": bury.effect_possible,
            "doubt_us": doubt_of(record) if record else 0,
            **burial,
        }
        return self._take(record, self._changes.taking(record, fields, keep=True))

    def accept(self, record: Record | None, ending: Ending) -> Hold | None:
        """Record as done what a person said has happened."""
        fields = {"asking": False, **done_fields(ending), **past_fields(record, new_series=True)}
        return self._take(record, self._changes.taking(record, fields))

    def settle_done(self, hold: Hold, ending: Ending, *, continues_seconds: float = 0.0) -> Record:
        """
        Write success; with `continues_seconds`, keep the right to send what follows for so long.

        Raises:
            NotOurs: another owner holds the record.
            StoreUnavailable: it is not known to be written.

        """
        fields = {**done_fields(ending), **settled_fields(hold), **past_fields(hold.record, new_series=True)}
        if not continues_seconds:
            return self._settle(hold, fields)
        lease = {"lease_until_us": continues_seconds}
        return self._settle(hold, {**fields, "continuing": self.arrival.task_id}, lease)

    def settle_retry(
        self,
        hold: Hold,
        delay_seconds: float,
        failure: Mapping[str, Any],
        *,
        effect_possible: bool,
        ambiguous: bool,
        attempt: FailedAttempt | None = None,
    ) -> Record:
        """
        Write that the body is to be started again, and when.

        Args:
            hold: the claim.
            delay_seconds: from the store's now.
            failure: of the attempt.
            effect_possible: the attempt may have had an outside effect.
            ambiguous: its end is not known, and a request may be in flight: `verify` waits. A definite end needs none.
            attempt: for the history of its attempts.

        Raises:
            NotOurs: another owner holds the record.
            StoreUnavailable: it is not known to be written.

        """
        doubted_before = hold.record.effect_possible
        fields = {"state": State.RETRY_DUE, "failure": dict(failure), **settled_fields(hold)}
        fields |= {"effect_possible": effect_possible or doubted_before, **attempt_fields(hold, attempt)}
        after = {"not_before_us": delay_seconds}
        if ambiguous:
            after["doubt_us"] = 0.0
        elif not doubted_before:
            fields["doubt_us"] = 0
        return self._settle(hold, fields, after, extra_seconds=delay_seconds)

    def settle_unanswered(self, hold: Hold, delay_seconds: float) -> Record:
        """Give back a claim that was held to ask, the doubt unchanged. Raises `NotOurs`, `StoreUnavailable`."""
        fields = {"state": State.RETRY_DUE, "asking": False, "asked": hold.record.asked + 1}
        after = {"not_before_us": delay_seconds}
        return self._settle(hold, fields, after)

    def settle_dying(self, hold: Hold, final: State, burial: Mapping[str, Any], *, effect_possible: bool) -> Record:
        """Write that the work is to be buried, with the letter that must exist first."""
        fields = {"state": State.DYING, "final": final, "asking": False, **burial, **settled_fields(hold)}
        fields["effect_possible"] = effect_possible
        after = {"doubt_us": 0.0} if effect_possible else {}
        return self._settle(hold, fields, after, to_bury=True)

    def finish_burial(self, record: Record) -> Record:
        """Write the final state, under the burial's own fence: helpers and the first burier share it."""
        fields = {"state": State(record.final), "letter": ""}
        return self._store.settle(self.key, record, State.DYING, Change(fields=fields, retention_seconds=None))

    def begin_continuing(self, seconds: float) -> Continuing:
        """Ask to send what follows a done record. Raises `StoreUnavailable`."""
        return self._store.begin_continuing(self.key, self.arrival.task_id, seconds)

    def end_continuing(self) -> None:
        """Note that what follows has been sent for this task id. Raises `StoreUnavailable`."""
        self._store.end_continuing(self.key, self.arrival.task_id)

    def note_step(self, hold: Hold, name: str, result: str | None) -> Hold:
        """Write that a step has begun (None) or its result, under the claim. Raises `NotOurs`, `StoreUnavailable`."""
        asked_at = self._clock.monotonic_seconds()
        fields = {"state": State.IN_PROGRESS, "steps": {**hold.record.steps, name: result}}
        lease = {"lease_until_us": self._store.lease_seconds}
        record = self._settle(hold, fields, lease)
        return replace(hold, record=record, lease_ends=asked_at + self._store.lease_seconds)

    def renew(self, hold: Hold) -> Hold | None:
        """
        Renew the lease now; None if the claim is gone.

        Raises:
            LockLost: the claim is there, its lock is not.

        """
        asked_at, lock = self._clock.monotonic_seconds(), hold.lock
        view, renewed = self._store.renew({hold.record.owner: hold.key}, [lock] if lock else [])
        answer = renewed[hold.record.owner]
        if answer.record is None:
            return None
        if lock is not None:
            if not answer.lock_fence:
                raise LockLost(f"{lock.name}: another owner has it, or it was released")
            lock = replace(lock, fence=answer.lock_fence, epoch=lock.epoch or view.epoch)
        return self._held(answer.record, asked_at, view, lock)

    def lost_starts_of(self, record: Record | None) -> int:
        """Return how many starts had no outcome, for the letter."""
        return record.lost_starts if record else 0

    def read(self) -> Record | None:
        """Return the record as it stands."""
        return self._store.read(self.key)

    def _take(self, record: Record | None, change: Change, *, lock: LockAsk | None = None) -> Hold | None:
        asked_at = self._clock.monotonic_seconds()
        answer = self._store.take(self.key, record.rev if record else 0, self.arrival.owner, change, lock=lock)
        if answer.barred is not None:
            raise LockIsHeld(answer.barred)
        if not answer.claimed or answer.record is None:
            return None
        return self._held(answer.record, asked_at, answer.view, answer.lock)

    def _settle(
        self,
        hold: Hold,
        fields: Mapping[str, Any],
        after_seconds: Mapping[str, float] | None = None,
        *,
        to_bury: bool = False,
        extra_seconds: float = 0.0,
    ) -> Record:
        retention = None if to_bury else self._plan.idempotent.retention_seconds + extra_seconds
        change = Change(fields=fields, after_seconds=after_seconds or {}, retention_seconds=retention)
        in_lease = self._clock.monotonic_seconds() < hold.lease_ends
        # The lock goes with the claim, and only with it.
        lock = None if fields["state"] is State.IN_PROGRESS else hold.lock
        try:
            return self._store.settle(self.key, hold.record, State.IN_PROGRESS, change, recreate=in_lease, lock=lock)
        except LockLost as error:
            raise NotOurs(str(error)) from error

    def _held(self, record: Record, asked_at: float, view: StoreView, lock: HeldLock | None = None) -> Hold:
        # Counted for no longer than a store that was wiped waits for its owners.
        lock_ends = asked_at + min(lock.ask.lease_seconds, self._store.lease_seconds) if lock else inf
        return Hold(self.key, record, asked_at + self._store.lease_seconds, view.epoch, lock, lock_ends)
