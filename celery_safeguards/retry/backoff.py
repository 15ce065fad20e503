"""
How long to wait: pure arithmetic over the policy and a given source of chance.

    ceiling = min(cap, base * factor^(attempt-1))                    share = jitter_ratio

    full           floor |<----------------- anywhere ----------------->| ceiling
    equal                        ceiling/2 |<------- anywhere --------->| ceiling
    ratio                 ceiling*(1-share) |<------ anywhere ------>| ceiling*(1+share), cap at most
    decorrelated   base |<---- anywhere ---->| factor * the last delay, cap at most
    Retry-After         |               wait |<--- anywhere --->| wait + spread, never before the server's time

Tasks that failed together must not come back together. Full jitter spreads them most; equal and ratio keep closer to
the schedule; decorrelated grows by chance, so that two tasks with the same number of attempts have different ceilings.
No delay is below the floor, so none comes at once (hypothesis/h#9289), and none is clamped to a bound: everyone
whom a clamp had caught would come back in the same instant.

A wait that the server named is different: all who were told the same second come back in that second and knock the
service over again (CERNDocumentServer/cds-videos#854), yet nobody may come before it. Its jitter is positive only.
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Protocol

_LEAST_SPREAD_SECONDS = 2.0
_SPREAD_SHARE = 0.25
_OWN_FLOOR_SHARE = 0.1
_OWN_RATIO = 0.1
# Far beyond the point where a chain has forgotten its beginning; a failure must not be held up by arithmetic.
_MOST_CHAINED = 1_000


class Jitter(StrEnum):
    """How a delay is drawn from around the schedule; the module's drawing says from where."""

    FULL = "full"
    EQUAL = "equal"
    DECORRELATED = "decorrelated"
    RATIO = "ratio"


class Backoff(Protocol):
    """The fields of a policy that delays are made of."""

    @property
    def base_seconds(self) -> float: ...  # noqa: D102
    @property
    def factor(self) -> float: ...  # noqa: D102
    @property
    def cap_seconds(self) -> float: ...  # noqa: D102
    @property
    def floor_seconds(self) -> float | None: ...  # noqa: D102
    @property
    def jitter(self) -> Jitter | str: ...  # noqa: D102
    @property
    def jitter_ratio(self) -> float | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between which delays one is drawn, in seconds, both included."""

    earliest_seconds: float
    latest_seconds: float

    def draw(self, random: Random) -> float:
        """Draw from the whole interval."""
        drawn = random.uniform(self.earliest_seconds, self.latest_seconds)
        # The sum of two rounded floats may lie one step outside.
        return min(max(drawn, self.earliest_seconds), self.latest_seconds)


def backoff_ceiling_seconds(policy: Backoff, attempt: int) -> float:
    """
    Return where the schedule stands after an attempt: base, grown by factor, up to the cap.

    Args:
        policy: where base, factor and cap come from.
        attempt: number of the attempt that has just failed, from 1.

    """
    return _grown_seconds(policy, attempt - 1)


def floor_seconds(policy: Backoff) -> float:
    """Return the least delay: the policy's, or a tenth of its base."""
    if policy.floor_seconds is not None:
        return float(policy.floor_seconds)
    return _OWN_FLOOR_SHARE * policy.base_seconds


def delay_bounds(policy: Backoff, attempt: int) -> Bounds:
    """
    Return between which delays the one after an attempt lies.

    Args:
        policy: checked, so that floor <= base <= cap.
        attempt: number of the attempt that has just failed, from 1.

    """
    ceiling, floor = backoff_ceiling_seconds(policy, attempt), floor_seconds(policy)
    match policy.jitter:
        case Jitter.EQUAL:
            return Bounds(max(floor, ceiling / 2), ceiling)
        case Jitter.RATIO:
            share = _OWN_RATIO if policy.jitter_ratio is None else policy.jitter_ratio
            return Bounds(max(floor, ceiling * (1 - share)), min(float(policy.cap_seconds), ceiling * (1 + share)))
        case Jitter.DECORRELATED:
            return Bounds(float(policy.base_seconds), _grown_seconds(policy, attempt))
        case _:
            return Bounds(floor, ceiling)


def draw_delay_seconds(policy: Backoff, attempt: int, random: Random) -> float:
    """
    Draw the delay after an attempt.

    The decorrelated delay rests on the one before it, which no record keeps. It is drawn by playing the chain from its
    beginning: after any number of attempts it has the distribution of a chain that remembers, and tasks are spread
    alike. What differs is one task's own history: a short wait is not followed by a short one more often.
    """
    bounds = delay_bounds(policy, attempt)
    if policy.jitter != Jitter.DECORRELATED:
        return bounds.draw(random)
    delay = float(policy.base_seconds)
    for _ in range(min(attempt, _MOST_CHAINED)):
        delay = Bounds(bounds.earliest_seconds, min(bounds.latest_seconds, delay * policy.factor)).draw(random)
    return delay


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


def bounds_with_wait(bounds: Bounds, wait: float | None) -> Bounds:
    """Return the bounds of the later of two delays: the policy's own, and one after a wait that was asked for."""
    if wait is None:
        return bounds
    latest = max(bounds.latest_seconds, wait + server_spread_seconds(wait))
    return Bounds(max(bounds.earliest_seconds, wait), latest)


def _grown_seconds(policy: Backoff, times: int) -> float:
    try:
        return min(float(policy.cap_seconds), policy.base_seconds * float(policy.factor) ** times)
    except OverflowError:
        # A power beyond the largest float is beyond any cap.
        return float(policy.cap_seconds)
