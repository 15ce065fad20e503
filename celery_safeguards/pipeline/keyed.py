"""
One delivery of a task with an idempotency key: admit → run → ensure → settle, and the failing order.

Settle, then publish, then acknowledge. A kill between any two steps leaves the record ahead of the broker, never
behind it: the message comes again and is answered from the record.
"""

import logging
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry

from celery_safeguards.admission.changes import settled_fields
from celery_safeguards.admission.gate import Gate
from celery_safeguards.admission.hold import Ending, Hold
from celery_safeguards.attempts import FailedAttempt, read_attempts
from celery_safeguards.clock import to_seconds
from celery_safeguards.deadletter.letter import LetterUnreadable
from celery_safeguards.deadletter.refusals import NoSuchLetter
from celery_safeguards.errors import LeaseLost, NotOurs, StoreUnavailable
from celery_safeguards.headers import VERDICT
from celery_safeguards.ledger.decide import Arrival, OnUnknown
from celery_safeguards.ledger.record import Record, ResultForm, State
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline.admitting import Admission, Finished
from celery_safeguards.pipeline.burial import burial_fields, wire_of
from celery_safeguards.pipeline.continuing import continue_canvas, hand_on, seconds_to_send
from celery_safeguards.pipeline.copies import CopyRefused, eager_copy, publish_copy
from celery_safeguards.pipeline.delivery import Delivery
from celery_safeguards.pipeline.ensuring import check_body, check_postcondition
from celery_safeguards.pipeline.failing import (
    Attempt,
    NextStep,
    RetryAsked,
    as_asked,
    error_text,
    failed_attempt,
    next_step,
    raise_asked_retry,
    retried_in,
)
from celery_safeguards.pipeline.indexing import shown_error
from celery_safeguards.pipeline.locking import Skipped, renewed_here
from celery_safeguards.pipeline.receiving import received
from celery_safeguards.pipeline.results import encode_result
from celery_safeguards.pipeline.safe import KeyedSafe, running
from celery_safeguards.pipeline.starting import run_body
from celery_safeguards.pipeline.unkeyed import run_unkeyed
from celery_safeguards.policy import OnStoreDown
from celery_safeguards.retry.decide import Again, Bury
from celery_safeguards.signals import lease_lost
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)


