"""
The main process's side of one delivery.

It mints the owner token and hands it to the pool's child together with the raw message, so that letters are written
from the wire bytes. It sees what the child cannot tell: that it died, or was over its hard limit.
`endings` is the table of what follows from that, `losses` what the store is told; here it is brought about.

Celery acknowledges a late-acknowledged message whose child died, or requeues it for ever (celery 5.7,
`worker/request.py`); both are replaced here. A hard limit fires `on_failure` and `on_timeout` in 5.7 and only
`on_timeout` before: whichever comes first decides, the other finds that the delivery is ending.
"""

import logging
import time
import uuid
from collections.abc import Callable
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, cast

from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_safeguards import headers as h
from celery_safeguards._compat import custom_headers, raised_in_child
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.delivery.connections import is_hardened
from celery_safeguards.delivery.lease import is_lost, receive_count, wire_properties
from celery_safeguards.errors import KeyRefused
from celery_safeguards.headers import Lineage
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.pipeline.budget import lease_budget_seconds
from celery_safeguards.pipeline.locking import holder_of
from celery_safeguards.pipeline.parking import line_name
from celery_safeguards.worker.endings import STEPS, Circumstances, Ending, Fate, Steps, ending_of
from celery_safeguards.worker.errands import run_errand
from celery_safeguards.worker.keeper import keeper_of
from celery_safeguards.worker.losses import alive_beside, forget_losses, hold, let_go, tell_the_store
from celery_safeguards.worker.putting_back import drop_locally
from celery_safeguards.worker.renewing import renewing_of
from celery_safeguards.worker.withdrawn import leave_letter, tell_withdrawn

logger = logging.getLogger(__name__)


