"""
Starts of redelivered messages, counted where no record could: see `admission/starts.py`.

The broker's mark says that a message may have been started before. Such a start is counted before the body and taken
back at any outcome, so only starts that end a process add up.
"""

import logging
from dataclasses import dataclass
from typing import Any

from celery_safeguards import headers as h
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.pipeline.delivery import Delivery
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)


def is_redelivered(request: Any) -> bool:
    """Whether the broker marks a delivery as one that may follow another."""
    # Kombu marks both (5.7, `transport/redis.py`); the header stays with the copies of such a message.
    marks = (request.delivery_info or {}, request.headers or {})
    return any(each.get("redelivered") for each in marks)


def most_starts(request: Any, max_lost_starts: int) -> int:
    """
    Return how many starts may be counted before this one is refused.

    A connection that is cut gives back what still runs, and each of those bodies is counted until it ends. Those in
    this worker are known to live; the lives of others are their workers' to know.
    """
    return max_lost_starts + int(getattr(request, h.ALIVE, 0))


def end_counted_start(task: Any, request: Any) -> None:
    """Take the count back: the start has an outcome."""
    try:
        Wiring.of(task.app).starts.end(request.id)
    except StoreUnavailable as error:
        # The count only grows by starts without an outcome: one too many is the safe side of a week.
        logger.warning("%s[%s]: its start count stays: %s", task.name, request.id, error)


@dataclass(frozen=True, slots=True)
class CountedStart:
    """
    A start of a keyed message that is counted by its task id.

    Attributes:
        delivery: that is counted.
        lost: starts before this one without an outcome.
        count: with this one; None: so many are lost that it was not counted.

    """

    delivery: Delivery
    lost: int
    count: int | None

    @classmethod
    def of(cls, delivery: Delivery) -> "CountedStart | None":
        """
        Count the start of a redelivered message; None: it needs no count.

        Raises:
            Deferred: the store is down. DroppedLocally: and it could not be put off.

        """
        request, limit = delivery.request, delivery.policy.max_lost_starts
        if request.is_eager or not is_redelivered(request):
            return None
        try:
            count = delivery.wiring.starts.begin(request.id, limit)
        except StoreUnavailable as error:
            return delivery.put_off(f"a redelivered message must be counted, and the store is down ({error})", None)
        return cls(delivery, limit if count is None else count - 1, count)

    def end(self) -> None:
        """Take the count back."""
        end_counted_start(self.delivery.task, self.delivery.request)

    def undo(self) -> None:
        """Take this one back, and leave those before it: its body was not begun, and it has no outcome."""
        if self.count is None:
            return
        try:
            self.delivery.wiring.starts.undo(self.delivery.request.id, self.count)
        except StoreUnavailable as error:
            self.delivery.log(f"its start count is one too many: {error}")
