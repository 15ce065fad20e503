"""What a store says of itself with every answer."""

from dataclasses import dataclass


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
