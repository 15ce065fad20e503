"""
How long to wait: pure arithmetic over the policy and a given source of randomness.

Two shapes, for two different herds:

    own backoff     |<------------- anywhere ------------->|
                    0                                   ceiling        ceiling = min(cap, base * factor^(attempt-1))

    Retry-After     |                 |<--- anywhere --->|
                    0               wait           wait + spread       never before the server's time

Full jitter spreads tasks that failed together over the whole interval. A wait that the server named is different: all
who were told the same second come back in that second and knock the service over again
(CERNDocumentServer/cds-videos#854), yet nobody may come before it. Its jitter is therefore positive only.

Not covered: full jitter may draw a delay close to 0. The ceiling grows, so the mean does too; a task that must never
come back at once raises with a Retry-After or asks for a countdown.
"""

from random import Random

from celery_safeguards.retry.policy import RetryPolicy

_LEAST_SPREAD_SECONDS = 2.0
_SPREAD_SHARE = 0.25


def backoff_ceiling_seconds(policy: RetryPolicy, attempt: int) -> float:
    """
    Return the longest delay that may follow an attempt.

    Args:
        policy: where base, factor and cap come from.
        attempt: number of the attempt that has just failed, from 1.

    """
    try:
        return min(float(policy.cap_seconds), policy.base_seconds * float(policy.factor) ** (attempt - 1))
    except OverflowError:
        # A power beyond the largest float is beyond any cap.
        return float(policy.cap_seconds)


def full_jitter_seconds(ceiling: float, random: Random) -> float:
    """Draw a delay from the whole interval between 0 and `ceiling` seconds, both included."""
    return random.uniform(0.0, ceiling)


def server_spread_seconds(wait: float) -> float:
    """Return the width of the interval, after the server's `wait` in seconds, over which clients are spread."""
    return max(_LEAST_SPREAD_SECONDS, _SPREAD_SHARE * wait)


def after_server_seconds(wait: float, random: Random) -> float:
    """
    Draw a delay that honours the server: at least `wait` seconds, at most `server_spread_seconds` more.

    The spread is a quarter of the wait and at least two seconds, so that thirty clients told five seconds come back
    over more than one second.
    """
    return wait + random.uniform(0.0, server_spread_seconds(wait))