def run_keyed(task: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one delivery of a keyed task."""

    def gate_of(wiring: Wiring, key: str, arrival: Arrival, lock: LockAsk | None) -> Gate:
        return Gate(wiring.admission, task.plan, key, arrival, wiring.clock, lock)

    delivery = received(task, request, args, kwargs, gate_of)
    admission = Admission(delivery)
    try:
        admitted = admission.admit()
    except StoreUnavailable as error:
        return _without_store(delivery, error, answered=admission.answered)
    if isinstance(admitted, Skipped):
        delivery.end(Outcome.SKIPPED, admitted.reason)
        return hand_on(task, request, admitted.result)
    if isinstance(admitted, Finished):
        continue_canvas(delivery, admitted.record, admitted.result)
        return admitted.result
    return KeyedRun(delivery, admitted).run()


def _without_store(delivery: Delivery, error: StoreUnavailable, *, answered: bool) -> Any:
    # Once the store has answered, the record says something, and running past it would not be unprotected but wrong.
    if delivery.policy.on_store_down is OnStoreDown.RUN_UNPROTECTED and not answered:
        logger.warning("%s[%s] runs unprotected: %s", delivery.task.name, delivery.request.id, error)
        # What needs no record still holds: the key for outside systems, the post-condition, retries and letters.
        return run_unkeyed(
            delivery.task, delivery.request, delivery.args, delivery.kwargs, unprotected_key=delivery.key
        )
    if delivery.request.is_eager:
        raise error
    return delivery.put_off(f"the store is down ({error})", None)


class KeyedRun:
    """The body under a claim, and what its end means."""

    def __init__(self, delivery: Delivery, hold: Hold) -> None:
        self._delivery = delivery
        self._safe = KeyedSafe(delivery, hold)
        self._claimed = hold.record
        self._body_began = delivery.wiring.clock.monotonic_seconds()

    @property
    def _hold(self) -> Hold:
        """The claim as last renewed, with the steps the body has noted."""
        return self._safe.hold

    def run(self) -> Any:
        """Run the body, and settle what came of it."""
        delivery, lock = self._delivery, self._hold.lock
        if lock is None or not delivery.request.is_eager:
            return self._run()
        with renewed_here(delivery.task, delivery.request, lock):
            return self._run()

    def _run(self) -> Any:
        try:
            result = self._body()
        except Exception as error:  # noqa: BLE001 - the pipeline's boundary: every error of the body is decided on
            self._failed(error)
        return self._succeeded(result)

    def _body(self) -> Any:
        delivery = self._delivery
        with running(self._safe):
            result = run_body(delivery.task, delivery.request, delivery.args, delivery.kwargs)
            raise_asked_retry(delivery.request)
            check_body(delivery.task, delivery.request)
            if delivery.policy.ensure is not None:
                check_postcondition(delivery.policy.ensure, result, delivery.arguments())
        return result

    def _encoded(self, result: Any) -> tuple[Any, Ending]:
        return encode_result(
            result,
            store_result=self._delivery.plan.idempotent.store_result,
            max_bytes=self._delivery.wiring.settings.max_result_bytes,
        )

    def _succeeded(self, result: Any) -> Any:
        delivery, hold = self._delivery, self._hold
        seen, ending = self._encoded(result)
        try:
            right = seconds_to_send(delivery)
            record = delivery.settle(hold, lambda: delivery.gate.settle_done(hold, ending, continues_seconds=right))
        except NotOurs as error:
            self._note_late_success(ending.text)
            lease_lost.send(delivery.task, task_id=delivery.request.id, key=delivery.key, reason=str(error))
            delivery.drop(f"succeeded, but another owner has the work ({error})", error)
        self._hand_on(record, seen)
        return seen

    def _hand_on(self, record: Record, seen: Any) -> None:
        """Tell of a success that is durable, and send what follows it."""
        delivery = self._delivery
        self._close_letters(record, f"task {delivery.request.id} succeeded")
        delivery.end(Outcome.SUCCEEDED)
        continue_canvas(delivery, record, seen, is_own_settle=True)

    def _close_letters(self, record: Record, note: str) -> None:
        for letter_id in self._delivery.letters_to_close(record):
            self._quietly(lambda ended=letter_id: self._delivery.wiring.letters.close(ended, note))

    def _note_late_success(self, result: str) -> None:
        """Tell the person who must decide: this late success is the verdict they need."""

        def note() -> None:
            record = self._delivery.gate.read()
            if record is not None and record.letter_id:
                what = "a fenced owner reports success"
                self._delivery.wiring.letters.add_note(record.letter_id, what, None, result[:1000])

        self._quietly(note)

    def _quietly(self, write: Any) -> None:
        """The outcome is durable or refused already: a letter that cannot be reached changes nothing of it."""
        try:
            write()
        except (StoreUnavailable, NoSuchLetter, LetterUnreadable) as error:
            logger.warning("%s: its letter could not be updated: %s", self._delivery.key, error)

    def _failed(self, error: Exception) -> NoReturn:
        delivery, hold = self._delivery, self._hold
        # A block in the body that has lost a lock of its own says nothing about the claim: that is a failed attempt.
        if isinstance(error, LeaseLost) and self._safe.is_lost:
            delivery.drop(f"stopped at a checkpoint ({error})", error)
        error = as_asked(delivery.request, error)
        if isinstance(error, Ignore) or (isinstance(error, Reject) and error.requeue):
            self._given_back(error)
        attempt = Attempt(hold.record.attempt, self._elapsed_seconds(), error)
        step = next_step(delivery.wiring, delivery.policy, attempt)
        effect_possible, ambiguous = self._doubts(step)
        if effect_possible and delivery.plan.ledger.on_unknown is OnUnknown.QUARANTINE:
            self._bury(step, State.QUARANTINED, effect_possible=True)
        if isinstance(step.decision, Bury):
            self._bury(step, State.DEAD, effect_possible=effect_possible)
        self._retry(step, step.decision, error, effect_possible=effect_possible, ambiguous=ambiguous)

    def _doubts(self, step: NextStep) -> tuple[bool, bool]:
        """Return whether a failed start may have had an effect, and whether one may still come."""
        ambiguous = step.failure.effect_possible or self._safe.has_open_step
        return ambiguous or self._may_have_effect(), ambiguous

    def _elapsed_seconds(self) -> float:
        """Return the time since the series began."""
        # The lease began on the store when the claim was made; what had passed of the series by then is in the record.
        lease_us = self._claimed.lease_until_us - self._claimed.series_began_us
        before_seconds = max(0.0, to_seconds(lease_us) - self._delivery.gate.lease_seconds)
        return before_seconds + self._delivery.wiring.clock.monotonic_seconds() - self._body_began

    def _may_have_effect(self) -> bool:
        """The doubt belongs to the attempt, not to its last error: with `verify` any start is asked about."""
        asks = self._delivery.plan.ledger.on_unknown is OnUnknown.VERIFY
        return asks or self._hold.record.effect_possible or self._safe.has_begun_step

    def _given_back(self, error: Exception) -> NoReturn:
        """The body itself ended the delivery: `Ignore` finishes the work without a result, `Reject` asks again."""
        delivery, hold = self._delivery, self._hold
        if isinstance(error, Ignore):
            # What follows it, if anything, is the body's own business: `Task.replace` has handed the canvas on.
            nothing = Ending(ResultForm.IGNORED)
            record = delivery.settle_or_drop(hold, lambda: delivery.gate.settle_done(hold, nothing))
            self._close_letters(record, f"task {delivery.request.id} was ignored by its body")
            delivery.end(Outcome.SUCCEEDED, "ignored by the body")
        else:
            kept = shown_error(delivery.wiring, wire_of(delivery.request), delivery.task, repr(error))
            failure = {"kind": FailureKind.TRANSIENT.value, "error": kept, "reason": "rejected by the body"}
            effect_possible, ambiguous = self._may_have_effect(), self._safe.has_open_step
            attempt = self._attempt("put back: rejected by the body", error)
            self._settle_retry(0.0, failure, attempt, effect_possible=effect_possible, ambiguous=ambiguous)
            delivery.end(Outcome.DEFERRED, "rejected by the body")
        raise error

    def _attempt(self, ended: str, error: BaseException) -> FailedAttempt:
        """Return what is kept of the attempt that has failed."""
        delivery = self._delivery
        text = error_text(delivery.wiring, error)
        message = shown_error(delivery.wiring, wire_of(delivery.request), delivery.task, text.message)
        return failed_attempt(delivery.wiring, delivery.request, self._hold.record.attempt, ended, text, message)

    def _settle_retry(
        self,
        delay_seconds: float,
        failure: dict[str, Any],
        attempt: FailedAttempt,
        *,
        effect_possible: bool,
        ambiguous: bool,
    ) -> Record:
        delivery, hold = self._delivery, self._hold

        def write() -> Record:
            return delivery.gate.settle_retry(
                hold, delay_seconds, failure, effect_possible=effect_possible, ambiguous=ambiguous, attempt=attempt
            )

        return delivery.settle_or_drop(hold, write)

    def _retry(
        self, step: NextStep, again: Again, error: Exception, *, effect_possible: bool, ambiguous: bool
    ) -> NoReturn:
        delivery, request = self._delivery, self._delivery.request
        delay = 0.0 if request.is_eager else again.delay_seconds
        attempt = self._attempt(retried_in(delay), step.cause)
        text = error_text(delivery.wiring, step.cause)
        kept = shown_error(delivery.wiring, wire_of(request), delivery.task, f"{text.type}: {text.message}")
        failure = {"kind": step.failure.kind.value, "error": kept, "reason": "retried"}
        record = self._settle_retry(delay, failure, attempt, effect_possible=effect_possible, ambiguous=ambiguous)
        asked = error if isinstance(error, RetryAsked) else RetryAsked()
        # A person's verdict was about what came before this series: it says nothing of the start that has failed now.
        headers = {**delivery.headers(record), VERDICT: None}
        if request.is_eager:
            signature = eager_copy(delivery.task, request, asked.other_args, asked.other_kwargs, headers=headers)
            raise Retry(exc=step.error, when=delay, is_eager=True, sig=signature)
        try:
            publish_copy(
                delivery.task,
                request,
                delay,
                headers=headers,
                retries=request.retries + 1,
                args=asked.other_args,
                kwargs=asked.other_kwargs,
                options=asked.options,
            )
        except CopyRefused as refused:
            # The record says when it is due: the original, which comes back, is put off until then.
            delivery.drop(f"its retry could not be published ({refused})", refused)
        delivery.end(Outcome.RETRIED, f"{step.failure.kind}, again in {delay:.1f} s")
        raise Retry(exc=step.error, when=delay) from step.cause

    def _bury(self, step: NextStep, final: State, *, effect_possible: bool) -> NoReturn:
        delivery, hold = self._delivery, self._hold
        reason = step.decision.reason if isinstance(step.decision, Bury) else "only a person can tell what happened"
        attempt = self._attempt(f"{'quarantined' if final is State.QUARANTINED else 'buried'}: {reason}", step.cause)
        letter = delivery.letter(
            # The start that is told of has an outcome: it is no lost one.
            hold.record.having(**settled_fields(hold)),
            kind=step.failure.kind,
            reason=reason,
            effect_possible=effect_possible,
            error=error_text(delivery.wiring, step.cause),
            past=[*read_attempts(hold.record.attempt_history), attempt],
        )
        fields = burial_fields(letter)
        write = lambda: delivery.gate.settle_dying(hold, final, fields, effect_possible=effect_possible)  # noqa: E731
        dying = delivery.settle_or_drop(hold, write)
        try:
            record = delivery.inter(dying)
        except NotOurs as error:
            delivery.drop(f"somebody else finished the burial ({error})", error)
        except StoreUnavailable as error:
            # The record holds the letter, and whoever brings the message next finishes the burial.
            delivery.put_off(f"its letter could not be written ({error})", dying)
        delivery.fail_buried(record, step.cause)
