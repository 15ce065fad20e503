"""
Putting the running message itself off, where the broker can keep it (`delivery.parking`): no copy is published.
"""

from collections.abc import Mapping
from typing import Any

from celery_safeguards import headers as h
from celery_safeguards.delivery.connections import is_hardened
from celery_safeguards.delivery.parking import park
from celery_safeguards.pipeline.copies import CopyRefused
from celery_safeguards.pipeline.guarding import guarded_publish


def park_message(task: Any, request: Any, wait_seconds: float, *, headers: Mapping[str, Any]) -> bool:
    """
    Have the running message come back later, under the same task id.

    Args:
        task: the guarded task.
        request: the running request.
        wait_seconds: from now.
        headers: set on top of those the message came with.

    Returns:
        False where a copy has to be published instead: another transport, or a broker of its own for what is published.

    Raises:
        CopyRefused: it could not be parked, or another worker may have it.

    """
    app, tag = task.app, getattr(request, h.TAG, None)
    if tag is None or app.conf.broker_read_url != app.conf.broker_write_url:
        return False
    try:
        with guarded_publish(app, task.name), app.producer_pool.acquire(block=True) as producer:
            channel = producer.channel
            if not is_hardened(channel):
                return False
            is_parked = park(channel, tag, headers, wait_seconds)
    except Exception as error:
        # Whatever went wrong: the original message is kept.
        raise CopyRefused(f"{task.name}[{request.id}]: {error!r}") from error
    if not is_parked:
        raise CopyRefused(f"{task.name}[{request.id}]: another worker may have its message")
    return True
