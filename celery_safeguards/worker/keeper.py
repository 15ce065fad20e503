"""
The keeper: renews the claims of all bodies that this worker runs, from its main process.

A thread in the pool's child would starve under a body that holds the interpreter's lock. Here one script each third of
a lease renews every owner at once. It also tells the store that a worker is alive, with or without claims, so that an
outage of the store is told apart from an outage of the owners.

    confirmed at t0 (when the renewal was *sent*)     lease over at t0 + lease, by this process's monotonic clock
    │── renew ── renew ── renew ──│ store away: tried again each second │ kill the child, before others may take over

A claim is not renewed for ever: beyond the task's own budget its body counts as hung, and its lease runs out.

No lock of ours is held across a fork: the thread works on its own connection, and children never use it.
"""

import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.store import RecordKey, Renewal
from celery_safeguards.clock import to_seconds
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.ledger.record import Record
from celery_safeguards.locks.store import HeldLock, LockAsk
from celery_safeguards.signals import lease_lost
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)
_AGAIN_SECONDS = 1.0
_LEAST_PAUSE_SECONDS = 0.01
_END_SECONDS = 2.0


@dataclass(slots=True)
class Kept:
    """An owner whose body runs in this worker's pool: with a claim, a lock, or both."""

    owner: str
    key: RecordKey | None
    task_id: str
    pid: int | None
    began: float
    budget_seconds: float
    confirmed: float
    """When the last renewal that was confirmed had been sent, monotonic."""
    epoch: str = ""
    """The store's epoch as last seen with this owner."""
    copy: Record | None = None
    """The claim as last renewed: what is written back if the store loses it."""
    has_ended: bool = False
    """Its outcome is written."""
    lock: HeldLock | None = None
    max_hold_seconds: float = inf
    lock_confirmed: float = 0.0

    def lock_at(self, now: float) -> HeldLock | None:
        """Return the lock to renew: without its fence after its lease, since another may have had it meanwhile."""
        if self.lock is None or now < self.lock_confirmed + self.lock.ask.lease_seconds:
            return self.lock
        return HeldLock(ask=self.lock.ask)

    @property
    def name(self) -> str:
        """What the log calls it."""
        return str(self.key or (self.lock and self.lock.name))


