"""
The main process's side of one delivery.

It mints the owner token and hands it to the pool's child together with the raw message, so that letters are written
from the wire bytes. It sees what the child cannot tell: that it died, or was over its hard limit.

    child reports      → Celery's own handling, except a local drop: neither acknowledged nor sent back
    child killed, or   → keyed: mark the claim lost, which is evidence, and put the message back: admission answers by
    hard time limit      `on_unknown`. Unkeyed: count the start; below the limit put it back, at the limit bury it.
                         Atomic: count the start and put it back: its transaction is rolled back

Celery acknowledges a late-acknowledged message whose child died, or requeues it for ever (celery 5.7,
`worker/request.py`); both are replaced here. A hard limit fires `on_failure` and `on_timeout` in 5.7 and only
`on_timeout` before: whichever comes first decides, the other finds the request acknowledged.
"""

import logging
import time
import uuid
from math import inf
from types import SimpleNamespace
from typing import Any, cast

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskPredicate
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_safeguards import headers as h
from celery_safeguards._compat import custom_headers, drop_locally, raised_in_child
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.deadletter.text import ErrorText
from celery_safeguards.delivery.lease import is_lost
from celery_safeguards.errors import DroppedLocally, KeyRefused, SafeguardsError, StoreUnavailable
from celery_safeguards.headers import Lineage
from celery_safeguards.locks.store import HeldLock, LockAsk
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.budget import lease_budget_seconds
from celery_safeguards.pipeline.burial import compose_letter, write_letter
from celery_safeguards.pipeline.counting import is_redelivered
from celery_safeguards.pipeline.locking import holder_of
from celery_safeguards.pipeline.refusing import PASSING
from celery_safeguards.policy import Declared
from celery_safeguards.retry.classify import classify
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.keeper import end_child, keeper_of
from celery_safeguards.worker.renewing import renewing_of

logger = logging.getLogger(__name__)


