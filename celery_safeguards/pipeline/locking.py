"""
The lock of one delivery: asked for, waited for, given back.

A keyed task takes its lock with its claim and releases it with its outcome, in the same two round trips
(`admission/gate.py`). Here is what both kinds of task share, and the way of a task without a key: it takes the lock
before its body, with one round trip, and releases it after, with another.
"""

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_safeguards._names import host_name, pid_space
from celery_safeguards.clock import to_seconds
from celery_safeguards.errors import LockLost, StoreUnavailable
from celery_safeguards.headers import OWNER
from celery_safeguards.locks.renewer import Renewer, renewer_of
from celery_safeguards.locks.store import Grant, HeldLock, LockAsk
from celery_safeguards.locks.turn import acquire_in_turn
from celery_safeguards.pipeline.budget import lease_budget_seconds
from celery_safeguards.pipeline.deferring import EagerWait
from celery_safeguards.policy import Busy, EntityLock
from celery_safeguards.signals import lease_lost
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Skipped:
    """The lock is busy, and the task asks to be skipped then: what it returns."""

    result: Any
    reason: str


def holder_of(task_name: str, request: Any, pid: int | None = None) -> Mapping[str, Any]:
    """Return who holds a lock, for people and for the proof that an owner is dead."""
    return {
        "task": task_name,
        "task_id": request.id,
        "worker": getattr(request, "hostname", None) or "",
        "host": host_name(),
        "pid": pid or os.getpid(),
        "pid_space": pid_space(),
    }


def lock_ask(task: Any, request: Any, owner: str | None = None) -> LockAsk:
    """
    Return what a delivery of a task with a lock asks for.

    Raises:
        KeyRefused: the arguments do not fit, or name no entity.

    """
    owner = owner or getattr(request, OWNER, None) or uuid.uuid4().hex
    ask: LockAsk = task.lock_plan.ask(request.args, request.kwargs, owner, holder_of(task.name, request))
    return ask


def why_barred(ask: LockAsk, grant: Grant) -> str:
    """Return what the log says of a lock that is somebody else's."""
    holder = dict(grant.state.holder) if grant.state else {}
    who = f"{holder.get('task')}[{holder.get('task_id')}]" if holder.get("task_id") else "another owner"
    left = max(0.0, to_seconds(grant.barred_until_us - grant.now_us))
    return f"its lock {ask.name} is held by {who}, for {left:.1f} s as it stands"


def wait_or_skip(wiring: Wiring, lock: EntityLock, ask: LockAsk, grant: Grant) -> Skipped | bool:
    """Act on a busy lock: skip, or wait for it. Returns whether it is kept for this owner now."""
    if lock.busy is Busy.SKIP:
        return Skipped(lock.result_if_skipped, why_barred(ask, grant))
    if not lock.patience_seconds:
        return False
    try:
        return acquire_in_turn(wiring.locks, wiring.clock, ask, lock.patience_seconds, reserve=True).is_reserved
    except SoftTimeLimitExceeded:
        # The limit is the body's, which has not begun: this wait was in vain.
        return False


def leave_line(wiring: Wiring, ask: LockAsk) -> None:
    """Pass on a lock that was kept for this delivery, which has no use for it; by itself it passes in two seconds."""
    with suppress(StoreUnavailable):
        wiring.locks.leave(ask)


class HeldByDelivery:
    """
    A lock in the hands of a delivery without a key.

    A worker's main process renews it. An eager task has none: there a thread of this process does.
    """

    def __init__(self, task: Any, request: Any, held: HeldLock, asked_at: float) -> None:
        self.held = held
        self._task = task
        self._request = request
        self._wiring = Wiring.of(task.app)
        self._began = self._confirmed = asked_at
        self.is_lost = False
        """Whether the body was told that another owner may have it."""
        self._is_over = False
        self._renewer: Renewer | None = None
        if request.is_eager:
            self._renewer = renewer_of(self._wiring.locks, self._wiring.clock, self._wiring.settings.lease_seconds)
            self._renewer.keep(held, asked_at, max_hold_seconds(task, request))

    def check(self) -> None:
        """
        Return if the lock still is this delivery's; one round trip when little of its lease is left.

        Raises:
            LockLost: it is not, or may not be.

        """
        # Counted for no longer than a store that was wiped waits for its owners.
        lease_seconds = min(self.held.ask.lease_seconds, self._wiring.settings.lease_seconds)
        now = self._wiring.clock.monotonic_seconds()
        if now - self._began >= max_hold_seconds(self._task, self._request):
            raise self._lost("it was held for max_hold_seconds")
        ends = self._confirmed + lease_seconds
        if ends - now > lease_seconds / 3:
            return
        try:
            # After its lease another may have had it: it must not be written back into a store that was wiped since.
            held = self.held if now < ends else replace(self.held, fence=0)
            is_held = self._wiring.locks.renew([held])[0]
        except StoreUnavailable as error:
            if now < ends:
                return
            raise self._lost(f"its lease is over and the store does not answer ({error})") from error
        if not is_held:
            raise self._lost("another owner has it, or it was released")
        self._confirmed = now

    def release(self) -> None:
        """
        Release the lock; one that the store cannot be asked for lapses.

        Raises:
            LockLost: another owner has had it since.

        """
        self._is_over = True
        if self._renewer is not None:
            self._renewer.forget(self.held.owner)
        try:
            self._wiring.locks.release(self.held)
        except StoreUnavailable as error:
            logger.warning("lock %s could not be released, and lapses: %s", self.held.name, error)

    def give_up(self) -> None:
        """Release the lock if it was not, whoever has it: nothing of this delivery depends on it any more."""
        if not self._is_over:
            with suppress(LockLost):
                self.release()

    def _lost(self, reason: str) -> LockLost:
        self.is_lost = True
        lease_lost.send(self._task, task_id=self._request.id, key=self.held.name, reason=reason)
        return LockLost(f"{self.held.name}: {reason}")


@contextmanager
def renewed_here(task: Any, request: Any, held: HeldLock) -> Iterator[None]:
    """Renew the lock of an eager task while its body runs: it has no worker whose main process would."""
    wiring = Wiring.of(task.app)
    renewer = renewer_of(wiring.locks, wiring.clock, wiring.settings.lease_seconds)
    renewer.keep(held, wiring.clock.monotonic_seconds(), max_hold_seconds(task, request))
    try:
        yield
    finally:
        renewer.forget(held.owner)


def take_lock(task: Any, request: Any, ask: LockAsk) -> HeldByDelivery | Skipped | str:
    """
    Take the lock of a delivery without a key, or say why it must be put off.

    Raises:
        DeferralRefused: eager execution has waited long enough.
        StoreUnavailable: the store did not answer.

    """
    wiring, lock = Wiring.of(task.app), task.lock_plan.lock
    eager = EagerWait(wiring.settings, wiring.clock) if request.is_eager else None
    while True:
        asked_at = wiring.clock.monotonic_seconds()
        grant = wiring.locks.acquire(ask)
        if grant.held is not None:
            return HeldByDelivery(task, request, grant.held, asked_at)
        answer = wait_or_skip(wiring, lock, ask, grant)
        if isinstance(answer, Skipped):
            return answer
        if not answer:
            if eager is None:
                return why_barred(ask, grant)
            eager.wait(wiring.settings.deferral_base_seconds, why_barred(ask, grant))


def max_hold_seconds(task: Any, request: Any) -> float:
    """Return how long a delivery's lock is renewed."""
    budget_seconds = lease_budget_seconds(task, request.timelimit)
    most = task.lock_plan.lock.max_hold_seconds
    return budget_seconds if most is None else min(budget_seconds, most)
