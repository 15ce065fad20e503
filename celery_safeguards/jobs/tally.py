"""What became of a job's letters, in numbers and reasons."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_REASONS = 20
"""How many different reasons a job counts; the others are one."""

OTHER_REASONS = "other reasons"
_REASON_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of letters: how many were sent, had no need, were refused; of those sent, how many have an answer."""

    sent: int = 0
    skipped: int = 0
    refused: int = 0
    succeeded: int = 0
    failed_again: int = 0
    unanswered: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why letters were skipped or refused."""

    def __add__(self, other: "Tally") -> "Tally":
        numbers = {each: getattr(self, each) + getattr(other, each) for each in _NUMBERS}
        reasons = dict(self.reasons)
        for reason, count in other.reasons.items():
            known = reason if reason in reasons or len(reasons) < MOST_REASONS else OTHER_REASONS
            reasons[known] = reasons.get(known, 0) + count
        return Tally(**numbers, reasons=reasons)

    def because(self, reason: str) -> "Tally":
        """Return it with one more letter of this reason."""
        return self + Tally(reasons={reason[:_REASON_CHARS]: 1})


_NUMBERS = ("sent", "skipped", "refused", "succeeded", "failed_again", "unanswered")
