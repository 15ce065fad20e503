"""
What a task asks for: how often its body may start, how long to wait between two starts, and when to stop.

The values are frozen and shared by every run of the task. Nothing about a run is ever written to them or to the task:
Celery keeps its own back-off state on the task object, and concurrent runs then use each other's delay
(celery/celery#10456). Which errors are worth another start is not asked here but in `classify`.
"""

import sys
from dataclasses import dataclass

from celery_safeguards.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """
    Retry within caps, with exponential backoff and full jitter.

    Raises:
        ConfigurationError: a field that cannot hold, at construction; names the field, the value and the fix.

    """

    attempts: int = 4
    """Starts of the body, the first included; 1 or more."""

    base_seconds: float = 5.0
    """Ceiling of the first delay, above 0. The delay itself is drawn between 0 and the ceiling."""

    factor: float = 3.0
    """Growth of the ceiling from one attempt to the next, 1 or more."""

    cap_seconds: float = 300.0
    """Highest ceiling, at least `base_seconds`. A server's Retry-After may ask for more and is then honoured."""

    total_seconds: float | None = None
    """Time from the first start; a retry that would begin later is not made. None: only `attempts` limits."""

    retry_unrecognised: bool = True
    """Whether errors that no rule knows are retried within the caps, or buried at once."""

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigurationError(
                f"RetryPolicy(attempts={self.attempts!r}): give a whole number, 1 or more; 1 starts the body once and "
                f"never retries"
            )
        if not _is_number(self.base_seconds) or self.base_seconds <= 0:
            raise ConfigurationError(
                f"RetryPolicy(base_seconds={self.base_seconds!r}): give seconds above 0, such as 5"
            )
        if not _is_number(self.factor) or self.factor < 1:
            raise ConfigurationError(f"RetryPolicy(factor={self.factor!r}): give 1 for equal ceilings, or more")
        if not _is_number(self.cap_seconds) or self.cap_seconds < self.base_seconds:
            raise ConfigurationError(
                f"RetryPolicy(cap_seconds={self.cap_seconds!r}): give seconds, at least "
                f"base_seconds={self.base_seconds!r}"
            )
        if self.total_seconds is not None and (not _is_number(self.total_seconds) or self.total_seconds <= 0):
            raise ConfigurationError(
                f"RetryPolicy(total_seconds={self.total_seconds!r}): give seconds above 0, or None for no limit"
            )
        if not isinstance(self.retry_unrecognised, bool):
            raise ConfigurationError(f"RetryPolicy(retry_unrecognised={self.retry_unrecognised!r}): give True or False")


def _is_number(value: object) -> bool:
    # The comparison refuses NaN, the infinities, and whole numbers too large to become a float.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -sys.float_info.max <= value <= sys.float_info.max
    )
