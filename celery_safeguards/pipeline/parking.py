"""
Putting the running message itself off, where the broker can keep it (`delivery.parking`): no copy is published.

A delivery stands in the line of its lock, or of its key if it has none, and calls the next one there when it ends. One
that waits for a time (its retry is not due) stands in no lock's line: each end would call it, as the oldest, in vain.

To call costs a round trip. It is made where the main process has lately heard of parked messages, and by a body that
ran for longer than that news is old: somebody may have begun to wait meanwhile.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery_safeguards import headers as h
from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.parking import Line, call_next, park
from celery_safeguards.errors import KeyRefused
from celery_safeguards.pipeline.copies import CopyRefused
from celery_safeguards.pipeline.guarding import guarded_publish

logger = logging.getLogger(__name__)


def park_message(
    task: Any, request: Any, wait_seconds: float, *, headers: Mapping[str, Any], is_timed: bool = False
) -> bool:
    """
    Have the running message come back later, under the same task id.

    Args:
        task: the guarded task.
        request: the running request.
        wait_seconds: from now.
        headers: set on top of those the message came with.
        is_timed: it waits for a time that is known, not for a lock or a key to be free.

    Returns:
        False where a copy has to be published instead: another transport, or a broker of its own for what is published.

    Raises:
        CopyRefused: it could not be parked, or another worker may have it.

    """
    app, tag = task.app, getattr(request, h.TAG, None)
    if tag is None or app.conf.broker_read_url != app.conf.broker_write_url:
        return False
    try:
        with _channel(task) as channel:
            if channel is None:
                return False
            is_in_line = not (is_timed and task.lock_plan is not None)
            name = line_name(task, request.args, request.kwargs) if is_in_line else None
            line = Line(name, float(headers[h.DEFERRED_SINCE])) if name else None
            is_parked = park(channel, tag, headers, wait_seconds, line)
    except Exception as error:
        # Whatever went wrong: the original message is kept.
        raise CopyRefused(f"{task.name}[{request.id}]: {error!r}") from error
    if not is_parked:
        raise CopyRefused(f"{task.name}[{request.id}]: another worker may have its message, or it is a broadcast's")
    if not is_in_line:
        # It may be the one that was called, and does not use what it was called for.
        call_who_waits(task, request, request.args, request.kwargs)
    return True


def call_who_waits(task: Any, request: Any, args: Any, kwargs: Any, ran_seconds: float = 0.0) -> None:
    """Have the message that has waited longest for the end of this delivery come back now; it comes by itself later."""
    ran_long = ran_seconds >= HardenedChannel.sweep_every_seconds and getattr(request, h.TAG, None) is not None
    if request.is_eager or not (ran_long or getattr(request, h.CALLS, False)):
        return
    name = line_name(task, args, kwargs)
    if name is None:
        return
    try:
        with _channel(task) as channel:
            if channel is not None:
                call_next(channel, name)
    except Exception as error:  # noqa: BLE001 - whatever went wrong, this delivery has ended well
        logger.warning("%s[%s]: who waits for it could not be called: %r", task.name, request.id, error)


def line_name(task: Any, args: Any, kwargs: Any) -> str | None:
    """Return what a delivery's duplicates and rivals wait for, or None: nothing that can be named."""
    try:
        if task.lock_plan is not None:
            return f"lock:{task.lock_plan.name(args, kwargs)}"
        return f"key:{task.plan.record_key(task.plan.key(args, kwargs))}" if task.plan is not None else None
    except KeyRefused:
        return None


@contextmanager
def _channel(task: Any) -> Iterator[HardenedChannel | None]:
    """Give a publisher's channel, within the time of a publish; None if it is not hardened."""
    with guarded_publish(task.app, task.name), task.app.producer_pool.acquire(block=True) as producer:
        channel = producer.channel
        yield channel if isinstance(channel, HardenedChannel) else None
