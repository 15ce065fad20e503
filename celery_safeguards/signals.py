"""
One signal for every step; logs, counters and traces only listen.

Receivers observe: an exception in one is logged by the dispatcher and changes nothing.
"""

import logging
from typing import Any

from celery.utils.dispatch import Signal

from celery_safeguards.outcome import Outcome

logger = logging.getLogger("celery_safeguards")

delivery_ended = Signal(name="delivery_ended", providing_args={"task_id", "outcome", "key", "reason"})
"""A delivery has its outcome. Sender: the task. `outcome` is an `Outcome`, `reason` a short text or None."""

lease_lost = Signal(name="lease_lost", providing_args={"task_id", "key", "reason"})
"""An owner learned that its claim is gone. Sender: the task, or None in the worker's main process."""

message_dead_lettered = Signal(name="message_dead_lettered", providing_args={"letter"})
"""A letter was written. Sender: the task's name. Sent once for each letter, never for a retry."""


def end_delivery(task: Any, task_id: str, outcome: Outcome, key: str | None = None, reason: str | None = None) -> None:
    """Tell the log and every listener how a delivery ended."""
    level = logging.INFO if outcome in _ORDINARY else logging.WARNING
    if logger.isEnabledFor(level):
        logger.log(level, "%s[%s] %s%s%s", task.name, task_id, outcome, f" {key}" if key else "", _because(reason))
    if delivery_ended.receivers:
        delivery_ended.send(task, task_id=task_id, outcome=outcome, key=key, reason=reason)


_ORDINARY = frozenset({Outcome.SUCCEEDED, Outcome.DEDUPLICATED, Outcome.RETRIED, Outcome.DEFERRED, Outcome.SKIPPED})


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""
