"""
One delivery of a task without a key: the body at once, and nothing asked of any store.

A failed attempt is retried by the task's policy or becomes a dead letter before it is acknowledged. A delivery that the
broker marks as redelivered may follow a start that was lost: its starts are counted, so that a message that kills its
process ends as poison.
"""

import logging
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry

from celery_safeguards import headers as h
from celery_safeguards.attempts import kept_in_header
from celery_safeguards.errors import DeadLettered, DroppedLocally, KeyRefused, LockLost, StoreUnavailable
from celery_safeguards.headers import Lineage
from celery_safeguards.ledger.key import bind, body_signature
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline.burial import compose_letter, wire_of, write_letter
from celery_safeguards.pipeline.continuing import hand_on
from celery_safeguards.pipeline.copies import CopyRefused, eager_copy, publish_copy
from celery_safeguards.pipeline.counting import end_counted_start, is_redelivered, most_starts
from celery_safeguards.pipeline.deferring import is_overdue, put_off
from celery_safeguards.pipeline.ensuring import check_body, check_postcondition
from celery_safeguards.pipeline.failing import (
    Attempt,
    FailedForGood,
    NextStep,
    RetryAsked,
    as_asked,
    error_text,
    failed_attempt,
    is_stored_as_itself,
    name_letter,
    next_step,
    raise_asked_retry,
    retried_in,
)
from celery_safeguards.pipeline.indexing import shown_error
from celery_safeguards.pipeline.locking import HeldByDelivery, Skipped, lock_ask, take_lock
from celery_safeguards.pipeline.refusing import bury_nameless
from celery_safeguards.pipeline.safe import Safe, running
from celery_safeguards.pipeline.starting import run_body
from celery_safeguards.policy import Declared, OnStoreDown
from celery_safeguards.retry.decide import Again, Bury
from celery_safeguards.signals import delivery_ended, end_delivery, lease_lost
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)


def run_unkeyed(
    task: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, unprotected_key: str | None = None
) -> Any:
    """Run one delivery of a task without a key, or of one whose key cannot be claimed while the store is down."""
    lock = None
    if task.lock_plan is not None and unprotected_key is None:
        answer = _locked(task, request)
        if isinstance(answer, Skipped):
            end_delivery(task, request.id, Outcome.SKIPPED, None, answer.reason)
            return hand_on(task, request, answer.result)
        lock = answer
    try:
        return _run(task, request, args, kwargs, unprotected_key, lock)
    except BaseException:
        # Whatever ends the delivery before its body has: put off, buried, or its process told to end.
        if lock is not None:
            lock.give_up()
        raise


def _run(
    task: Any,
    request: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    unprotected_key: str | None,
    lock: HeldByDelivery | None,
) -> Any:
    counted = is_redelivered(request) and task.policy.declared is not Declared.AT_MOST_ONCE and unprotected_key is None
    if counted:
        _begin_counted_start(task, request)
    try:
        with running(Safe(request.id, request.retries + 1, unprotected_key, lock)):
            result = run_body(task, request, args, kwargs)
            raise_asked_retry(request)
            check_body(task, request)
            if task.policy.ensure is not None:
                check_postcondition(task.policy.ensure, result, bind(body_signature(task.run), args, kwargs))
    except Exception as error:  # noqa: BLE001 - the pipeline's boundary: every error of the body is decided on
        _failed(task, request, error, counted=counted, lock=lock)
    if lock is not None:
        _release_or_drop(task, request, lock)
    if counted:
        end_counted_start(task, request)
    if request.headers and h.LETTER in request.headers:
        _close_letter(task, request, "succeeded")
    hand_on(task, request, result)
    if delivery_ended.receivers:
        end_delivery(task, request.id, Outcome.SUCCEEDED)
    return result


