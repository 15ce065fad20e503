"""What a task's time is measured against: the broker's patience, and how the worker holds and bounds its messages."""

import os
from dataclasses import dataclass
from typing import Any

from celery_safeguards._compat import worker_shape
from celery_safeguards.conf import Settings
from celery_safeguards.delivery.visibility import Visibility, configured_visibility
from celery_safeguards.errors import ConfigurationError

SQS_LONGEST_SECONDS = 43_200.0
"""What SQS allows for one receipt, renewals included."""
CONSUMER_TIMEOUT_SECONDS = 1_800.0
"""What RabbitMQ has unless it is told otherwise (3.10 to 4.1)."""
_SHORT_NAMES = {"threads": "thread", "processes": "prefork"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where an app's tasks run."""

    visibility: Visibility
    pool: str
    """Celery's module of it: `"prefork"`, `"solo"`, `"thread"`, `"gevent"`, `"eventlet"`."""
    concurrency: int
    prefetch_multiplier: int
    """0: without limit; 1 where nothing is taken before there is room for it."""
    consumer_timeout_seconds: float
    takes_ahead: bool = True
    """Whether a message is taken while each process has work that is acknowledged already."""
    are_delays_native: bool = False
    """Whether RabbitMQ keeps delayed messages itself, so that no worker holds them."""

    @property
    def patience_seconds(self) -> float | None:
        """How long a message may be unacknowledged; None: for ever, or for as long as its worker lives."""
        if self.visibility.broker == "amqp":
            return self.consumer_timeout_seconds
        if self.visibility.is_renewed:
            return SQS_LONGEST_SECONDS if self.visibility.broker == "sqs" else None
        return self.visibility.timeout_seconds

    @property
    def patience_name(self) -> str:
        """What that limit is called."""
        return "consumer_timeout of RabbitMQ" if self.visibility.broker == "amqp" else "visibility timeout"


def by_settings(app: Any) -> Surroundings:
    """
    Return what an app's settings say; a worker's command line may say otherwise.

    Raises:
        ConfigurationError: one of them that must be a number is none, or the broker's URL cannot be read.

    """
    conf = app.conf
    return _surroundings(
        app,
        configured_visibility(app),
        pool=_pool_name(conf.worker_pool),
        concurrency=_whole("worker_concurrency", conf.worker_concurrency or os.cpu_count() or 1),
        prefetch_multiplier=_whole("worker_prefetch_multiplier", conf.worker_prefetch_multiplier),
    )


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (ValueError, TypeError, OverflowError):
        raise ConfigurationError(f"{name}={value!r}: give a whole number") from None


def of_worker(consumer: Any, visibility: Visibility | None = None) -> Surroundings:
    """Return what a worker works with; before it is connected the visibility timeout is that of its settings."""
    app = consumer.app
    pool, concurrency, prefetch_multiplier = worker_shape(consumer)
    return _surroundings(
        app,
        visibility or configured_visibility(app),
        pool=_pool_name(type(pool)),
        concurrency=concurrency,
        prefetch_multiplier=prefetch_multiplier,
    )


def _surroundings(
    app: Any, visibility: Visibility, *, pool: str, concurrency: int, prefetch_multiplier: int
) -> Surroundings:
    is_off = bool(app.conf.get("worker_disable_prefetch")) and visibility.broker == "redis"
    return Surroundings(
        visibility=visibility,
        pool=pool,
        concurrency=concurrency,
        prefetch_multiplier=1 if is_off else prefetch_multiplier,
        takes_ahead=not is_off,
        consumer_timeout_seconds=Settings.of(app).consumer_timeout_seconds or CONSUMER_TIMEOUT_SECONDS,
        are_delays_native=visibility.broker == "amqp" and _are_delays_native(app),
    )


def quorum_queues(app: Any) -> dict[str, Any]:
    """Return the app's quorum queues by name."""
    queues = dict(app.amqp.queues)
    return {name: each for name, each in queues.items() if (each.queue_arguments or {}).get("x-queue-type") == "quorum"}


def _are_delays_native(app: Any) -> bool:
    # Celery 5.5 to 5.7 (`app/base.py`): on, as soon as one queue is a quorum queue; never through a direct exchange.
    return bool(quorum_queues(app)) and all(each.exchange.type != "direct" for each in dict(app.amqp.queues).values())


def _pool_name(pool: Any) -> str:
    name = pool if isinstance(pool, str) else getattr(pool, "__module__", "")
    name = name.partition(":")[0].rpartition(".")[2]
    return _SHORT_NAMES.get(name, name)
