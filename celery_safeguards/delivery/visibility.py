"""
How long a broker leaves a message with a worker, as the broker's channel has it, and whether a task fits into that.

    received ── the bodies before it in this worker ── its own delay ── its body ── acknowledged
    |<------------------------------ all of it unacknowledged ------------------------------>|

A message with a countdown is taken from the queue at once and counts as unacknowledged while it waits
(celery/kombu#337). Longer than the timeout, and it is delivered again while the first delivery still waits or runs.

**Effective** is what the channel says, not the settings: an option under a wrong name, or in another process, changes
nothing (celery/celery#9339). Kombu's Redis channel puts messages back by the timeout of *whoever sweeps*, and sweeps
only now and then: a redelivery comes between `timeout` and `timeout + sweep` (kombu 5.7 `transport/redis.py`: every
`unacked_restore_interval` x `unacked_restore_throttle` seconds; kombu before that: every 10 x 10).
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from celery_safeguards._compat import driver_type_of
from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.lease import can_be_renewed
from celery_safeguards.errors import ConfigurationError

_SWEEP_INTERVAL_SECONDS = 10.0
_SWEEP_THROTTLE = 10.0
_NAMES = ("visibility_timeout", "default_visibility_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """What a broker does with a message that is not acknowledged."""

    broker: str
    """Kombu's `driver_type`: `"redis"`, `"amqp"`, `"sqs"`, `"memory"`; empty where the transport is not installed."""

    timeout_seconds: float | None
    """None: there is no such timeout."""

    sweep_seconds: float = 0.0
    """How much later than that a message may be put back."""

    is_renewed: bool = False
    """Whether a worker renews the messages that it holds: then nothing of them lapses while it lives."""

    is_hardened: bool = False
    """Whether a connection that is cut redelivers only what no body runs of, and every pool sweeps."""

    is_live: bool = False
    """Whether it was read from an open channel, and not from settings."""

    @property
    def latest_seconds(self) -> float | None:
        """When a message of a dead worker is put back at the latest."""
        return None if self.timeout_seconds is None else self.timeout_seconds + self.sweep_seconds

    def __str__(self) -> str:
        if self.timeout_seconds is None:
            return f"{self.broker or 'the broker'}: no visibility timeout"
        read = "effective visibility timeout" if self.is_live else "visibility timeout by the settings"
        return (
            f"{self.broker}: {read} {self.timeout_seconds:g} s; a message of a dead worker comes back after "
            f"{self.timeout_seconds:g} s to {self.latest_seconds:g} s; renewed while its worker lives: "
            f"{'yes' if self.is_renewed else 'no'}"
        )


def is_hardened(channel: Any) -> bool:
    """Return whether a channel, or its class, is the hardened transport's."""
    kind = channel if isinstance(channel, type) else type(channel)
    return issubclass(kind, HardenedChannel)


def renews(channel: Any) -> bool:
    """Return whether workers renew what they hold on such a channel; takes a channel or its class."""
    return can_be_renewed(channel)


def effective_visibility(channel: Any) -> Visibility:
    """Return what an open channel does; nothing is asked of the broker."""
    broker = driver_type_of(channel)
    timeout = _timeout_seconds(channel)
    return Visibility(
        broker=broker.lower(),
        timeout_seconds=timeout,
        sweep_seconds=_sweep_seconds(channel, {}) if timeout is not None and broker == "redis" else 0.0,
        is_renewed=renews(channel),
        is_hardened=is_hardened(channel),
        is_live=True,
    )