def _locked(task: Any, request: Any) -> HeldByDelivery | Skipped | None:
    """Take the delivery's lock before anything is counted; None: it runs unprotected."""
    wiring, lineage = Wiring.of(task.app), Lineage.from_headers(request.headers)
    try:
        ask = lock_ask(task, request)
    except KeyRefused as error:
        bury_nameless(task, request, lineage, error)
    try:
        answer = take_lock(task, request, ask)
    except StoreUnavailable as error:
        if task.policy.on_store_down is OnStoreDown.RUN_UNPROTECTED:
            logger.warning("%s[%s] runs without its lock: %s", task.name, request.id, error)
            return None
        if request.is_eager:
            raise
        reason = f"its lock cannot be asked for, the store is down ({error})"
        put_off(task, request, wiring, lineage, headers={}, reason=reason)
    if not isinstance(answer, str):
        return answer
    if is_overdue(wiring.settings, lineage, wiring.clock):
        reason = f"{answer}, longer than safeguards_deferral_deadline_seconds"
        _bury(task, request, FailureKind.INFRASTRUCTURE, reason, None, effect_possible=False)
    return put_off(task, request, wiring, lineage, headers={}, reason=answer)


def _release_or_drop(task: Any, request: Any, lock: HeldByDelivery) -> None:
    """Release the lock; a delivery that has lost it has no right to acknowledge: what it wrote may be refused."""
    try:
        lock.release()
    except LockLost as error:
        lease_lost.send(task, task_id=request.id, key=lock.held.name, reason=str(error))
        _drop(task, request, f"succeeded, but its lock was lost ({error})", error)


def _drop(task: Any, request: Any, reason: str, error: Exception) -> NoReturn:
    if task.policy.declared is Declared.AT_MOST_ONCE:
        # It is acknowledged already: nothing would bring it back, and nobody would know.
        _bury(task, request, FailureKind.UNKNOWN_OUTCOME, reason, None, effect_possible=True)
    end_delivery(task, request.id, Outcome.FENCED, None, reason)
    raise DroppedLocally(reason) from error


def _begin_counted_start(task: Any, request: Any) -> None:
    wiring, limit = Wiring.of(task.app), task.policy.max_lost_starts
    try:
        count = wiring.starts.begin(request.id, most_starts(request, limit))
    except StoreUnavailable as error:
        put_off(
            task,
            request,
            wiring,
            Lineage.from_headers(request.headers),
            headers={},
            reason=f"a redelivered message must be counted, and the store is down ({error})",
        )
    if count is None:
        kind, reason = FailureKind.WORKER_LOST, f"started {limit} times without an outcome"
        _bury(task, request, kind, reason, None, effect_possible=True)


def _close_letter(task: Any, request: Any, how: str) -> None:
    """Close the letter that this replay came from."""
    letter_id = Lineage.from_headers(request.headers).letter_id
    try:
        if letter_id is not None:
            Wiring.of(task.app).letters.close(letter_id, f"task {request.id} {how}")
    except StoreUnavailable as error:
        # The work is done: a letter that stays "replayed" is the lesser lie.
        logger.warning("%s[%s]: letter %s could not be closed: %s", task.name, request.id, letter_id, error)


def _failed(
    task: Any, request: Any, error: Exception, *, counted: bool, lock: HeldByDelivery | None = None
) -> NoReturn:
    if lock is not None:
        # The attempt has failed anyway: what to do next does not depend on who has the lock.
        lock.give_up()
        if isinstance(error, LockLost) and lock.is_lost:
            _drop(task, request, f"stopped at a checkpoint ({error})", error)
    error = as_asked(request, error)
    if isinstance(error, Ignore) or (isinstance(error, Reject) and error.requeue):
        if counted:
            end_counted_start(task, request)
        if isinstance(error, Ignore) and request.headers and h.LETTER in request.headers:
            _close_letter(task, request, "was ignored by its body")
        raise error
    wiring, lineage = Wiring.of(task.app), Lineage.from_headers(request.headers)
    now = wiring.clock.wall_seconds()
    began = lineage.began if lineage.began is not None else now
    step = next_step(wiring, task.policy, Attempt(request.retries + 1, max(0.0, now - began), error))
    if counted:
        end_counted_start(task, request)
    if isinstance(step.decision, Bury):
        if request.is_eager:
            raise step.raised
        effect_possible = step.failure.effect_possible
        _bury(task, request, step.failure.kind, step.decision.reason, step, effect_possible=effect_possible)
    _retry(task, request, step, step.decision, error, began=began)


