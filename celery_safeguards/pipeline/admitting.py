"""
Admission of one delivery: ask, carry out the answer, and ask again whenever the record moved in between.

Ends with a claim to run the body under, with a result to return, or by raising what Celery is to see. See
`ledger.decide` for the table of answers.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from celery.exceptions import Ignore

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.hold import Hold, LockIsHeld, Question
from celery_safeguards.attempts import read_attempts
from celery_safeguards.clock import to_seconds
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.deadletter.refusals import NoSuchLetter
from celery_safeguards.errors import (
    AttachedToLetter,
    ConflictingPayload,
    DeadBefore,
    DeadLettered,
    LockLost,
    NotOurs,
    Refused,
    StoreUnavailable,
)
from celery_safeguards.ledger.decide import (
    Accept,
    Ask,
    Bury,
    Defer,
    Fail,
    FinishBurial,
    Go,
    Refusal,
    Resume,
    Return,
    start,
)
from celery_safeguards.ledger.past import past_of
from celery_safeguards.ledger.record import Record, ResultForm, State
from celery_safeguards.locks.store import Grant
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline.burial import burial_fields, write_letter
from celery_safeguards.pipeline.continuing import continue_canvas, has_continuation, send_publishes
from celery_safeguards.pipeline.deferring import EagerWait, delay_seconds, is_overdue
from celery_safeguards.pipeline.delivery import Delivery
from celery_safeguards.pipeline.locking import Skipped, leave_line, wait_or_skip, why_barred
from celery_safeguards.pipeline.results import encode_result, stored_result
from celery_safeguards.pipeline.verifying import ask_outside
from celery_safeguards.policy import CannotTell, DidNotHappen, Happened, Verify


@dataclass(frozen=True, slots=True)
class Finished:
    """The work is done already; `result` is what the caller gets, `record` how it stands."""

    result: Any
    record: Record


class Admission:
    """The questions of one delivery."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._gate = delivery.gate
        self.answered = False
        """Whether the store has answered at least once."""
        self._asked_after_start = False
        """Whether the answer to a claim for one more start was lost, and asked for."""
        self._is_kept = False
        """Whether the lock is kept for this delivery, since it has waited for its turn."""
        self._eager = EagerWait(delivery.wiring.settings, delivery.wiring.clock) if delivery.request.is_eager else None

    def admit(self) -> Hold | Finished | Skipped:
        """
        Return the claim to run the body under, the result of work that is done, or that of work that is skipped.

        Raises:
            Deferred: put off. DroppedLocally: it could not be.
            LetteredError: the message is refused, naming the letter.
            StoreUnavailable: the store did not answer; nothing was started.

        """
        admitted = None
        try:
            while admitted is None:
                admitted = self._answer()
        finally:
            if self._is_kept and not isinstance(admitted, Hold) and self._gate.lock is not None:
                leave_line(self._delivery.wiring, self._gate.lock)
        return admitted

    def put_off(self, reason: str) -> NoReturn:
        """Put the message off for what is not its record's business, or bury it if that was done for too long."""
        self._defer(Defer(reason), None, None)
        raise TypeError("only a delivery whose caller waits is not put off")

    def _answer(self) -> Hold | Finished | Skipped | None:
        """Ask once, and carry the answer out; None: ask again."""
        try:
            question = self._ask_patiently()
            self.answered = True
            return self._carry_out(question)
        except LockIsHeld as barred:
            self.answered = True
            return self._without_lock(barred.grant)
        except LockLost as error:
            self._delivery.drop(f"its lock was lost while it was claimed ({error})", error)

    def _without_lock(self, grant: Grant) -> Skipped | None:
        delivery, lock = self._delivery, self._delivery.policy.lock
        if self._gate.lock is None or lock is None:
            raise TypeError("only a task with a lock is barred")
        answer = wait_or_skip(delivery.wiring, lock, self._gate.lock, grant)
        if isinstance(answer, Skipped):
            return answer
        self._is_kept = answer
        if not answer:
            self._defer(Defer(why_barred(self._gate.lock, grant)), None, None)
        return None

    def _ask_patiently(self) -> Question:
        """Wait for a store that is away: a child that waits takes no new work, which is the natural brake."""
        wiring = self._delivery.wiring
        # Not longer than the main process lets a child be that may hold a claim it cannot renew.
        wait_seconds = min(wiring.settings.store_wait_seconds, self._gate.lease_seconds / 2)
        ends, pause = wiring.clock.monotonic_seconds() + wait_seconds, 0.1
        while True:
            try:
                return self._gate.ask()
            except StoreUnavailable:
                if wiring.clock.monotonic_seconds() + pause >= ends:
                    raise
            wiring.clock.sleep(wiring.chance.uniform(pause / 2, pause))
            pause = min(pause * 2, 2.0)

    def _carry_out(self, question: Question) -> Hold | Finished | None:
        """Return what ends the round, or None: ask again."""
        record = question.record
        match question.decision:
            case Go() as go:
                return question.hold or self._started(go, record)
            case Ask() as ask:
                held = self._gate.hold_to_ask(ask, record)
                return self._verified(held) if held else None
            case Accept() as accept:
                return self._accepted(accept, record)
            case Return():
                return self._finished(record)
            case Defer() as defer:
                self._defer(defer, question.view, record)
            case Bury() as bury:
                self._bury(bury, record)
            case FinishBurial():
                self._finish_burial(record)
            case Fail() as fail:
                self._fail(fail.refusal, record)
            case Resume():
                return question.hold
        return None

    def _started(self, go: Go, record: Record | None) -> Hold | None:
        """Claim one more start; whose answer was lost asks once more, and is told of its own claim."""
        try:
            return self._gate.start(go, record)
        except StoreUnavailable:
            # Put off, it would leave a claim behind for a body that was never begun: an unknown outcome to the next.
            if self._asked_after_start or self._delivery.plan.idempotent.atomic is not None:
                raise
            self._asked_after_start = True
            return None

    def _defer(self, defer: Defer, view: StoreView | None, record: Record | None) -> None:
        delivery, wait_seconds = self._delivery, None
        if defer.until_us and view is not None:
            wait_seconds = max(0.0, to_seconds(defer.until_us - view.now_us))
        if self._eager is not None:
            self._eager.wait(delay_seconds(delivery.wiring, 0, wait_seconds), defer.reason)
            return
        if wait_seconds is None and is_overdue(delivery.wiring.settings, delivery.lineage, delivery.wiring.clock):
            self._refuse_with_letter(
                "overdue",
                FailureKind.INFRASTRUCTURE,
                f"{defer.reason}, longer than safeguards_deferral_deadline_seconds",
            )
        delivery.put_off(defer.reason, record, wait_seconds)

    def _verified(self, hold: Hold) -> Hold | Finished | None:
        """Act on what the outside says, under the claim that was taken to ask it."""
        delivery = self._delivery
        verify = delivery.plan.idempotent.verify
        if not isinstance(verify, Verify):
            raise TypeError("only a task with Verify asks")
        verdict = ask_outside(verify, delivery.arguments(), delivery.key)
        match verdict:
            case Happened(result):
                seen, ending = self._encoded(result)
                record = delivery.settle_or_drop(hold, lambda: self._gate.settle_done(hold, ending))
                self._close_letter(record, "verify says that it happened")
                delivery.end(Outcome.DEDUPLICATED, "verify says that it happened")
                return Finished(seen, record)
            case DidNotHappen():
                decision = start("verified", hold.record, delivery.plan.ledger, verified=True)
                if isinstance(decision, Go):
                    return self._started_after_asking(hold)
                return self._dying(hold, decision)
            case CannotTell(reason):
                self._unanswered(hold, verify, reason)
                return None

    def _started_after_asking(self, hold: Hold) -> Hold:
        try:
            return self._gate.start_held(hold)
        except NotOurs as error:
            self._delivery.drop(f"verify's answer came too late ({error})", error)

    def _unanswered(self, hold: Hold, verify: Verify, reason: str) -> None:
        delivery = self._delivery
        if hold.record.asked + 1 >= verify.asks:
            why = f"verify gave no clear answer {verify.asks} times, last: {reason}"
            self._dying(hold, Bury(FailureKind.UNKNOWN_OUTCOME, State.QUARANTINED, why, effect_possible=True))
        wait_seconds = delay_seconds(delivery.wiring, hold.record.asked + 1, None)
        record = delivery.settle_or_drop(hold, lambda: self._gate.settle_unanswered(hold, wait_seconds))
        why = f"verify cannot tell ({reason})"
        self._defer(Defer(why, record.not_before_us), delivery.wiring.admission.view(), record)

    def _bury(self, bury: Bury, record: Record | None) -> None:
        letter = self._letter(bury, record)
        hold = self._gate.hold_to_bury(bury, record, burial_fields(letter))
        if hold is not None:
            self._fail_interred(hold.record)

    def _dying(self, hold: Hold, bury: Bury) -> NoReturn:
        delivery = self._delivery
        letter = self._letter(bury, hold.record)
        fields, effect = burial_fields(letter), bury.effect_possible
        write = lambda: self._gate.settle_dying(hold, bury.final, fields, effect_possible=effect)  # noqa: E731
        self._fail_interred(delivery.settle_or_drop(hold, write))

    def _letter(self, bury: Bury, record: Record | None) -> Letter:
        kind, reason, effect = bury.kind, bury.reason, bury.effect_possible
        past = read_attempts(past_of(record)) if record else ()
        return self._delivery.letter(record, kind=kind, reason=reason, effect_possible=effect, past=past)

    def _fail_interred(self, dying: Record) -> NoReturn:
        try:
            record = self._delivery.inter(dying)
        except NotOurs as error:
            self._delivery.drop(f"somebody else finished the burial ({error})", error)
        self._delivery.fail_buried(record, None)

    def _finish_burial(self, record: Record | None) -> None:
        if record is None:
            return
        try:
            self._delivery.inter(record)
        except NotOurs:
            return  # the record has moved on: the next answer tells where to

    def _accepted(self, accept: Accept, record: Record | None) -> Finished | None:
        seen, ending = self._encoded(accept.result)
        hold = self._gate.accept(record, ending)
        if hold is None:
            return None
        self._close_letter(hold.record, "a person said that it happened")
        self._delivery.end(Outcome.DEDUPLICATED, "a person said that it happened")
        return Finished(seen, hold.record)

    def _finished(self, record: Record | None) -> Finished | None:
        if record is None:
            return None
        delivery = self._delivery
        if record.result_form is ResultForm.IGNORED and delivery.request.id == record.task_id:
            # Whatever the body has handed on, it was under this very id, and reports for itself.
            self._close_letter(record, "done, ignored by its body")
            delivery.end(Outcome.DEDUPLICATED, "ignored by the body")
            continue_canvas(delivery, record, None)
            raise Ignore("the body has ignored this message before")
        waits = has_continuation(delivery.request) and delivery.request.id not in record.continued_by
        if waits and record.result_form is not ResultForm.STORED:
            # None, or a marker, would be taken for the result by whatever waits for it. A publish waits for none.
            send_publishes(delivery, record)
            reason = f"the work is done, but its result is not stored ({record.result_form}), and a task waits for it"
            self._refuse_with_letter("unstored", FailureKind.DATA, reason)
        self._close_letter(record, "done")
        delivery.end(Outcome.DEDUPLICATED)
        return Finished(stored_result(record), record)

    def _close_letter(self, record: Record, note: str) -> None:
        # Also on a duplicate: the process that succeeded may have died before it closed the letter.
        for letter_id in self._delivery.letters_to_close(record):
            self._delivery.wiring.letters.close(letter_id, note)

    def _fail(self, refusal: Refusal, record: Record | None) -> NoReturn:
        delivery = self._delivery
        if refusal is Refusal.CONFLICT or record is None:
            self._refuse_with_letter("conflict", FailureKind.CONFLICT, "the key is in use with other arguments")
        if refusal is Refusal.STORED:
            delivery.end(Outcome.REFUSED, "this id had its series")
            raise delivery.reported_once(delivery.lettered(DeadBefore, record), record)
        error = AttachedToLetter if refusal is Refusal.ATTACHED else Refused
        # A letter that still lies in a spool, or is damaged, is named all the same.
        with suppress(NoSuchLetter, LetterUnreadable):
            note = f"a publication was {refusal}"
            delivery.wiring.letters.add_note(record.letter_id, note, None, delivery.request.id)
        delivery.end(Outcome.REFUSED, f"the work is {record.state}: letter {record.letter_id}")
        raise delivery.reported_once(delivery.lettered(error, record), record)

    def _refuse_with_letter(self, why: str, kind: FailureKind, reason: str) -> NoReturn:
        """Bury this message alone: its record belongs to another lineage."""
        delivery = self._delivery
        letter = delivery.letter(None, kind=kind, reason=reason, effect_possible=False)
        came_from = delivery.lineage.letter_id or ""
        # A replay that ends as it did before belongs to the letter that it came from.
        letter = replace(letter, id=came_from if came_from.startswith(f"{why}-") else f"{why}-{delivery.request.id}")
        write_letter(delivery.wiring, letter, tasks=delivery.task.app.tasks)
        delivery.end(Outcome.DEAD_LETTERED, reason)
        raise (ConflictingPayload if kind is FailureKind.CONFLICT else DeadLettered)(letter.id, kind.value, reason)

    def _encoded(self, result: Any) -> tuple[Any, Any]:
        delivery = self._delivery
        return encode_result(
            result,
            store_result=delivery.plan.idempotent.store_result,
            max_bytes=delivery.wiring.settings.max_result_bytes,
        )