def configured_visibility(app: Any) -> Visibility:
    """
    Return what a channel of an app would do by its settings, before one is open; see `effective_visibility`.

    The app's own option wins over the transport's default (kombu 5.7: 3600 s for Redis, 1800 s for SQS).

    Raises:
        ConfigurationError: the broker's URL cannot be read.

    """
    try:
        connection = app.connection_for_read()
        transport = connection.get_transport_cls()
    except (ImportError, KeyError):
        # A transport that is not installed here: a worker says so itself.
        return Visibility(broker="", timeout_seconds=None)
    except ValueError as error:
        raise ConfigurationError(f"broker_url is no URL: {error}") from error
    channel, options = getattr(transport, "Channel", None), connection.transport_options
    default, given = _timeout_seconds(channel), _seconds(options.get("visibility_timeout"))
    timeout = default if default is None or given is None else given
    broker = str(transport.driver_type)
    return Visibility(
        broker=broker.lower(),
        timeout_seconds=timeout,
        sweep_seconds=_sweep_seconds(channel, options) if timeout is not None and broker == "redis" else 0.0,
        is_renewed=renews(channel),
        is_hardened=is_hardened(channel),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """How long one message of a task may be unacknowledged: the sum, and how it comes about."""

    rounds: int
    """How many bodies may be before it in its worker, one after the other."""

    body_before_seconds: float
    """The longest of them."""

    body_before: str
    """Whose it is."""

    delay_seconds: float
    """The longest countdown that the safeguards give it."""

    body_seconds: float | None
    """Its own limit; None: nothing bounds it."""

    early_body_seconds: float = 0.0
    """The longest body that is acknowledged before it runs: it takes a process, and no place among what is held."""

    early_body: str = ""
    """Whose it is."""

    @property
    def seconds(self) -> float:
        """The least that the longest hold may be."""
        before = self.early_body_seconds + self.rounds * self.body_before_seconds
        return before + self.delay_seconds + (self.body_seconds or 0.0)

    def __str__(self) -> str:
        parts = []
        if self.early_body_seconds:
            parts.append(f"a body acknowledged early before it of {self.early_body_seconds:g} s ({self.early_body})")
        if self.rounds and self.body_before_seconds:
            bodies = "body" if self.rounds == 1 else "bodies"
            parts.append(f"{self.rounds} {bodies} before it x {self.body_before_seconds:g} s ({self.body_before})")
        if self.delay_seconds:
            parts.append(f"a delay of up to {self.delay_seconds:g} s")
        parts.append("its body" if self.body_seconds is None else f"its limit of {self.body_seconds:g} s")
        unbounded = " and more, as nothing bounds its body" if self.body_seconds is None else ""
        return f"{' + '.join(parts)} = {self.seconds:g} s{unbounded}"


def rounds_before(prefetch_multiplier: int) -> int | None:
    """
    Return how many bodies a message may wait for in its worker; None: without limit.

    A worker holds multiplier x processes messages, those that run included: the last of them waits for
    multiplier - 1 bodies of its process (celery 5.7, `worker/consumer/consumer.py`), and for one more that was
    acknowledged before it ran, and so is not among them.
    """
    return None if prefetch_multiplier < 1 else prefetch_multiplier - 1


def _sweep_seconds(channel: Any, options: Any) -> float:
    if is_hardened(channel):
        return HardenedChannel.sweep_every_seconds
    interval, throttle = _SWEEP_INTERVAL_SECONDS, _SWEEP_THROTTLE
    # Before kombu 5.7 the options are not read.
    if hasattr(channel, "unacked_restore_interval"):
        interval = _seconds(options.get("unacked_restore_interval", channel.unacked_restore_interval)) or interval
        throttle = _seconds(options.get("unacked_restore_throttle", channel.unacked_restore_throttle)) or 1.0
    return interval * throttle


def _timeout_seconds(channel: Any) -> float | None:
    """Return what a channel, or its class before there is one, has for a timeout."""
    known = (_seconds(getattr(channel, name, None)) for name in _NAMES)
    return next((each for each in known if each is not None), None)


def _seconds(value: object) -> float | None:
    # Text comes from the environment. Kombu cannot compute with it, which is a finding of its own.
    try:
        seconds = float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return seconds if seconds is not None and isfinite(seconds) else None
