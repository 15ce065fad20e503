"""What a delivery has in hand: the answer to its question, its claim with its lock, and what it ends with."""

from dataclasses import dataclass
from math import inf

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger.decide import Decision
from celery_safeguards.ledger.record import Record, ResultForm
from celery_safeguards.locks.store import Grant, HeldLock


@dataclass(frozen=True, slots=True)
class Hold:
    """
    A claim that this delivery holds, and the lock that goes with it.

    `lease_ends` and `lock_ends` are monotonic times of this process, counted from before the question was sent: both
    are over here no later than on the store.
    """

    key: RecordKey
    record: Record
    lease_ends: float
    epoch: str
    lock: HeldLock | None = None
    lock_ends: float = inf


class LockIsHeld(Exception):
    """Raised when the lock that goes with the claim is somebody else's: neither was taken, and no start counted."""

    def __init__(self, grant: Grant) -> None:
        super().__init__(grant)
        self.grant = grant


@dataclass(frozen=True, slots=True)
class Question:
    """A decision and what it was taken on."""

    decision: Decision
    record: Record | None
    view: StoreView
    hold: Hold | None = None
    """There when the decision is carried out already: the first start of a key."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The body's result, in the form the record keeps it."""

    form: ResultForm
    text: str = ""
