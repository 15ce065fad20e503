"""
A lock in plain code: a management command, a view, a script.

    with hold(app, EntityLock("order:{order_id}"), order_id=42) as lock:
        lock.checkpoint()            # directly before whatever it protects
        fenced_set(client, "order:42:state", "paid", lock.token)

It is the lock that tasks take, by the same name. Its owner is this acquisition alone, whose token is in the handle: two
threads or greenlets that share the `EntityLock` cannot release each other's. A thread of this process renews it.

| happens | then |
|---|---|
| the process dies | the lock lapses after `lease_seconds` |
| the process is frozen past the lease | `checkpoint` raises `LockLost`; the release leaves a newer owner alone |
| it forks inside | the child holds nothing: its `checkpoint` raises, and it releases nothing |
| the store is away longer than the lease | `checkpoint` raises; for one lease after it is back nobody gets the lock |
"""

import asyncio
import logging
import os
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from celery_safeguards._names import host_name
from celery_safeguards.admission.plan import lock_name
from celery_safeguards.clock import to_seconds
from celery_safeguards.errors import LockBusy, LockLost, StoreUnavailable
from celery_safeguards.ledger.key import KeyTemplate
from celery_safeguards.locks.renewer import renewer_of
from celery_safeguards.locks.store import Grant, HeldLock, LockAsk
from celery_safeguards.locks.turn import acquire_in_turn
from celery_safeguards.pipeline.budget import DEFAULT_SECONDS
from celery_safeguards.policy import EntityLock
from celery_safeguards.signals import lease_lost
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)


class LockHandle:
    """
    A lock that plain code holds.

    Attributes:
        name: of the lock.
        token: its fencing token; it grows with each owner.

    """

    def __init__(self, wiring: Wiring, held: HeldLock) -> None:
        self._wiring = wiring
        self._held = held
        self._pid = os.getpid()
        self.name = held.name
        self.token = held.fence

    def checkpoint(self) -> None:
        """
        Return if the lock still is held, by the last renewal; no round trip. Call it before whatever it protects.

        Raises:
            LockLost: another owner may have it: begin nothing that it protects.

        """
        if os.getpid() != self._pid:
            raise LockLost(f"{self.name}: it is held by process {self._pid}, which forked this one")
        renewer_of(self._wiring.locks, self._wiring.clock).check(self._held.owner)

    def _release(self) -> None:
        if os.getpid() != self._pid:
            return
        renewer_of(self._wiring.locks, self._wiring.clock).forget(self._held.owner)
        try:
            self._wiring.locks.release(self._held)
        except StoreUnavailable as error:
            logger.warning("lock %s could not be released, and lapses: %s", self.name, error)


@contextmanager
def hold(app: Any, lock: EntityLock, /, **fields: Any) -> Iterator[LockHandle]:
    """
    Hold an entity's lock while the block runs.

    Args:
        app: the Celery app, whose settings name the store.
        lock: the lock, usually the very value that tasks declare. With `busy="wait"` it is waited for, up to its
            `wait_seconds`; else a busy lock is refused at once.
        fields: of its key, by name.

    Yields:
        The handle with the fencing token.

    Raises:
        LockBusy: it is held by somebody else.
        LockLost: at the end, if another owner has had it meanwhile and the block itself has not raised.
        KeyRefused: a field is missing, empty or not stable.
        StoreUnavailable: the store did not answer; nothing is held.

    """
    handle = _acquire(app, lock, fields)
    try:
        yield handle
    finally:
        _give_back(handle)


@asynccontextmanager
async def hold_async(app: Any, lock: EntityLock, /, **fields: Any) -> AsyncIterator[LockHandle]:
    """
    Hold an entity's lock in a coroutine; see `hold`.

    The store is asked in threads of the event loop's executor, so that the loop goes on; a coroutine that waits for its
    turn occupies one of them. Cancelled while it asks, it gives back what it may have got.
    """
    asked = asyncio.ensure_future(asyncio.to_thread(_acquire, app, lock, fields))
    try:
        handle = await asyncio.shield(asked)
    except asyncio.CancelledError:
        asked.add_done_callback(_give_back_late)
        raise
    try:
        yield handle
    finally:
        await asyncio.shield(asyncio.to_thread(_give_back, handle, sys.exc_info()[1]))


def _acquire(app: Any, lock: EntityLock, fields: dict[str, Any]) -> LockHandle:
    wiring = Wiring.of(app)
    name = lock_name(lock, KeyTemplate(lock.key, may_be_constant=True).render(fields))
    holder = {"task": "", "task_id": "", "worker": "", "host": host_name(), "pid": os.getpid()}
    holder["thread"] = threading.current_thread().name
    ask = LockAsk(name=name, owner=uuid.uuid4().hex, lease_seconds=lock.lease_seconds, holder=holder)
    grant = acquire_in_turn(wiring.locks, wiring.clock, ask, lock.patience_seconds)
    if grant.held is None:
        raise LockBusy(_who_has_it(name, grant))
    most_seconds = DEFAULT_SECONDS if lock.max_hold_seconds is None else lock.max_hold_seconds
    renewer_of(wiring.locks, wiring.clock).keep(grant.held, grant.asked_at, most_seconds, grant.lease_seconds)
    return LockHandle(wiring, grant.held)


def _give_back(handle: LockHandle, raised: BaseException | None = None) -> None:
    raised = raised or sys.exc_info()[1]
    try:
        handle._release()  # noqa: SLF001 - not for the block: it would go on without the lock
    except LockLost as error:
        lease_lost.send(None, task_id=None, key=handle.name, reason=str(error))
        if raised is None:
            raise
        logger.warning("%s", error)


def _give_back_late(asked: "asyncio.Future[LockHandle]") -> None:
    if not asked.cancelled() and asked.exception() is None:
        threading.Thread(target=_give_back, args=(asked.result(),), daemon=True).start()


def _who_has_it(name: str, grant: Grant) -> str:
    state = grant.state
    holder = dict(state.holder) if state else {}
    who = f"{holder.get('task') or 'plain code'} on {holder.get('host')}, pid {holder.get('pid')}"
    left_seconds = max(0.0, to_seconds(grant.barred_until_us - grant.now_us))
    if state is None or not state.owner:
        who = "whoever is next in the line"
    return f"{name}: held by {who}, for {left_seconds:.1f} s as it stands"
