"""
What a broker says of a message that it has given up: why, where, when, how often, and which way it had come.

RabbitMQ writes it into the headers: `x-death`, an entry for each queue and reason, the latest first, and beside it
`x-first-death-*`, the first of all. What died in the queues of Celery's own delays has only waited there, and is left
out. Everything in a header may as well be a producer's invention: what has the wrong shape says nothing.

SQS tells a count of receipts, and the queue that gave the message up where it is asked for that; the way it came is in
kombu's envelope.

The `x-delivery-count` of a message in a quorum queue is that queue's own count, and proves nothing of an earlier one.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.delivery.lease import receive_count
from celery_safeguards.outcome import FailureKind

SQS_ATTRIBUTES = ("ApproximateReceiveCount", "DeadLetterQueueSourceArn")
"""What is asked of SQS beside a message."""
_RECEIVED = "received too often"
_KINDS = {
    "rejected": FailureKind.DATA,
    "expired": FailureKind.EXPIRED,
    "maxlen": FailureKind.INFRASTRUCTURE,
    "delivery_limit": FailureKind.UNKNOWN_OUTCOME,
    _RECEIVED: FailureKind.UNKNOWN_OUTCOME,
}
_SAID = {
    "rejected": "a consumer rejected it",
    "expired": "its time to live was over while it waited",
    "maxlen": "the queue was full",
    "delivery_limit": "it was delivered as often as the queue allows, and not acknowledged",
    _RECEIVED: "it was received as often as the queue allows, and not deleted",
}
_MOST_CHARS = 255
# A delay of Celery's (kombu 5.7, `transport/native_delayed_delivery.py`); may have a prefix.
_DELAY_QUEUE = re.compile(r"celery_delayed_\d+$")
_IS_BEFORE_ANY_START = frozenset({"expired", "maxlen"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """That a queue gave a message up, once or several times for the same reason."""

    reason: str
    """The broker's word."""

    queue: str
    exchange: str | None = None
    routing_key: str | None = None
    """By which it had come there; None: not told."""

    count: int = 1
    at_seconds: float | None = None
    """Wall clock of the broker, of the last time; None: not told."""

    @property
    def kind(self) -> FailureKind:
        """What a letter calls it; a reason that nobody here knows leaves everything open."""
        return _KINDS.get(self.reason, FailureKind.UNKNOWN_OUTCOME)

    @property
    def may_follow_a_start(self) -> bool:
        """Whether its message had been with a consumer, as far as the reason tells."""
        return self.reason not in _IS_BEFORE_ANY_START

    def __str__(self) -> str:
        often = f", {self.count} times" if self.count > 1 else ""
        said = _SAID.get(self.reason, f"the broker says {self.reason!r}")
        return f"given up by queue {self.queue or '(not told)'}: {said}{often}"

    def entry(self, now_seconds: float) -> HistoryEntry:
        """Return it as a line of a letter's history; one without a time is of now."""
        way = f"; it had come by exchange {self.exchange!r}, routing key {self.routing_key!r}"
        return HistoryEntry(
            at_seconds=now_seconds if self.at_seconds is None else min(self.at_seconds, now_seconds),
            what=f"dead-lettered: {self.reason}",
            detail=f"{self}{way if self.routing_key is not None else ''}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """All that the broker tells of a message's deaths."""

    deaths: tuple[Death, ...] = ()
    """The latest first."""

    first: Death | None = None
    """The one before which it had come as its producer sent it."""

    name: str = ""
    """Of this very death of this very message, the same each time it is delivered; empty: it has none."""

    @classmethod
    def of(cls, message: Any, queue: str) -> "Past":
        """
        Read what a broker says.

        Args:
            message: kombu's.
            queue: that it was taken from. What is said of that queue itself is no way back to work.

        """
        info = message.delivery_info if isinstance(message.delivery_info, Mapping) else {}
        if "sqs_message" in info:
            return _of_sqs(message, info, queue)
        headers = message.headers if isinstance(message.headers, Mapping) else {}
        return _of_rabbitmq(headers, queue)


def _of_rabbitmq(headers: Mapping[str, Any], queue: str) -> Past:
    told = headers.get("x-death")
    entries = [each for each in told if isinstance(each, Mapping)] if isinstance(told, list | tuple) else []
    deaths = tuple(death for death in map(_death, entries) if not _DELAY_QUEUE.search(death.queue))
    if not deaths:
        return Past()
    elsewhere = [death for death in deaths if death.queue != queue]
    named = (headers.get("x-first-death-queue"), headers.get("x-first-death-reason"))
    oldest = elsewhere[-1] if elsewhere else None
    first = next((death for death in elsewhere if (death.queue, death.reason) == named), oldest)
    last = deaths[0]
    return Past(deaths=deaths, first=first, name=f"\0{last.queue}\0{last.reason}\0{last.count}\0{last.at_seconds}")


def _death(entry: Mapping[str, Any]) -> Death:
    keys, count = entry.get("routing-keys"), entry.get("count")
    return Death(
        reason=_text(entry.get("reason")),
        queue=_text(entry.get("queue")),
        exchange=_text(entry.get("exchange")),
        routing_key=_text(keys[0]) if isinstance(keys, list | tuple) and keys else None,
        count=count if isinstance(count, int) and count > 0 else 1,
        at_seconds=_seconds(entry.get("time")),
    )


def _of_sqs(message: Any, info: Mapping[str, Any], queue: str) -> Past:
    sqs = info["sqs_message"]
    attributes = sqs.get("Attributes") or {}
    source = str(attributes.get("DeadLetterQueueSourceArn") or "").rpartition(":")[2]
    key, name = info.get("routing_key"), str(sqs.get("MessageId") or "")
    # This receipt is one of them.
    received = receive_count(message) - 1
    if not source and received < 1:
        return Past(name=name)
    death = Death(
        reason=_RECEIVED,
        queue=source or (_text(key) if key != queue else ""),
        exchange=_text(info.get("exchange")),
        routing_key=_text(key) if key and key != queue else None,
        count=max(received, 1),
    )
    return Past(deaths=(death,), first=death if death.routing_key else None, name=name)


def _seconds(value: Any) -> float | None:
    if not isinstance(value, datetime):
        return None
    try:
        # AMQP's timestamps have no zone: they are UTC.
        found = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None
    return found if found >= 0 and math.isfinite(found) else None


def _text(value: Any) -> str:
    # No name of AMQP is longer.
    return value[:_MOST_CHARS] if isinstance(value, str) else ""