class Keeper:
    """
    Renews claims in a thread of the worker's main process.

    Args:
        wiring: the app's.
        kill: ends a pool child by pid; None where the pool has no processes: a checkpoint must tell the body then.

    """

    def __init__(self, wiring: Wiring, kill: Callable[[int], None] | None) -> None:
        self._wiring = wiring
        self._kill = kill
        self._kept: dict[str, Kept] = {}
        self._epoch = ""
        self._wake = threading.Event()
        self._sleeps_until = 0.0
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.is_store_away = False
        """Whether the last renewal failed: then nobody else of this process waits for the store either."""

    def start(self) -> None:
        """Start renewing; does nothing if it runs already, as after a reconnect."""
        if self._thread is None or not self._thread.is_alive():
            self._stopped = False
            self._wake.clear()
            self._thread = threading.Thread(target=self._run, name="celery-safeguards-keeper", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop renewing; bodies that still run must have ended before."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._wiring.settings.store_timeout_seconds * 2)

    @property
    def is_over(self) -> bool:
        """Whether its worker has ended: another one in this process has a loop and a pool of its own."""
        return self._stopped

    def keep(
        self,
        owner: str,
        key: RecordKey | None,
        task_id: str,
        pid: int | None,
        budget_seconds: float,
        *,
        lock: LockAsk | None = None,
        max_hold_seconds: float = inf,
    ) -> None:
        """Renew this owner's claim of `key` and its lock from now on; it may not have taken them yet."""
        now = self._wiring.clock.monotonic_seconds()
        kept = Kept(owner, key, task_id, pid, now, budget_seconds, now, self._epoch)
        if lock is not None:
            kept.lock, kept.max_hold_seconds, kept.lock_confirmed = HeldLock(ask=lock), max_hold_seconds, now
        self._kept[owner] = kept
        if lock is not None and now + lock.lease_seconds / 3 < self._sleeps_until:
            self._wake.set()

    def forget(self, owner: str) -> None:
        """Renew this owner no more: its body has ended."""
        self._kept.pop(owner, None)

    @property
    def has_children(self) -> bool:
        """Whether bodies run in processes that can be ended."""
        return self._kill is not None

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners that are renewed."""
        return tuple(self._kept)

    def tick(self) -> bool:
        """Renew once; returns whether the store answered."""
        wiring = self._wiring
        if self.is_store_away:
            # Before the question: a store that still is away takes its time to say so.
            self._end_what_is_over()
        sent = wiring.clock.monotonic_seconds()
        kept = {each.owner: each for each in tuple(self._kept.values()) if sent - each.began < each.budget_seconds}
        try:
            claims = {owner: each.key for owner, each in kept.items() if each.key is not None}
            locks = [each.lock_at(sent) for each in kept.values() if sent - each.began < each.max_hold_seconds]
            view, renewed = wiring.admission.renew(claims, [each for each in locks if each])
            self._learn(view)
            for owner, answer in renewed.items():
                self._locked(kept[owner], answer.lock_fence, view.epoch, sent)
                if owner in claims:
                    self._answered(kept[owner], answer.renewal, answer.record, view.epoch, sent)
        except StoreUnavailable as error:
            if not self.is_store_away:
                logger.warning("claims could not be renewed: %s", error)
            self.is_store_away = True
        else:
            self.is_store_away = False
            self._drain_spool()
        self._end_what_is_over()
        return not self.is_store_away

    def _learn(self, view: StoreView) -> None:
        """Take the store's epoch; a worker that stands still because of a new one says so."""
        if view.epoch != self._epoch and view.now_us < view.admit_from_us:
            logger.warning(
                "the store of namespace %r is new or was wiped: keyed work waits %.0f s, so that workers that live can "
                "write their claims back; before the first worker of all, `safeguards store init` ends the wait",
                self._wiring.settings.namespace,
                to_seconds(view.admit_from_us - view.now_us),
            )
        self._epoch = view.epoch

    def _answered(self, kept: Kept, renewal: Renewal, record: Record | None, epoch: str, sent: float) -> None:
        if renewal is Renewal.RENEWED and record is not None:
            kept.confirmed, kept.copy, kept.epoch = sent, record, epoch
        elif renewal is Renewal.TAKEN and (kept.copy is not None or sent > self._ends(kept)):
            # Without a copy, too, after a standstill: it may have claimed before that.
            lease_lost.send(None, task_id=kept.task_id, key=kept.key.key if kept.key else None, reason="taken over")
        elif kept.copy is None:
            # Nothing was claimed until now. In another epoch a claim may have been, and is lost: `confirmed` stays as
            # it is, and the child ends before anybody else is admitted.
            kept.epoch = kept.epoch or epoch
            kept.confirmed = sent if kept.epoch == epoch else kept.confirmed
        elif kept.epoch != epoch:
            self._write_back(kept, kept.copy, epoch, sent)
        else:
            # Its outcome is written. The child still sends what follows, or has another task already: not ours to end.
            kept.has_ended = True

    def _locked(self, kept: Kept, fence: int, epoch: str, sent: float) -> None:
        """Learn the fence of a lock that is renewed: with it, a store that was wiped is given the lock back."""
        if kept.lock is not None and fence:
            kept.lock_confirmed = sent
            if (fence, epoch) != (kept.lock.fence, kept.lock.epoch):
                kept.lock = HeldLock(ask=kept.lock.ask, fence=fence, epoch=epoch)

    def _write_back(self, kept: Kept, record: Record, epoch: str, sent: float) -> None:
        """The store was wiped under a running body: its owner is alive, so its claim is written again."""
        if kept.key is not None and self._wiring.admission.restore(kept.key, record, kept.epoch):
            logger.warning("%s: the store had lost its claim; written back", kept.key)
            kept.confirmed, kept.epoch = sent, epoch

    def _end_what_is_over(self) -> None:
        """
        End children whose claim is taken, or may be soon: what they send from then on could be sent twice.

        So it goes with a store that was away too long, with a worker that was frozen, and with a body over its budget,
        which is renewed no more.
        """
        wiring = self._wiring
        for each in tuple(self._kept.values()):
            over = wiring.clock.monotonic_seconds() > self._ends(each)
            if each.key is None or each.has_ended or not over or each.owner not in self._kept:
                continue
            is_hung = wiring.clock.monotonic_seconds() - each.began >= each.budget_seconds
            over_budget = f"over its budget of {each.budget_seconds:.0f} s (time_limit or max_lease_seconds)"
            reason = over_budget if is_hung else "its claim could not be renewed in time"
            lease_lost.send(None, task_id=each.task_id, key=each.key.key, reason=reason)
            self.forget(each.owner)
            if self._kill is not None and each.pid is not None:
                logger.error("%s: %s: ending child %s", each.task_id, reason, each.pid)
                self._kill(each.pid)

    def _ends(self, kept: Kept) -> float:
        """Return when a child must be ended: a question that begins before has its answer within the lease."""
        settings = self._wiring.settings
        return kept.confirmed + settings.lease_seconds - settings.store_timeout_seconds

    def _drain_spool(self) -> None:
        """Move letters that were written while their store was down: at worker start, and once it is back."""
        spool = self._wiring.spool
        if spool is None:
            return
        drained = spool.drain(self._wiring.letters)
        if drained.moved or drained.bad:
            logger.warning("spool: %s letters moved to their store, %s unreadable", drained.moved, drained.bad)

    def _run(self) -> None:
        while not self._stopped:
            try:
                answered = self.tick()
            except Exception:
                # The thread must outlive what it cannot foresee: without it every claim of this worker lapses.
                logger.exception("renewal failed")
                answered = False
            began = self._wiring.clock.monotonic_seconds()
            while not self._stopped:
                self._sleeps_until = began + (
                    self._pause_seconds() if answered else self._pause_while_away_seconds(began)
                )
                left_seconds = self._sleeps_until - self._wiring.clock.monotonic_seconds()
                if left_seconds <= 0:
                    break
                # Woken by a lock with a shorter lease: then the pause is shorter, too.
                self._wake.wait(left_seconds)
                self._wake.clear()

    def _pause_seconds(self) -> float:
        """Return a third of the shortest lease that is kept."""
        leases = [each.lock.ask.lease_seconds for each in tuple(self._kept.values()) if each.lock]
        return min(self._wiring.settings.renew_every_seconds, min(leases, default=inf) / 3)

    def _pause_while_away_seconds(self, now: float) -> float:
        """Return when to ask again, or to end the first child that must be."""
        ends = [self._ends(each) for each in tuple(self._kept.values()) if each.key is not None and not each.has_ended]
        return min(_AGAIN_SECONDS, max(_LEAST_PAUSE_SECONDS, min(ends, default=inf) - now))


def kill_child(pid: int) -> None:
    """End a pool child at once; it may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        logger.info("child %s is gone already", pid)


def await_end(pid: int) -> None:
    """
    Return when a child is dead that the pool is about to end; not on the consumer's loop, which must end it meanwhile.

    Only waited for, not killed: a pid that has been reaped may be another child's by now. After `_END_SECONDS` the
    pool has sent SIGKILL long since, and a process that even that does not end is in no state to write.
    """
    ends = time.monotonic() + _END_SECONDS
    while time.monotonic() < ends and not _is_dead(pid):
        time.sleep(0.005)


def _is_dead(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


_KEEPERS: "weakref.WeakKeyDictionary[Any, Keeper]" = weakref.WeakKeyDictionary()


def keeper_of(app: Any) -> Keeper | None:
    """Return the keeper of this process's worker, or None: no worker runs here."""
    return _KEEPERS.get(app)


def appoint(app: Any, keeper: Keeper) -> None:
    """Make a keeper the one of this process's worker."""
    _KEEPERS[app] = keeper
