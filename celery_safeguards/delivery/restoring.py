"""
Which list an unacknowledged message goes back to, and as what.

The entry is `[message, exchange, routing key]`. Taken by the hardened transport it names the queue it came from; taken
by the stock one, the exchange it was published to, which is looked up as kombu does.
"""

import base64
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

BROADCAST = "sg_broadcast"
"""Set on what is noted of a broadcast: only who has declared its exchange would know that nobody reads its queue."""


class NoMessage(Exception):
    """Raised for bytes that are no message, or that belong to no queue."""


@dataclass(frozen=True, slots=True)
class Returning:
    """A message on its way back: its wire form, flagged as redelivered, and its queues."""

    text: str
    priority: Any
    queues: Sequence[str]


def returning(entry: bytes, lookup: Callable[[str, str], Sequence[str]]) -> Returning:
    """
    Read an entry of `unacked`.

    Args:
        entry: as stored.
        lookup: gives the queues of an exchange and a routing key.

    Raises:
        NoMessage: it cannot be read, or has no queue to go to.

    """
    try:
        message, exchange, routing_key = loads(bytes_to_str(entry))
        headers, properties = message.get("headers"), message["properties"]
        # As kombu does: a hint for the next who takes it (celery/kombu#1484).
        if isinstance(headers, dict):
            headers["redelivered"] = True
        if isinstance(properties.get("delivery_info"), dict):
            properties["delivery_info"]["redelivered"] = True
        text = dumps(message)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NoMessage(f"an unacknowledged entry cannot be read: {error!r}") from error
    if message.get(BROADCAST):
        raise NoMessage(f"a broadcast to exchange {exchange!r} has no queue to go back to")
    are_names = all(isinstance(each, str | None) for each in (exchange, routing_key))
    # Beyond the errors of reading: this one may ask the server.
    queues = tuple(lookup(exchange, routing_key)) if are_names else ()
    if not queues:
        raise NoMessage(f"no queue is bound to exchange {exchange!r}, routing key {routing_key!r}")
    return Returning(text, message, queues)


def aside_entry(raw: bytes, queue: str | None, reason: str) -> str:
    """Return what is noted of bytes that are no message."""
    entry = {
        "raw": base64.b64encode(raw).decode("ascii"),
        "queue": queue,
        "reason": reason,
        "at": time.time(),
    }
    return json.dumps(entry)


@dataclass(frozen=True, slots=True)
class Aside:
    """Bytes that were no message, as they were set aside."""

    raw: bytes
    queue: str | None
    """Where they were, if it is known."""
    reason: str
    """What is wrong with them."""
    at_seconds: float
    """When they were set aside, wall clock of whoever did."""


def read_aside(entry: bytes) -> Aside:
    """Return what `aside_entry` has noted."""
    found = json.loads(entry)
    return Aside(base64.b64decode(found["raw"]), found["queue"], found["reason"], float(found["at"]))