class SafeRequest(Request):  # type: ignore[misc]
    """A request whose message is never acknowledged before its outcome is durable."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.sg_owner = uuid.uuid4().hex
        self._sg_received = time.monotonic()
        if receive_count(message) > 1:
            self._delivery_info["redelivered"] = True
        self._request_dict["headers"] = custom_headers(message.headers)
        if self._request_dict.get("retries") is None:
            # Other producers send null, which plain tasks bear.
            self._request_dict["retries"] = 0
        self._request_dict[h.OWNER] = self.sg_owner
        # The body is the very object that is sent to the child anyway: pickle sends it once.
        self._request_dict[h.WIRE] = {
            "body": message.body,
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "headers": message.headers or {},
            "properties": wire_properties(message),
            "delivery_info": self._delivery_info,
        }
        if is_hardened(message.channel):
            self._request_dict[h.TAG] = message.delivery_tag
        if self._delivery_info["redelivered"]:
            self._request_dict[h.ALIVE] = alive_beside(self)
        hold(self)
        self._sg_goes_on = False
        self._sg_is_ending = False
        """Its loss is told to the store; Celery may tell of it twice."""
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
        key = None if _is_atomic(self.task) else self._record_key()
        if keeper is not None and (key is not None or lock is not None):
            budget_seconds = lease_budget_seconds(self.task, self.time_limits)
            hold_seconds = self.task.policy.lock.max_hold_seconds if lock is not None else None
            most_seconds = inf if hold_seconds is None else hold_seconds
            keeper.keep(self.sg_owner, key, self.id, pid, budget_seconds, lock=lock, max_hold_seconds=most_seconds)

    def revoked(self) -> bool:
        """Whether the body must not begin: also if its message waited here for so long that another worker has it."""
        renewing = renewing_of(self.app)
        tag = self.message.delivery_tag
        has_lapsed = renewing is not None and renewing.has_lapsed(tag, self._sg_received)
        if not self.acknowledged and (has_lapsed or is_lost(self.message)):
            logger.warning("%s[%s] is not started: another worker may have its message", self.name, self.id)
            drop_locally(self)
            return True
        if renewing is not None and renewing.is_anything_parked:
            # Asked last before the child has it: with nobody waiting, nobody is called, which costs a round trip.
            self._request_dict[h.CALLS] = True
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
        forget_losses(self)
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """Put back or give up; the claim needs no renewal any more."""
        self._forget()
        super().reject(requeue=requeue)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Acknowledge a message that expired or was revoked, once it has left its trace (`withdrawn`)."""
        key, context = self._record_key(), SimpleNamespace(**self._request_dict)

        def announce() -> None:
            super(SafeRequest, self)._announce_revoked(reason, terminated, signum, expired)
            tell_withdrawn(self.task, self.id, key, has_expired=expired, terminated=terminated)
            if not terminated:
                self._call_who_waits()

        if terminated:
            announce()
            return
        # Asked again before it is told, as Celery does of a message with an expiry, it must not run.
        self._already_revoked = True
        drop = partial(drop_locally, self)
        run_errand(
            self.app,
            partial(leave_letter, self.app, context, key, has_expired=expired),
            lambda is_left: announce() if is_left else drop(),
            drop,
        )

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Act on what a child raised, or on its death."""
        error = raised_in_child(exc_info)
        if isinstance(error, MemoryError):
            # Celery raises it again here, and the whole worker ends of it (celery 5.7, `worker/request.py`). A body's
            # own is classified in the child; this one comes from a hook, and the message may do it again.
            exc_info = _lost_child(error)
            error = raised_in_child(exc_info)
        ending = ending_of(error, self._circumstances())
        if ending is Ending.REPORTED:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        return self._end(
            ending,
            error,
            lambda: super(SafeRequest, self).on_failure(
                exc_info, send_failed_event=send_failed_event, return_ok=return_ok
            ),
        )

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Act on a time limit; the soft one is an exception in the child."""
        if soft:
            super().on_timeout(soft, timeout)
            return
        error = TimeLimitExceeded(timeout)
        tell_celery = lambda: super(SafeRequest, self).on_timeout(soft, timeout)  # noqa: E731
        self._end(ending_of(error, self._circumstances()), error, tell_celery)

    def _end(self, ending: Ending, error: BaseException, tell_celery: Callable[[], Any]) -> Any:
        """Take the steps of an ending; `tell_celery` lets Celery see the failure, and acknowledge."""
        steps = STEPS[ending]
        self._forget()
        if steps.fate is Fate.DROP:
            if ending is Ending.NOT_HANDED_ON:
                logger.error("%s[%s] is done, but its result could not be handed on: %r", self.name, self.id, error)
            drop_locally(self)
            return None
        lock = self._lock_ask()
        if steps.is_loss:
            if not self.acknowledged and not self._sg_is_ending:
                logger.error("%s[%s] was lost: %s", self.name, self.id, error)
                self._sg_is_ending = True
                task_ready(self)
                self._ask_the_store(steps, error, lock, lambda fate: self._bring_about(fate, tell_celery))
            return None
        if lock is not None or self._record_key() is not None:
            self._ask_the_store(steps, error, lock, lambda _fate: self._call_who_waits())
        told = tell_celery()
        if self._already_cancelled and not self.acknowledged and is_hardened(self.message.channel):
            # Celery leaves it to the closed connection to give it back; that one has kept it for this body.
            self.reject(requeue=True)
        return told

    def _ask_the_store(
        self, steps: Steps, error: BaseException, lock: LockAsk | None, then: Callable[[Fate], None]
    ) -> None:
        """Tell the store off the loop, which serves all other tasks meanwhile."""
        key = self._record_key()
        otherwise = lambda: then(Fate.DROP)  # noqa: E731
        run_errand(self.app, lambda: tell_the_store(self, steps, error, key, lock), then, otherwise)

    def _bring_about(self, fate: Fate, tell_celery: Callable[[], Any]) -> None:
        if fate is Fate.PUT_BACK:
            self.reject(requeue=True)
        elif fate is Fate.DROP:
            drop_locally(self)
        else:
            tell_celery()
            self._call_who_waits()

    def _call_who_waits(self) -> None:
        """Call the next of the line that this message may have been called from: no child does it."""
        renewing, line = renewing_of(self.app), line_name(self.task, self.args, self.kwargs)
        if renewing is not None and line is not None:
            renewing.call_soon(line)

    def _circumstances(self) -> Circumstances:
        return Circumstances(
            policy=self.task.policy,
            has_record=self._record_key() is not None,
            was_called_off=bool(self._already_cancelled or self._already_revoked),
        )

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

    def _on_success_acknowledged(self, *args: Any, **options: Any) -> Any:
        self._forget()
        return super().on_success(*args, **options)

    def _forget(self) -> None:
        let_go(self)
        keeper = keeper_of(self.app)
        if keeper is not None:
            keeper.forget(self.sg_owner)


def _lost_child(error: BaseException) -> ExceptionInfo:
    """Return the report of a child that is as good as lost."""
    try:
        raise WorkerLostError(f"{type(error).__name__}: {error}")  # noqa: TRY301 - the report is made of what is caught
    except WorkerLostError:
        return ExceptionInfo()


def _is_atomic(task: Any) -> bool:
    return task.plan is not None and task.plan.idempotent.atomic is not None
