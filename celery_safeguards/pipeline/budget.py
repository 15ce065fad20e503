"""How long one start of a body may take: the same figure for its lease, its deadline and the worker that watches it."""

from collections.abc import Sequence
from typing import Any

AFTER_HARD_LIMIT_SECONDS = 30.0
DEFAULT_SECONDS = 3_600.0


def lease_budget_seconds(task: Any, time_limits: Sequence[float | None] | None) -> float:
    """
    Return how long a claim is renewed; beyond it the body counts as hung.

    Args:
        task: the guarded task.
        time_limits: hard and soft limit of the message, which come before the task's own.

    """
    if task.policy.max_lease_seconds is not None:
        return float(task.policy.max_lease_seconds)
    hard_seconds = (time_limits or (None,))[0] or task.time_limit
    return float(hard_seconds) + AFTER_HARD_LIMIT_SECONDS if hard_seconds else DEFAULT_SECONDS


def body_budget_seconds(task: Any, time_limits: Sequence[float | None] | None) -> float:
    """Return after how long the body should have ended: its soft or hard limit, else the budget of its lease."""
    hard_seconds, soft_seconds = time_limits or (None, None)
    limits = (soft_seconds or task.soft_time_limit, hard_seconds or task.time_limit)
    return min([float(limit) for limit in limits if limit], default=lease_budget_seconds(task, time_limits))
