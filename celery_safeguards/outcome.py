"""
The two closed lists that every record, log line and metric uses: how a delivery ended, and how an attempt failed.
"""

from enum import StrEnum


class Outcome(StrEnum):
    """How one delivery of a message ended."""

    SUCCEEDED = "succeeded"
    DEDUPLICATED = "deduplicated"
    RETRIED = "retried"
    DEFERRED = "deferred"
    STALE_IGNORED = "stale_ignored"
    DEAD_LETTERED = "dead_lettered"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    SKIPPED = "skipped"
    FENCED = "fenced"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class FailureKind(StrEnum):
    """
    Why an attempt failed.

    `effect_possible` tells whether the kind alone leaves open that something outside has happened. It speaks of the
    error only: whether the whole attempt may have had an effect is decided where the body's steps are known.
    """

    TRANSIENT = "transient"
    DEPENDENCY_TIMEOUT = "dependency_timeout"
    RATE_LIMITED = "rate_limited"
    INFRASTRUCTURE = "infrastructure"
    DATA = "data"
    BUG = "bug"
    WORKER_TIMEOUT = "worker_timeout"
    WORKER_LOST = "worker_lost"
    INVARIANT = "invariant"
    UNKNOWN_TASK = "unknown_task"
    UNDECODABLE = "undecodable"
    CONFLICT = "conflict"
    UNKNOWN_OUTCOME = "unknown_outcome"
    UNROUTABLE = "unroutable"
    EXPIRED = "expired"

    @property
    def effect_possible(self) -> bool:
        """Whether something outside may have happened, as far as the error itself tells."""
        return self in _EFFECT_POSSIBLE


_EFFECT_POSSIBLE = frozenset(
    {
        FailureKind.DEPENDENCY_TIMEOUT,
        FailureKind.WORKER_TIMEOUT,
        FailureKind.WORKER_LOST,
        FailureKind.INVARIANT,
        FailureKind.UNKNOWN_OUTCOME,
    }
)
