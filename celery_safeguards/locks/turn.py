"""Waiting for a lock in turn: woken by whoever releases it, and not by asking again and again."""

import threading
from contextlib import suppress
from dataclasses import replace

from celery_safeguards.clock import Clock, to_seconds
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.locks.store import GIVEN_SECONDS, Grant, HeldLock, LockAsk, LockStore


def acquire_in_turn(
    store: LockStore,
    clock: Clock,
    ask: LockAsk,
    patience_seconds: float,
    *,
    reserve: bool = False,
    given_up: threading.Event | None = None,
) -> Grant:
    """
    Take a lock, or have it reserved, as soon as it is this owner's turn.

    Who waits is asked for a sign of life each second, so that a lock is not kept for somebody who died; an owner that
    died itself is waited for until its lease ends.

    Args:
        store: of the lock.
        clock: for the patience.
        ask: what for.
        patience_seconds: how long to wait; 0 asks once.
        reserve: have it kept for this owner for two seconds, in place of taking it.
        given_up: set by another thread when nobody wants the lock any more; looked at each second.

    Returns:
        The last answer: without `held` and not reserved, if it was not free in time.

    Raises:
        StoreUnavailable: nothing is known to be taken; a place in the line is given up within seconds.

    """
    ends, has_waited = clock.monotonic_seconds() + patience_seconds, False
    while True:
        try:
            asked_at = clock.monotonic_seconds()
            grant = store.acquire(ask, reserve=reserve, wait=patience_seconds > 0, has_waited=has_waited)
            grant = replace(grant, asked_at=asked_at)
            if grant.held is not None or grant.is_reserved or patience_seconds <= 0:
                return grant
            has_waited = True
            left_seconds = ends - clock.monotonic_seconds()
            if left_seconds <= 0 or (given_up is not None and given_up.is_set()):
                _give_up(store, ask, reserve=reserve)
                return grant
            fence = store.wait(ask, min(left_seconds, to_seconds(grant.barred_until_us - grant.now_us)))
            if fence:
                held = HeldLock(ask=ask, fence=fence, epoch=grant.epoch)
                # It was given at some time after the question that was answered in vain: its word may be old.
                return replace(grant, held=held, lease_seconds=GIVEN_SECONDS, state=None)
        except BaseException:
            # Also a time limit's exception.
            with suppress(StoreUnavailable):
                _give_up(store, ask, reserve=reserve)
            raise


def _give_up(store: LockStore, ask: LockAsk, *, reserve: bool) -> None:
    """Leave the line, and give back what may have been taken or given since it was last asked for."""
    store.leave(ask)
    if not reserve:
        store.release(HeldLock(ask=ask))
