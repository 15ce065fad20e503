"""What a store says of itself with every answer, and the rule by which it changes."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """The store's own state at the moment of the answer; times in microseconds."""

    now_us: int
    epoch: str
    admit_from_us: int = 0
    """Nobody is admitted before: one lease after the epoch began, so that owners of a lost record write it back."""
    takeover_from_us: int = 0
    """No lapsed claim is taken over before: the store was away, not the owners."""
    away_from_us: int = 0
    """When somebody was heard last before that; known to the store alone, where it is a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """What a store keeps of itself; times in its own microseconds."""

    epoch: str
    admit_from_us: int
    takeover_from_us: int
    pulse_us: int
    """When a worker was heard last; a twelfth of a lease may be missing, so that not every question is a write."""
    away_from_us: int = 0

    def view(self, now_us: int) -> StoreView:
        """Return what an answer tells of it."""
        return StoreView(
            now_us=now_us,
            epoch=self.epoch,
            admit_from_us=self.admit_from_us,
            takeover_from_us=self.takeover_from_us,
            away_from_us=self.away_from_us,
        )

    def heard(self, now_us: int, lease_us: int) -> "StoreState":
        """
        Return it once somebody was heard.

        Every worker is heard at least each third of a lease. Half a lease of silence means that the store was away from
        all of them: their leases may have lapsed although they live, so nobody takes over for one lease from now.
        """
        silent_us = now_us - self.pulse_us
        if silent_us > lease_us / 2:
            return replace(self, pulse_us=now_us, takeover_from_us=now_us + lease_us, away_from_us=self.pulse_us)
        return replace(self, pulse_us=now_us) if silent_us > lease_us / 12 else self

    def declared_new(self, now_us: int) -> "StoreState":
        """Return it without its pauses."""
        return replace(self, pulse_us=now_us, admit_from_us=0, takeover_from_us=0)


def begun(epoch: str, now_us: int, lease_us: int) -> StoreState:
    """Return the state of a store that is new, or has lost all it knew."""
    from_us = now_us + lease_us
    return StoreState(epoch=epoch, admit_from_us=from_us, takeover_from_us=from_us, pulse_us=now_us)
