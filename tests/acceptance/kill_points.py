"""
The points where a delivery is killed, and what each policy promises to leave behind.
"""

from dataclasses import dataclass

from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from example_project.gateway import AFTER, BEFORE

POLICIES = ("rerun", "verify", "quarantine", "repeatable")
KEYED = ("rerun", "verify", "quarantine")

# What the ledger holds in the end. In the middle of its call a killed process leaves a request: it is lost on the way,
# lands after its sender's death, or has landed, and only the answer is lost.
CHARGES = {
    "before_admit": {"rerun": 1, "verify": 1, "quarantine": 1, "repeatable": 1},
    "after_admit": {"rerun": 1, "verify": 1, "quarantine": 0, "repeatable": 1},
    "call_is_lost": {"rerun": 1, "verify": 1, "quarantine": 0, "repeatable": 1},
    "call_lands_late": {"rerun": 2, "verify": 1, "quarantine": 1, "repeatable": 2},
    "answer_is_lost": {"rerun": 2, "verify": 1, "quarantine": 1, "repeatable": 2},
    "after_effect": {"rerun": 2, "verify": 1, "quarantine": 1, "repeatable": 2},
    # Without a key the acknowledgement itself is the record.
    "after_settle": {"rerun": 1, "verify": 1, "quarantine": 1, "repeatable": 2},
    "before_ack": {"rerun": 1, "verify": 1, "quarantine": 1, "repeatable": 2},
}
POINTS = tuple(CHARGES)
HELD_BY_GATEWAY = {"call_is_lost": BEFORE, "call_lands_late": BEFORE, "answer_is_lost": AFTER}
_AROUND_THE_BODY = ("before_admit", "after_settle", "before_ack")


@dataclass(frozen=True, slots=True)
class Order:
    """One payment under one policy, whose process is to be killed at one point, or at none."""

    policy: str
    point: str | None
    id: str
    task_id: str

    @property
    def loses_a_start(self):
        """Whether the body had begun when its process was killed, and its end was not recorded."""
        return self.point is not None and self.point not in _AROUND_THE_BODY

    @property
    def is_quarantined(self):
        return self.policy == "quarantine" and self.loses_a_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What one order left behind."""

    charges: int
    end: str
    """`paid`: SUCCESS with a charge of the ledger; `letter`: FAILURE that names the order's only letter."""
    record: str | None = None
    lost_starts: int | None = None
    letters: tuple[str, ...] = ()
    """Their kinds."""

    @classmethod
    def promised(cls, order):
        """Return what the order's policy promises."""
        kept = {"charges": CHARGES[order.point][order.policy] if order.point else 1, "end": "paid"}
        if order.policy in KEYED:
            kept |= {"record": State.DONE, "lost_starts": int(order.loses_a_start)}
        if order.is_quarantined:
            kept |= {"end": "letter", "record": State.QUARANTINED, "letters": (FailureKind.UNKNOWN_OUTCOME,)}
        return cls(**kept)
