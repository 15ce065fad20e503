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
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

from celery_safeguards._names import host_name, pid_space
from celery_safeguards.admission.plan import lock_name
from celery_safeguards.clock import to_seconds
from celery_safeguards.errors import LockBusy, LockLost, StoreUnavailable
from celery_safeguards.ledger.key import KeyTemplate
from celery_safeguards.locks.renewer import Renewer, renewer_of
from celery_safeguards.locks.store import Grant, HeldLock, LockAsk
from celery_safeguards.locks.turn import acquire_in_turn
from celery_safeguards.pipeline.budget import DEFAULT_SECONDS
from celery_safeguards.policy import EntityLock
from celery_safeguards.signals import lease_lost
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


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
        _renewer(self._wiring).check(self._held.owner)

    def _release(self) -> None:
        if os.getpid() != self._pid:
            return
        is_lost = _renewer(self._wiring).forget(self._held.owner)
        try:
            self._wiring.locks.release(self._held)
        except StoreUnavailable as error:
            logger.warning("lock %s could not be released, and lapses: %s", self.name, error)
        if is_lost:
            raise LockLost(f"{self.name}: lost at fence {self.token}: it was released by somebody else")


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
    except BaseException as error:
        _give_back(handle, error)
        raise
    _give_back(handle)


@asynccontextmanager
async def hold_async(app: Any, lock: EntityLock, /, **fields: Any) -> AsyncIterator[LockHandle]:
    """
    Hold an entity's lock in a coroutine; see `hold`.

    The store is asked in threads, so that the loop goes on: one of the loop's executor, or one of its own for an
    acquisition that may wait, since those who wait could else keep the executor from the release they wait for.
    Cancelled while it asks, it gives back what it may have got, also when the loop is closed by then.
    """
    acquisition = _Acquisition(app, lock, fields)
    try:
        handle = await _in_thread(acquisition.run, may_wait=lock.patience_seconds > 0)
    except asyncio.CancelledError:
        acquisition.give_up()
        raise
    try:
        yield handle
    except GeneratorExit as error:
        # The loop was closed under the coroutine: nothing can be awaited any more.
        _give_back(handle, error)
        raise
    except BaseException as error:
        await asyncio.shield(_in_thread(partial(_give_back, handle, error)))
        raise
    await asyncio.shield(_in_thread(partial(_give_back, handle)))


class _Acquisition:
    """An acquisition in a thread, for a coroutine that may be gone when the answer comes."""

    def __init__(self, app: Any, lock: EntityLock, fields: dict[str, Any]) -> None:
        self._acquire = partial(_acquire, app, lock, fields)
        self._deciding = threading.Lock()
        self._given_up = threading.Event()
        self._handle: LockHandle | None = None

    def run(self) -> LockHandle:
        """Acquire; in the thread."""
        handle = self._acquire(self._given_up)
        with self._deciding:
            self._handle = handle
            is_wanted = not self._given_up.is_set()
        if not is_wanted:
            self._release()
        return handle

    def give_up(self) -> None:
        """Give back what was or will be acquired; does not block."""
        with self._deciding:
            self._given_up.set()
            is_held = self._handle is not None
        if is_held:
            threading.Thread(target=self._release, name="celery-safeguards-hold", daemon=True).start()

    def _release(self) -> None:
        # The signal and the log tell a loss: there is no block any more to tell it to.
        with suppress(LockLost):
            _give_back(cast("LockHandle", self._handle))


def _in_thread(call: Callable[[], _Answer], *, may_wait: bool = False) -> "asyncio.Future[_Answer]":
    # No task: those are cancelled with the loop, before a thread may have begun with them.
    loop, in_context = asyncio.get_running_loop(), partial(copy_context().run, call)
    if not may_wait:
        return loop.run_in_executor(None, in_context)
    own = ThreadPoolExecutor(1, "celery-safeguards-hold")
    future = loop.run_in_executor(own, in_context)
    own.shutdown(wait=False)
    return future


def _acquire(app: Any, lock: EntityLock, fields: dict[str, Any], given_up: threading.Event | None = None) -> LockHandle:
    wiring = Wiring.of(app)
    name = lock_name(lock, KeyTemplate(lock.key, may_be_constant=True).render(fields))
    holder = {"task": "", "task_id": "", "worker": "", "host": host_name(), "pid": os.getpid()}
    holder["pid_space"], holder["thread"] = pid_space(), threading.current_thread().name
    ask = LockAsk(name=name, owner=uuid.uuid4().hex, lease_seconds=lock.lease_seconds, holder=holder)
    grant = acquire_in_turn(wiring.locks, wiring.clock, ask, lock.patience_seconds, given_up=given_up)
    if grant.held is None:
        raise LockBusy(_who_has_it(name, grant))
    most_seconds = DEFAULT_SECONDS if lock.max_hold_seconds is None else lock.max_hold_seconds
    _renewer(wiring).keep(grant.held, grant.asked_at, most_seconds, grant.lease_seconds)
    return LockHandle(wiring, grant.held)


def _give_back(handle: LockHandle, raised: BaseException | None = None) -> None:
    try:
        handle._release()  # noqa: SLF001 - not for the block: it would go on without the lock
    except LockLost as error:
        lease_lost.send(None, task_id=None, key=handle.name, reason=str(error))
        if raised is None:
            raise
        logger.warning("%s", error)


def _renewer(wiring: Wiring) -> Renewer:
    return renewer_of(wiring.locks, wiring.clock, wiring.settings.lease_seconds)


def _who_has_it(name: str, grant: Grant) -> str:
    state = grant.state
    holder = dict(state.holder) if state else {}
    who = f"{holder.get('task') or 'plain code'} on {holder.get('host')}, pid {holder.get('pid')}"
    left_seconds = max(0.0, to_seconds(grant.barred_until_us - grant.now_us))
    if state is None or not state.owner:
        who = "whoever is next in the line"
    return f"{name}: held by {who}, for {left_seconds:.1f} s as it stands"
