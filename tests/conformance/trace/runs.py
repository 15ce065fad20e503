"""
The parts of the world that only hold values: a delivery in its slot, and which rules are switched off.
"""

from dataclasses import dataclass, field

from celery_safeguards.admission.gate import Gate
from celery_safeguards.admission.hold import Hold
from celery_safeguards.headers import Lineage
from celery_safeguards.ledger.record import Record
from tests.conformance.trace.broker import Message

AFTER_SECONDS = 10.0
RETRY_SECONDS = 10.0
SLOTS = "ABCDEF"
TASK = "shop.charge"
KEY = "charge:7"
BODY = {"go", "checked", "sent", "landed", "ambiguous", "failed"}
PAST_SEND = {"sent", "landed", "ambiguous"}


class Impossible(Exception):
    """Raised when a step is about a run, a message or a letter that is not where the trace has it."""


class UnknownStep(Exception):
    """Raised when no rule of the driver reads a step: it must not be passed over in silence."""


@dataclass(eq=False, slots=True)
class Run:
    """One delivery in a worker's slot."""

    slot: int
    worker: int
    phase: str = "idle"
    message: Message | None = None
    owner: str = ""
    gate: Gate | None = None
    hold: Hold | None = None
    record: Record | None = None
    """As last answered: what a copy's headers are made from, or the dying record whose burial is under way."""
    is_helper: bool = False
    wait_seconds: float = 0.0

    @property
    def lineage(self):
        return Lineage.from_headers(self.message.headers)


@dataclass(slots=True)
class Parts:
    """What a mutation replaces; by default everything is as shipped."""

    gate: type = Gate
    store: object = lambda store: store
    letters: object = lambda letters: letters
    ledger: dict = field(default_factory=dict)
    off: frozenset = frozenset()
