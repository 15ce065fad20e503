"""
Time, injected.

Wall time is for what is stored or shown, monotonic time for what is waited. Where two processes must agree, neither is
used: the store's own clock decides, in microseconds.
"""

import time
from typing import Protocol

US_PER_SECOND = 1_000_000


class Clock(Protocol):
    """What mechanisms ask for the time."""

    def wall_seconds(self) -> float:
        """Return seconds since the epoch."""
        ...

    def monotonic_seconds(self) -> float:
        """Return seconds that only ever grow, with no meaning outside this process."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...


class SystemClock:
    """
    The machine's clocks.

    Held here, where what freezes time for a test does not look: a lease that never ends, and a wait whose time never
    passes, are no part of what such a test is about.
    """

    wall_seconds = staticmethod(time.time)
    monotonic_seconds = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


def to_us(seconds: float) -> int:
    """Return whole microseconds."""
    return round(seconds * US_PER_SECOND)


def to_seconds(us: int) -> float:
    """Return seconds from microseconds."""
    return us / US_PER_SECOND
