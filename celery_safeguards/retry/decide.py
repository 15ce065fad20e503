"""
The one decision after a failure: again in n seconds, or bury, and why.

A pure function of the policy, the failure, the attempt's number and the time that has passed. It reads no clock, keeps
no state and raises nothing for any error a task can make: the pipeline publishes or buries, and the burial depends on
this answer alone, not on the type of the exception that Celery ends up with (celery/celery#5061).

    attempt 1 fails ── delay ──> attempt 2 fails ── delay ──> attempt 3 …
    |                                                              |
    0 <------------------ elapsed_seconds ------------> now        total_seconds: nothing begins after it

What it does not decide: whether the start may simply be repeated. `Failure.effect_possible`, and the steps the body
had begun, lead a retry through the task's answer for unknown outcomes.
"""

import math
from dataclasses import dataclass
from random import Random

from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry.backoff import after_server_seconds, draw_delay_seconds
from celery_safeguards.retry.classify import Failure
from celery_safeguards.retry.policy import RetryPolicy
from celery_safeguards.retry.rules import LONGEST_WAIT_SECONDS

FARTHEST_SECONDS = 3_155_760_000.0
"""A century. Beyond the calendar nothing can be published, and a message that waits for it would never end."""


@dataclass(frozen=True, slots=True)
class Again:
    """Start the body once more, `delay_seconds` from now."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Bury:
    """Write a dead letter; `reason` is short and for people."""

    kind: FailureKind
    reason: str


def decide(
    policy: RetryPolicy | None,
    failure: Failure,
    *,
    attempt: int,
    elapsed_seconds: float,
    random: Random,
    asked_delay_seconds: float | None = None,
) -> Again | Bury:
    """
    Decide what follows a failed attempt.

    Args:
        policy: None means never retried. Its part for the failure's kind holds.
        failure: what `classify_by` says of the error.
        attempt: number of the attempt that has just failed, from 1.
        elapsed_seconds: since the first attempt began.
        random: source of the jitter.
        asked_delay_seconds: the countdown of a manual `self.retry(countdown=)`. It is used as given, without jitter,
            and whatever the failure: who asks has judged. Attempts and total time cap it all the same. Below 0 means
            at once, as it does in Celery; more than a century is a mistake, for a person.

    Raises:
        ValueError: `attempt` is below 1, or a time is not a finite number: a mistake of the caller.

    """
    if attempt < 1 or not math.isfinite(elapsed_seconds) or not math.isfinite(asked_delay_seconds or 0.0):
        raise ValueError(
            f"decide(attempt={attempt!r}, elapsed_seconds={elapsed_seconds!r}, "
            f"asked_delay_seconds={asked_delay_seconds!r}): attempts count from 1, times are finite"
        )
    if policy is None:
        return Bury(failure.kind, "no retry policy")
    policy = policy.for_kind(failure.kind)
    objection = None if asked_delay_seconds is not None else _objection(policy, failure)
    if objection is not None:
        return Bury(failure.kind, objection)
    if attempt >= policy.attempts:
        return Bury(failure.kind, f"attempt {attempt} of {policy.attempts}")
    if asked_delay_seconds is not None and asked_delay_seconds > FARTHEST_SECONDS:
        return Bury(failure.kind, f"asked to wait for {asked_delay_seconds:.3g} seconds")
    if asked_delay_seconds is not None:
        delay_seconds = max(0.0, asked_delay_seconds)
    else:
        delay_seconds = _delay_seconds(policy, failure, attempt, random)
    if policy.total_seconds is not None and elapsed_seconds + delay_seconds > policy.total_seconds:
        return Bury(failure.kind, "would begin after total_seconds")
    return Again(delay_seconds)


def _objection(policy: RetryPolicy, failure: Failure) -> str | None:
    """Return why this failure is not retried whatever the attempt, or None."""
    if not failure.recognised and not policy.retry_unrecognised:
        return "unrecognised errors are not retried"
    if not failure.retryable:
        return f"{failure.kind.replace('_', ' ')} errors are not retried"
    if failure.retry_after_seconds is not None and failure.retry_after_seconds > LONGEST_WAIT_SECONDS:
        return f"asked to wait for {failure.retry_after_seconds:.3g} seconds"
    return None


def _delay_seconds(policy: RetryPolicy, failure: Failure, attempt: int, random: Random) -> float:
    own = draw_delay_seconds(policy, attempt, random)
    if failure.retry_after_seconds is None:
        return own
    # The later of the two: "Retry-After: 0" from an overloaded server must not switch the growing backoff off.
    return max(own, after_server_seconds(failure.retry_after_seconds, random))
