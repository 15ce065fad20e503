"""
The pace of a replay: how far apart its messages go out.

The promise: at 50 a second a thousand messages take 20 seconds, though each takes time by itself: what is late by a
little is caught up with. A standstill is not: a broker that was away for a minute does not meet the minute's messages.
"""

from celery_safeguards.clock import Clock

_CAUGHT_UP_SECONDS = 0.25
"""A burst is no more than what this time would have seen."""


class Pace:
    """
    Holds messages apart; letters that send none cost no time.

    Args:
        per_second: > 0, messages a second at most; None: nothing is held.
        clock: for waiting.

    """

    def __init__(self, per_second: float | None, clock: Clock) -> None:
        self._clock = clock
        self.keep(per_second)
        self._due = clock.monotonic_seconds()

    def keep(self, per_second: float | None) -> None:
        """Go on at another pace; what is due already stays due when it was."""
        self._apart_seconds = 1 / per_second if per_second else 0.0

    @property
    def left_seconds(self) -> float:
        """How long until the next message is due; 0 or less: it is."""
        return self._due - self._clock.monotonic_seconds()

    def due(self, most: int) -> int:
        """Return how many messages are due now, `most` at most."""
        late_seconds = -self.left_seconds
        if late_seconds < 0:
            return 0
        if not self._apart_seconds:
            return most
        return min(most, 1 + int(min(late_seconds, _CAUGHT_UP_SECONDS) / self._apart_seconds))

    def wait(self) -> None:
        """Sleep until the next message is due."""
        left_seconds = self.left_seconds
        if left_seconds > 0:
            self._clock.sleep(left_seconds)

    def sent(self, messages: int = 1) -> None:
        """Count messages that went out."""
        begins = max(self._due, self._clock.monotonic_seconds() - _CAUGHT_UP_SECONDS)
        self._due = begins + messages * self._apart_seconds

    def hold(self, seconds: float) -> None:
        """Let nothing be due for so long."""
        self._due = max(self._due, self._clock.monotonic_seconds() + seconds)