class SafeRequest(Request):  # type: ignore[misc]
    """A request whose message is never acknowledged before its outcome is durable."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.sg_owner = uuid.uuid4().hex
        self._sg_received = time.monotonic()
        self._request_dict["headers"] = custom_headers(message.headers)
        self._request_dict[h.OWNER] = self.sg_owner
        # The body is the very object that is sent to the child anyway: pickle sends it once.
        self._request_dict[h.WIRE] = {
            "body": message.body,
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "headers": message.headers or {},
            "properties": message.properties or {},
            "delivery_info": self._delivery_info,
        }
        self._sg_goes_on = False
        if getattr(self.task, "lock_plan", None) is not None and not self.task.acks_late:
            # Acknowledged before it runs, nothing of ours would be called at its success (celery 5.7, `Request`).
            self.on_success = self._on_success_acknowledged

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Renew the claim and the lock that the child is about to take."""
        # First, since it may acknowledge, or terminate at once.
        super().on_accepted(pid, time_accepted)
        renewing = renewing_of(self.app)
        if renewing is not None:
            renewing.begins(self.message.delivery_tag, lease_budget_seconds(self.task, self.time_limits))
        keeper, lock = keeper_of(self.app), self._lock_ask(pid)
        # Nothing is to be renewed of a transaction.
        key = None if self._is_atomic else self._record_key()
        if keeper is not None and (key is not None or lock is not None):
            budget_seconds = lease_budget_seconds(self.task, self.time_limits)
            hold_seconds = self.task.policy.lock.max_hold_seconds if lock is not None else None
            most_seconds = inf if hold_seconds is None else hold_seconds
            keeper.keep(self.sg_owner, key, self.id, pid, budget_seconds, lock=lock, max_hold_seconds=most_seconds)

    def revoked(self) -> bool:
        """Whether the body must not begin: also if its message waited here for so long that another worker has it."""
        renewing = renewing_of(self.app)
        has_lapsed = renewing is not None and renewing.has_lapsed(self._sg_received)
        if not self.acknowledged and (has_lapsed or is_lost(self.message)):
            logger.warning("%s[%s] is not started: another worker may have its message", self.name, self.id)
            drop_locally(self)
            return True
        return bool(super().revoked())

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Signal the child; Celery acknowledges at once, but it may take its time to die, and is renewed until then."""
        self._sg_goes_on = True
        try:
            super().terminate(pool, signal)
        finally:
            self._sg_goes_on = False

    def acknowledge(self) -> None:
        """Acknowledge; the claim needs no renewal any more, unless its child goes on."""
        if not self._sg_goes_on:
            self._forget()
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """Put back or give up; the claim needs no renewal any more."""
        self._forget()
        super().reject(requeue=requeue)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Act on what a child raised, or on its death."""
        error = raised_in_child(exc_info)
        if isinstance(error, DroppedLocally):
            self._forget()
            return drop_locally(self)
        if self._came_after_the_settle(error):
            logger.error("%s[%s] is done, but its result could not be handed on: %r", self.name, self.id, error)
            self._forget()
            return drop_locally(self)
        if self._died(error) and self.task.policy.declared is not Declared.AT_MOST_ONCE:
            return self._lost(error, exc_info)
        if isinstance(error, WorkerLostError | TimeLimitExceeded | Terminated | SystemExit | KeyboardInterrupt):
            # Its process ended before it could: acknowledged early, revoked and terminated, or cancelled.
            self._forget()
            self._end_if_over(error)
            self._release_lock()
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Act on a time limit; the soft one is an exception in the child."""
        if soft or self.task.policy.declared is Declared.AT_MOST_ONCE:
            if not soft:
                self._end_if_over(TimeLimitExceeded(timeout))
                self._release_lock()
            super().on_timeout(soft, timeout)
        elif not self.acknowledged:
            self._lost(TimeLimitExceeded(timeout), None)

    def _came_after_the_settle(self, error: BaseException) -> bool:
        """
        Whether a keyed task's work is recorded and Celery could not store its result or report its part of a chord.

        Its own failures are all letters, retries and control flow. The redelivery finds the record, and hands on again.
        """
        if (
            self.task.plan is None
            or isinstance(error, SafeguardsError | TaskPredicate)
            or not isinstance(error, Exception)
        ):
            return False
        return not self._died(error) and classify(error).kind in PASSING

    def _died(self, error: BaseException) -> bool:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            # The body ended its process; unless Celery itself did so to cancel or revoke it.
            return not bool(self._already_cancelled or self._already_revoked)
        return isinstance(error, WorkerLostError | TimeLimitExceeded)

    def _lost(self, error: BaseException, exc_info: Any) -> None:
        self._forget()
        if self.acknowledged:
            return
        logger.error("%s[%s] was lost: %s", self.name, self.id, error)
        self._end_if_over(error)
        task_ready(self)
        key = self._record_key()
        if key is not None:
            if self._is_atomic:
                # The rollback leaves no trace of this start; a child counts it, or buries the message, at its next one.
                self._may_start_again(error)
            self._mark_lost(key, error)
            self.reject(requeue=True)
            return
        self._release_lock()
        if self._may_start_again(error):
            self.reject(requeue=True)
        else:
            self._bury_and_fail(error, exc_info)

    @property
    def _is_atomic(self) -> bool:
        plan = self.task.plan
        return plan is not None and plan.idempotent.atomic is not None

    def _record_key(self) -> RecordKey | None:
        """Return the record that the child asks for: by the header, else made of the arguments as the child does."""
        plan = self.task.plan
        if plan is None:
            return None
        try:
            key = Lineage.from_headers(self._request_dict["headers"]).key or plan.key(self.args, self.kwargs)
        except KeyRefused:
            return None  # the child buries it without a record
        return cast("RecordKey", plan.record_key(key))

    def _mark_lost(self, key: RecordKey, error: BaseException) -> None:
        """Note the death at once, so that nobody waits for the lease; without the store, the lease tells."""
        keeper = keeper_of(self.app)
        if keeper is not None and keeper.is_store_away:
            return
        try:
            failure = {"kind": _kind_of(error).value, "error": str(error), "reason": "its process ended"}
            in_chord = bool(self.chord)
            Wiring.of(self.app).admission.mark_lost(
                key, self.sg_owner, failure, keep_right_to_send=in_chord, lock=self._lock_ask()
            )
        except StoreUnavailable as away:
            logger.warning("%s[%s]: its claim could not be marked lost: %s", self.name, self.id, away)

    def _lock_ask(self, pid: int | None = None) -> LockAsk | None:
        """Return what the child asks for, or None."""
        plan = self.task.lock_plan
        if plan is None:
            return None
        try:
            holder = holder_of(self.name, self, pid)
            return cast("LockAsk", plan.ask(self.args, self.kwargs, self.sg_owner, holder))
        except KeyRefused:
            return None  # the child buries it without a lock

    def _release_lock(self) -> None:
        """Release the lock of a child that is dead; without the store, its lease tells."""
        keeper, lock = keeper_of(self.app), self._lock_ask()
        if lock is None or (keeper is not None and keeper.is_store_away):
            return
        try:
            Wiring.of(self.app).locks.release(HeldLock(ask=lock))
        except StoreUnavailable as away:
            logger.warning("%s[%s]: its lock could not be released, and lapses: %s", self.name, self.id, away)

    def _may_start_again(self, error: BaseException) -> bool:
        """Count a lost start of unkeyed work, unless the child has counted it; False at the limit."""
        policy = self.task.policy
        if isinstance(error, TimeLimitExceeded) and policy.declared is Declared.NOTHING and policy.retry is None:
            return False
        starts = Wiring.of(self.app).starts
        try:
            # As the child sees it, which has counted this start then.
            if is_redelivered(SimpleNamespace(delivery_info=self.delivery_info, headers=self._request_dict["headers"])):
                return bool(starts.read(self.id) < policy.max_lost_starts)
            count = starts.begin(self.id, policy.max_lost_starts)
        except StoreUnavailable as away:
            logger.warning("%s[%s]: a lost start could not be counted: %s", self.name, self.id, away)
            return True
        return count is not None and count < policy.max_lost_starts

    def _bury_and_fail(self, error: BaseException, exc_info: Any) -> None:
        wiring, policy = Wiring.of(self.app), self.task.policy
        letter = compose_letter(
            wiring,
            SimpleNamespace(**self._request_dict),
            letter_id=self._request_dict["headers"].get(h.LETTER) or self.id,
            kind=_kind_of(error),
            reason=f"{error}; started {policy.max_lost_starts} times at most without an outcome",
            effect_possible=True,
            error=ErrorText(type=f"{type(error).__module__}.{type(error).__qualname__}", message=str(error)),
            attempts=int(self._request_dict.get("retries") or 0) + 1,
            lost_starts=policy.max_lost_starts,
        )
        try:
            write_letter(wiring, letter)
        except StoreUnavailable as away:
            logger.error("%s[%s]: its letter could not be written: %s", self.name, self.id, away)  # noqa: TRY400
            drop_locally(self)
            return
        if exc_info is not None:
            super().on_failure(exc_info)
        else:
            super().on_timeout(False, float(error.args[0]))

    def _end_if_over(self, error: BaseException) -> None:
        """End a child that is over its hard limit: Celery tells us first, and what we free must not be in use."""
        keeper = keeper_of(self.app)
        if keeper is not None and keeper.has_children and isinstance(error, TimeLimitExceeded):
            end_child(self.worker_pid)

    def _on_success_acknowledged(self, *args: Any, **options: Any) -> Any:
        self._forget()
        return super().on_success(*args, **options)

    def _forget(self) -> None:
        keeper = keeper_of(self.app)
        if keeper is not None:
            keeper.forget(self.sg_owner)


def _kind_of(error: BaseException) -> FailureKind:
    return FailureKind.WORKER_TIMEOUT if isinstance(error, TimeLimitExceeded) else FailureKind.WORKER_LOST
