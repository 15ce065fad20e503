"""
What the demo is going to do, drawn from a seed before anything starts: each order, and the one thing done to it.

Every order has one fault at most, so that a lost or doubled payment can be laid at a fault's door. Orders of one kind
are not neighbours: the draw spreads them.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

FEWEST_ORDERS = 60


class Fate(StrEnum):
    """What is done to an order; the text is how the report calls it."""

    UNTOUCHED = "left alone"
    TWICE = "published twice"
    VANISHED = "killed while it takes a message"
    DROPPED = "charged, answer dropped"
    FAILED = "gateway answers 503"
    FAILED_AFTER = "charged, then answers 503"
    LIMITED = "gateway answers 429"
    SLOW = "charged after the shop gave up"
    STUCK = "503 until it is repaired"
    CHILD_BEFORE = "child killed, charge under way"
    CHILD_UNANSWERED = "child killed, charged, unanswered"
    CHILD_ANSWERED = "child killed, charged, answered"
    WORKER_BEFORE = "worker killed, charge under way"
    WORKER_UNANSWERED = "worker killed, charged, unanswered"
    CUT = "broker connections cut"
    REFUSED = "gateway refuses connections"


_SIZES = {
    Fate.VANISHED: 4,
    Fate.DROPPED: 5,
    Fate.FAILED: 5,
    Fate.FAILED_AFTER: 3,
    Fate.LIMITED: 5,
    Fate.SLOW: 3,
    Fate.STUCK: 4,
    Fate.CHILD_BEFORE: 2,
    Fate.CHILD_UNANSWERED: 2,
    Fate.CHILD_ANSWERED: 2,
    Fate.WORKER_BEFORE: 1,
    Fate.WORKER_UNANSWERED: 1,
}
_TENTHS = (Fate.TWICE, Fate.CUT, Fate.REFUSED)
CUTS = 3
_CUSTOMERS = 20


@dataclass(frozen=True, slots=True)
class Order:
    """One order to be paid once; `amount` in cents."""

    id: str
    amount: int
    fate: Fate
    email: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All orders, and the payloads that are wrong on purpose and no orders of anybody."""

    orders: tuple[Order, ...]
    bad_payloads: tuple[dict, ...]

    def of(self, *fates):
        """Return the orders of these fates."""
        return [order for order in self.orders if order.fate in fates]

    def planned(self):
        """Return how often each fault must strike."""
        counts = {fate: len(self.of(fate)) for fate in Fate if fate is not Fate.UNTOUCHED}
        return {**counts, Fate.CUT: CUTS, Fate.REFUSED: 1}


def draw_plan(orders, seed):
    """Return the plan of a seed."""
    draw = random.Random(seed)
    fates = [fate for fate, size in _SIZES.items() for _ in range(size)]
    fates += [fate for fate in _TENTHS for _ in range(orders // 10)]
    fates += [Fate.UNTOUCHED] * (orders - len(fates))
    draw.shuffle(fates)
    numbered = (
        Order(f"A{number:03}", draw.randrange(500, 20_000), fate, f"customer{number % _CUSTOMERS}@example.com")
        for number, fate in enumerate(fates, 1)
    )
    return Plan(tuple(numbered), _bad_payloads())


def _bad_payloads():
    return (
        {"order": "bad-1", "amount": 500},
        {"order_id": "bad-2", "cents": 500},
        {"order_id": "bad-3"},
        {"order_id": "bad-4", "amount": -500},
        {"order_id": "bad-5", "amount": 0},
        {"order_id": "bad-6", "amount": "12,50"},
    )
