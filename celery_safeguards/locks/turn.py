"""Waiting for a lock in turn: woken by whoever releases it, and not by asking again and again."""

from contextlib import suppress
from dataclasses import replace

from celery_safeguards.clock import Clock, to_seconds
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.locks.store import GIVEN_SECONDS, Grant, HeldLock, LockAsk, LockStore


def acquire_in_turn(
    store: LockStore, clock: Clock, ask: LockAsk, patience_seconds: float, *, reserve: bool = False
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
            if left_seconds <= 0:
                store.leave(ask)
                return grant
            asked_at = clock.monotonic_seconds()
            fence = store.wait(ask, min(left_seconds, to_seconds(grant.barred_until_us - grant.now_us)))
            if fence:
                held = HeldLock(ask=ask, fence=fence, epoch=grant.epoch)
                return replace(grant, held=held, lease_seconds=GIVEN_SECONDS, asked_at=asked_at, state=None)
        except BaseException:
            # Also a time limit's exception: what was asked for last may have been given.
            with suppress(StoreUnavailable):
                store.leave(ask)
            raise
