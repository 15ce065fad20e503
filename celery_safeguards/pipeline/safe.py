"""
The running task's own view of its safeguards: `self.safe`, or `current_safe()` in an unbound task.

The checkpoint is what keeps `verify` exact. No outside call may begin after the lease has ended, by this process's
monotonic clock counted from before the last confirmed renewal was sent:

    t0 A is admitted   t1 A is frozen   t2 A's lease ends   t3 B asks the outside: "it did not happen"   t4 B charges
    t5 A wakes and would charge → its checkpoint, directly before the call, raises `LeaseLost`

What stays open: a process that freezes between its checkpoint and the send, for longer than its remaining lease and
the quiet period of `verify` together.

`once` makes a body with several outside calls resumable: each step is noted before and after, and a later start gets
the noted result in place of a second call.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from kombu.utils.json import dumps, loads

from celery_safeguards.admission.hold import Hold
from celery_safeguards.errors import (
    DeadlineExceeded,
    LeaseLost,
    LockLost,
    NotOurs,
    SafeguardsError,
    StoreUnavailable,
)
from celery_safeguards.ledger.decide import OnUnknown
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.budget import body_budget_seconds
from celery_safeguards.pipeline.delivery import Delivery
from celery_safeguards.pipeline.failing import RetryAsked
from celery_safeguards.pipeline.locking import HeldByDelivery, max_hold_seconds
from celery_safeguards.pipeline.verifying import ask_outside
from celery_safeguards.policy import CannotTell, Happened
from celery_safeguards.signals import lease_lost

_NO_TEXT = ""
"""Noted of a step that has ended with a result JSON cannot carry."""


class StepUnknown(SafeguardsError):
    """Raised when a step was begun by an earlier start, and the outside cannot tell whether it happened."""

    sg_failure_kind = FailureKind.UNKNOWN_OUTCOME


@dataclass(frozen=True, slots=True)
class LockView:
    """
    A lock as its body sees it.

    Attributes:
        name: of the lock.
        token: its fencing token: it grows with each owner. Hand it to whatever the lock protects, and let it refuse a
            smaller one than it has seen.

    """

    name: str
    token: int


class Safe:
    """
    What a body may know and ask while it runs.

    Attributes:
        idempotency_key: the operation's key, stable over retries, redelivery and replay: give it to outside systems
            that honour one. None for a task without a key.
        attempt: which start of the body this is, from 1.
        task_id: Celery's id of the message.

    """

    def __init__(
        self,
        task_id: str,
        attempt: int,
        idempotency_key: str | None = None,
        lock: HeldByDelivery | None = None,
    ) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self._lock = lock

    @property
    def lock(self) -> LockView | None:
        """The lock that this body runs under; None for a task without one."""
        return LockView(self._lock.held.name, self._lock.held.fence) if self._lock else None

    @property
    def deadline(self) -> float | None:
        """Wall time by which the body should have ended, seconds since the epoch; None where nothing limits it."""
        return None

    def checkpoint(self) -> None:
        """
        Return if the claim still holds; call it directly before every outside call.

        Costs nothing while most of the lease is left; else one round trip that renews it.

        Raises:
            LeaseLost: another owner may have the work by now. Begin no outside call; what was done so far is refused
                at the end, and the message is answered again by `on_unknown`.
            LockLost: the same, of the lock.
            DeadlineExceeded: the start's time budget is used up; the attempt fails as `worker_timeout`.

        """
        if self._lock is not None:
            self._lock.check()

    def once(self, step: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """
        Call an outside system as a step of the operation, and note it: a later start returns the noted result.

        One round trip before the call and one after. Without an idempotency key it is a plain call.

        Args:
            step: names the step; used once in a body.
            call: called with `args` and `kwargs`.
            args: positional arguments.
            kwargs: keyword arguments.

        Returns:
            The result, as JSON carries it: the same from a call and from the note.

        Raises:
            LeaseLost: the claim is gone; the call was not made.
            Retry: an earlier start has begun this step, and `verify` cannot tell whether it happened.

        """
        return call(*args, **kwargs)


class KeyedSafe(Safe):
    """The view of a body that runs under a claim."""

    def __init__(self, delivery: Delivery, hold: Hold) -> None:
        super().__init__(delivery.request.id, hold.record.attempt, delivery.key)
        self.hold = hold
        self.has_begun_step = False
        """Whether an outside call may have been made in this start."""
        self._is_lost = False
        self._delivery = delivery
        self._used: set[str] = set()
        self._began = self._now()

    @property
    def lock(self) -> LockView | None:
        """The lock that this body runs under; None for a task without one."""
        held = self.hold.lock
        return LockView(held.name, held.fence) if held else None

    @property
    def is_lost(self) -> bool:
        """Whether the body was told that its claim, or its lock, is gone."""
        return self._is_lost

    @property
    def has_open_step(self) -> bool:
        """Whether a step was begun whose end is not noted."""
        return any(result is None for result in self.hold.record.steps.values())

    @property
    def deadline(self) -> float | None:
        """Wall time by which the body should have ended, seconds since the epoch."""
        return self._delivery.wiring.clock.wall_seconds() + self._left_seconds()

    def checkpoint(self) -> None:
        """Return if the claim still holds; see `Safe.checkpoint`."""
        if self._left_seconds() <= 0:
            raise DeadlineExceeded(f"{self.idempotency_key}: its time budget is used up")
        if not self._is_renewal_due():
            return
        try:
            renewed = self._delivery.gate.renew(self.hold)
        except LockLost as error:
            raise self._lock_lost(str(error)) from error
        except StoreUnavailable as error:
            if self._now() < min(self.hold.lease_ends, self.hold.lock_ends):
                return
            raise self._lost(f"its lease is over and the store does not answer ({error})") from error
        if renewed is None:
            raise self._lost("its claim was taken over")
        self.hold = renewed

    def once(self, step: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an outside system as a step of the operation; see `Safe.once`."""
        if step in self._used:
            raise SafeguardsError(f"step {step!r} is used twice in one body: name each call once")
        self._used.add(step)
        self.checkpoint()
        steps = self.hold.record.steps
        if steps.get(step) is not None:
            return self._noted(step, steps[step])
        self.has_begun_step = True
        if step in steps:
            known = self._ask_about(step)
            if known is not None:
                return self._note(step, known.result)
        else:
            self._write(step, None)
        return self._note(step, call(*args, **kwargs))

    def _is_renewal_due(self) -> bool:
        now, hold = self._now(), self.hold
        if hold.lock is not None:
            if now - self._began >= max_hold_seconds(self._delivery.task, self._delivery.request):
                raise self._lock_lost(f"{hold.lock.name}: it was held for max_hold_seconds")
            if hold.lock_ends - now <= min(hold.lock.ask.lease_seconds, self._delivery.gate.lease_seconds) / 3:
                return True
        return hold.lease_ends - now <= self._delivery.gate.lease_seconds / 3

    def _ask_about(self, step: str) -> Happened | None:
        """
        Return what is known of a step that an earlier start has begun.

        None means: call. By `rerun` because twice is harmless; with `quarantine` because only a person's word, that
        nothing happened, can have led here.
        """
        delivery = self._delivery
        verify = delivery.plan.idempotent.verify
        if delivery.plan.ledger.on_unknown is not OnUnknown.VERIFY or verify is None:
            return None
        verdict = ask_outside(verify, delivery.arguments(), delivery.key, step)
        if isinstance(verdict, CannotTell):
            unknown = StepUnknown(f"{self.idempotency_key}: step {step!r} was begun before; {verdict.reason}")
            raise RetryAsked(unknown, max(1.0, verify.after_seconds)) from unknown
        return verdict if isinstance(verdict, Happened) else None

    def _noted(self, step: str, text: str) -> Any:
        if text == _NO_TEXT:
            raise SafeguardsError(
                f"{self.idempotency_key}: step {step!r} is done, but JSON could not carry its result: "
                "return something simple from it, such as an id"
            )
        return loads(text)  # type: ignore[no-untyped-call]

    def _note(self, step: str, result: Any) -> Any:
        try:
            text = str(dumps(result))  # type: ignore[no-untyped-call]
        except (TypeError, ValueError, RecursionError):
            self._write(step, _NO_TEXT)
            return result
        self._write(step, text)
        return loads(text)  # type: ignore[no-untyped-call]

    def _write(self, step: str, text: str | None) -> None:
        try:
            self.hold = self._delivery.gate.note_step(self.hold, step, text)
        except NotOurs as error:
            raise self._lost(f"its claim was taken over ({error})") from error
        except StoreUnavailable as error:
            raise self._lost(f"step {step!r} could not be noted ({error})") from error

    def _left_seconds(self) -> float:
        """Return what is left of this start's time budget."""
        budget_seconds = body_budget_seconds(self._delivery.task, self._delivery.request.timelimit)
        return self._began + budget_seconds - self._now()

    def _now(self) -> float:
        return self._delivery.wiring.clock.monotonic_seconds()

    def _lock_lost(self, reason: str) -> LockLost:
        self._is_lost = True
        lease_lost.send(self._delivery.task, task_id=self.task_id, key=self.idempotency_key, reason=reason)
        return LockLost(reason)

    def _lost(self, reason: str) -> LeaseLost:
        self._is_lost = True
        lease_lost.send(self._delivery.task, task_id=self.task_id, key=self.idempotency_key, reason=reason)
        return LeaseLost(f"{self.idempotency_key}: {reason}")


_running: ContextVar[Safe | None] = ContextVar("celery_safeguards_running", default=None)


def running_attempt(task_id: str) -> int | None:
    """Return which start of its body a delivery is at; None: its body does not run here, but a hook of its task."""
    safe = _running.get()
    return safe.attempt if safe is not None and safe.task_id == task_id else None


def current_safe() -> Safe:
    """
    Return the view of the guarded task whose body runs in this thread or greenlet.

    Raises:
        SafeguardsError: no guarded body runs here: a plain task, a direct call, or another thread.

    """
    safe = _running.get()
    if safe is None:
        raise SafeguardsError("no guarded task runs here: a direct call and another thread have no safeguards")
    return safe


class running:  # noqa: N801 - read as a word: `with running(safe):`
    """Make a view the current one; no generator, since it stands on the hot path of every task."""

    __slots__ = ("_safe", "_token")

    def __init__(self, safe: Safe) -> None:
        self._safe = safe

    def __enter__(self) -> None:
        self._token = _running.set(self._safe)

    def __exit__(self, *_: object) -> None:
        _running.reset(self._token)
