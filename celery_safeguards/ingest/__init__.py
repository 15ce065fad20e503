"""
What a broker has given up becomes letters: out of the dead-letter queues of RabbitMQ and SQS.

`drain` takes message after message, makes its letter durable, and only then acknowledges: a process that is killed at
any point leaves each message in the queue, in a letter, or in both, and the next one that drains tells the two apart.

With `follow` it goes on when the queues are empty, and waits for a broker or a store that is away: what it held is back
in the queue by then. Several may drain one queue at once.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.ingest.letters import Fate, Ingested, keep
from celery_safeguards.ingest.source import BrokerUnavailable, IngestRefused, Source

__all__ = ["BrokerUnavailable", "Fate", "IngestRefused", "Ingested", "drain"]
logger = logging.getLogger(__name__)
_IDLE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 30.0


def drain(
    app: Any,
    queues: Sequence[str],
    *,
    url: str | None = None,
    limit: int | None = None,
    follow: threading.Event | None = None,
) -> Iterator[Ingested]:
    """
    Make letters of what is in dead-letter queues, and yield what became of each message as it goes.

    Args:
        app: whose letters they become.
        queues: names; drained in turn, message by message.
        url: of their broker; None: the app's.
        limit: > 0, messages at most; None: no limit.
        follow: go on until it is set; None: end when the queues are empty.

    Raises:
        BrokerUnavailable, StoreUnavailable: without `follow`; what is not acknowledged comes back.
        ConfigurationError: the broker has no dead-letter queues.
        IngestRefused: a queue is consumed, is not there, or holds what cannot be taken.

    Safe when: killed at any point; run by several processes at once.

    """
    taken, pause_seconds = 0, _IDLE_SECONDS
    while True:
        try:
            with Source(app, url) as source:
                for queue in queues:
                    source.require(queue)
                for ingested in _drained(app, source, queues, follow):
                    yield ingested
                    taken, pause_seconds = taken + 1, _IDLE_SECONDS
                    if taken == limit:
                        break
        except (BrokerUnavailable, StoreUnavailable) as error:
            if follow is None:
                raise
            logger.warning("ingesting goes on in %g s: %s", pause_seconds, error)
            if follow.wait(pause_seconds):
                return
            pause_seconds = min(2 * pause_seconds, _MOST_PAUSE_SECONDS)
        else:
            return


def _drained(app: Any, source: Source, queues: Sequence[str], follow: threading.Event | None) -> Iterator[Ingested]:
    while True:
        is_empty = True
        for queue in queues:
            if follow is not None and follow.is_set():
                return
            message = source.take(queue)
            if message is None:
                continue
            is_empty = False
            ingested = keep(app, message, queue)
            if ingested.fate is not Fate.LEFT:
                source.acknowledge(message, queue)
            yield ingested
        if is_empty and (follow is None or follow.wait(_IDLE_SECONDS)):
            return
