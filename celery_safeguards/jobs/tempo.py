"""
How much of its pace a job goes at: half after a look that finds too many failures, a quarter more after a good one.

    look       answers              of the latest 20     share of the pace
    t0         8 well, 1 failed     11% failures         1       a few letters are broken by themselves
    t1         2 well, 7 failed     44%                  1/2     a dependency is away
    t2         4 failed             56%                  1/4
    t3         2 well               50%, none now        5/16    it answers again

The same share is taken of the rate and of how many letters are on their way. Promises: it is never more than what was
asked for, and never so little that the job would not notice that the dependency is back: a letter every five seconds,
one at a time, is the least.

Not covered: letters that give no answer. They say nothing of the dependency.
"""

from dataclasses import dataclass
from typing import Self

LATEST = 20
"""Answers that count; older ones fade."""

SLOWS_ABOVE = 0.25
"""The share of failures among them that slows a job."""

SLOWER, FASTER = 0.5, 1.25

SLOWEST_PER_SECOND = 0.2
"""Unless less was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tempo:
    """
    How a job goes.

    Attributes:
        share: of what was asked for, above 0, at most 1.
        failing: the share of failures among the latest answers.
        answers: how many these are, `LATEST` at most.

    """

    share: float = 1.0
    failing: float = 0.0
    answers: float = 0.0

    def after(self, *, succeeded: int, failed: int, least: float) -> Self:
        """
        Return how it goes on after a look.

        Args:
            succeeded: of the letters that have an answer now.
            failed: the others of these.
            least: share below which it does not go, see `least_share`.

        """
        seen = succeeded + failed
        if not seen:
            return self
        kept = min(self.answers, max(0.0, LATEST - seen))
        failing = (kept * self.failing + failed) / (kept + seen)
        share = self.share
        if failed and failing > SLOWS_ABOVE:
            share = max(least, share * SLOWER)
        elif succeeded:
            share = min(1.0, share * FASTER)
        return type(self)(share=share, failing=failing, answers=min(float(LATEST), kept + seen))

    def window(self, at_once: int) -> int:
        """Return how many letters may be on their way."""
        return max(1, int(at_once * self.share))

    def per_second(self, asked: float | None) -> float | None:
        """Return how many letters go out in a second; None: no rate was asked for."""
        return None if asked is None else max(asked * self.share, min(asked, SLOWEST_PER_SECOND))

    def __str__(self) -> str:
        if self.share == 1.0:
            return "as asked for"
        return f"slowed to {self.share:.1%} of it: {self.failing:.0%} of the latest {self.answers:.0f} failed again"


def least_share(per_second: float | None, at_once: int) -> float:
    """Return the share at which a job goes one letter at a time, and every five seconds if it has a rate."""
    return min(1.0, 1 / at_once, *([SLOWEST_PER_SECOND / per_second] if per_second else []))