def _retry(task: Any, request: Any, step: NextStep, again: Again, error: Exception, *, began: float) -> NoReturn:
    asked = error if isinstance(error, RetryAsked) else RetryAsked()
    wiring, earlier = Wiring.of(task.app), Lineage.from_headers(request.headers).attempts
    text = error_text(wiring, step.cause)
    attempt = failed_attempt(wiring, request, request.retries + 1, retried_in(again.delay_seconds), text)
    carried = {h.BEGAN: began, h.ATTEMPTS: kept_in_header(earlier, attempt)}
    if request.is_eager:
        signature = eager_copy(task, request, asked.other_args, asked.other_kwargs, headers=carried)
        raise Retry(exc=step.error, when=0, is_eager=True, sig=signature)
    try:
        publish_copy(
            task,
            request,
            again.delay_seconds,
            headers=carried,
            retries=request.retries + 1,
            args=asked.other_args,
            kwargs=asked.other_kwargs,
            options=asked.options,
        )
    except CopyRefused as refused:
        if not task.acks_late or refused.is_final:
            # Acknowledged already, or to be refused each time that it comes back, with a start of the body before it.
            reason = f"its retry could not be published ({refused})"
            _bury(task, request, step.failure.kind, reason, step, effect_possible=step.failure.effect_possible)
        end_delivery(task, request.id, Outcome.FENCED, None, f"its retry could not be published ({refused})")
        raise DroppedLocally(str(refused)) from refused
    end_delivery(task, request.id, Outcome.RETRIED, None, f"{step.failure.kind}, again in {again.delay_seconds:.1f} s")
    raise Retry(exc=step.error, when=again.delay_seconds) from step.cause


def _bury(
    task: Any, request: Any, kind: FailureKind, reason: str, step: NextStep | None, *, effect_possible: bool
) -> NoReturn:
    wiring = Wiring.of(task.app)
    cause = step.cause if step else DeadLettered(request.id, kind.value, reason)
    text = error_text(wiring, cause)
    past = []
    if step is not None:
        message = shown_error(wiring, wire_of(request), task, text.message)
        past = [failed_attempt(wiring, request, request.retries + 1, f"buried: {reason}", text, message)]
    letter = compose_letter(
        wiring,
        request,
        # One message, one letter: the id comes with every copy, and a replay brings the id of the letter it came from.
        letter_id=Lineage.from_headers(request.headers).letter_id or request.id,
        kind=kind,
        reason=reason,
        effect_possible=effect_possible,
        error=text,
        attempts=request.retries + 1,
        past=past,
    )
    is_kept = True
    try:
        write_letter(wiring, letter, tasks=task.app.tasks)
    except StoreUnavailable as error:
        end_delivery(task, request.id, Outcome.FENCED, None, f"its letter could not be written ({error})")
        if task.acks_late:
            raise DroppedLocally(str(error)) from error
        # It is acknowledged, and nothing brings it back: its caller, at least, is told.
        is_kept = False
        logger.error("%s[%s] failed (%s), and has no letter: %s", task.name, request.id, reason, error)  # noqa: TRY400
    else:
        end_delivery(task, request.id, Outcome.DEAD_LETTERED, None, reason)
    raised = step.raised if step else None
    if isinstance(raised, Exception) and is_stored_as_itself(task, raised, error_text(wiring, raised)):
        raise FailedForGood(name_letter(raised, letter) if is_kept else raised)
    raise DeadLettered(letter.id, kind.value, f"{text.type}: {text.message}") from cause
