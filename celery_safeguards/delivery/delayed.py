"""
Native delayed delivery of RabbitMQ: with a quorum queue on a topic exchange, a countdown is waited for in the broker.

    published to `celery_delayed_27`, key = 28 bits of whole seconds + the queue's key
      └─▶ one queue with a time to live for each bit ─▶ `celery_delayed_delivery` ─▶ the queue, with that long key

So a message that has waited no longer says which queue it is from, nor does one that came straight from a topic
exchange: Celery 5.7 sends a copy of either to the default queue (`app/base.py`). And a countdown is cut to whole
seconds there: below one it is refused, above it the copy would come early.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from celery_safeguards._compat import has_native_delay

_DELAY_BITS = re.compile(r"^(?:[01]\.){28}")
_DELAYED_EXCHANGE = "celery_delayed_delivery"
"""May have a prefix (kombu 5.7, `transport/native_delayed_delivery.py`)."""


def queue_behind(app: Any, exchange: str, routing_key: str) -> Any | None:
    """Return the queue for which a message was delayed; None: it was not, or the app does not know the queue."""
    if not exchange.endswith(_DELAYED_EXCHANGE):
        return None
    key = _DELAY_BITS.sub("", routing_key)
    return next((each for each in app.amqp.queues.values() if each.routing_key == key), None)


def delay_options(app: Any, delivery_info: Mapping[str, Any], countdown_seconds: float) -> dict[str, Any]:
    """
    Return the options of `signature_from_request` for a copy: when it is due, and the queue that its original is from.

    Args:
        app: a Celery app.
        delivery_info: how the original came.
        countdown_seconds: 0 or more.

    """
    if countdown_seconds <= 0 or not has_native_delay(app):
        return {"countdown": countdown_seconds}
    exchange, key = delivery_info.get("exchange") or "", delivery_info.get("routing_key") or ""
    found = queue_behind(app, exchange, key) or _bound_queue(app, exchange, key)
    route = {} if found is None else {"queue": found.name}
    return {"countdown": math.ceil(countdown_seconds), **route}


def _bound_queue(app: Any, exchange: str, routing_key: str) -> Any | None:
    way = (exchange, routing_key)
    return next((each for each in app.amqp.queues.values() if (each.exchange.name, each.routing_key) == way), None)
