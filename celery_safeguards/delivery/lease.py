"""
The lease of taken messages: while it is renewed, the broker gives them to nobody else.

A port for brokers whose lease can be renewed: Redis, here, and SQS, in `sqs`. RabbitMQ has no such lease: a message
that is not acknowledged stays with its consumer until the channel closes, or until the server's `consumer_timeout`
closes it.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from kombu.transport import redis as stock
from kombu.utils.encoding import bytes_to_str
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_safeguards.clock import Clock
from celery_safeguards.delivery.channel import RENEWALS_PER_TIMEOUT, SWEPT_AT_ONCE, HardenedChannel
from celery_safeguards.delivery.names import BrokerKeys
from celery_safeguards.delivery.parking import call_next, return_due
from celery_safeguards.delivery.restoring import Aside, read_aside
from celery_safeguards.delivery.scripts import RENEW, execute, run_script

_RENEWED_AT_ONCE = 1_000
_TIMEOUT_SECONDS = 2.0


class MessageLease(Protocol):
    """
    How the messages that one channel has taken are renewed.

    Safe when: used by a thread of its own beside the channel's; the server is away in between.
    """

    parked: int
    """How many messages were parked when it last swept."""
    aside: int
    """How many entries that are no messages were set aside then."""

    @property
    def timeout_seconds(self) -> float:
        """After how long without renewal a message is given to another worker."""

    @property
    def held(self) -> Collection[str]:
        """The delivery tags that this process answers for."""

    def message_of(self, tag: str) -> Any | None:
        """Return a held message, or None."""

    def renew(self, tags: Sequence[str]) -> Collection[str]:
        """
        Renew; returns the tags that another worker may have by now.

        Raises:
            ConnectionError, redis.RedisError: the broker did not answer.

        """

    def lose(self, tag: str) -> None:
        """Answer for a message no more: another worker may have it."""

    def sweep(self) -> int:
        """Give lapsed messages to living workers; returns how many: at least `SWEPT_AT_ONCE`, if there may be more."""

    def call_next(self, line: str) -> None:
        """Give back the message that has stood in a line for longest, if any does."""

    def give_aside(self, keep: Callable[[Aside], bool]) -> None:
        """
        Hand over what is set aside, until one is not kept; several workers may be handed the same.

        Args:
            keep: returns whether it is durable elsewhere.

        """

    def close(self) -> None:
        """Close what this lease has opened."""


class RedisLease:
    """
    Messages taken from Redis by kombu's transport or by the hardened one, which alone is swept from here.

    It has a connection of its own: the channel's are shared with the consumer's loop, and a pool's lock that this
    thread holds while a child is forked would stay locked there.
    """

    def __init__(self, channel: Any) -> None:
        self.parked = self.aside = 0
        self._channel = channel
        self._keys = BrokerKeys(channel)
        self._client = _own_client(channel, min(_TIMEOUT_SECONDS, self.timeout_seconds / RENEWALS_PER_TIMEOUT))

    @property
    def timeout_seconds(self) -> float:
        """The visibility timeout of the live channel."""
        return float(self._channel.visibility_timeout)

    @property
    def held(self) -> Collection[str]:
        """The delivery tags that this process answers for."""
        qos = self._channel.qos
        if isinstance(self._channel, HardenedChannel):
            held: Collection[str] = qos.held
            return held
        # Acknowledged ones wait there to be forgotten (kombu 5.7, `virtual.QoS`).
        return [tag for tag in tuple(qos._delivered) if tag not in qos._dirty]  # noqa: SLF001

    def message_of(self, tag: str) -> Any | None:
        """Return a held message, or None."""
        qos = self._channel.qos
        if isinstance(self._channel, HardenedChannel):
            return qos.message_of(tag)
        return qos._delivered.get(tag)  # noqa: SLF001

    def renew(self, tags: Sequence[str]) -> Collection[str]:
        """Renew, by the server's clock; returns the tags that are not there any more."""
        gone: list[str] = []
        for start in range(0, len(tags), _RENEWED_AT_ONCE):
            part = tags[start : start + _RENEWED_AT_ONCE]
            gone += map(bytes_to_str, run_script(self._client, RENEW, [self._keys.index], part))
        return gone

    def lose(self, tag: str) -> None:
        """Answer for a message no more; on the stock transport its tag may be another worker's now."""
        if isinstance(self._channel, HardenedChannel):
            self._channel.qos.forget(tag)

    def sweep(self) -> int:
        """
        Give the lapsed messages of dead workers to living ones, and the parked ones that are due to any.

        What this channel could not say before is said first. A closed one does none of it: the next one will. On the
        stock transport kombu's timer looks for lapsed messages, and nothing is parked.
        """
        if not isinstance(self._channel, HardenedChannel) or self._channel.closed:
            return 0
        self._channel.is_swept = True
        self._channel.qos.make_up(self._client)
        kept = return_due(self._channel, self._client)
        self.parked, self.aside = kept.parked, kept.aside
        return self._channel.sweep(self._client, SWEPT_AT_ONCE)

    def call_next(self, line: str) -> None:
        """Give back the message that has stood in a line for longest, if any does."""
        if isinstance(self._channel, HardenedChannel):
            call_next(self._channel, line, self._client)

    def give_aside(self, keep: Callable[[Aside], bool]) -> None:
        """Hand over what is set aside, until one is not kept."""
        while (entry := execute(self._client, "LINDEX", self._keys.aside, 0)) is not None:
            if not keep(read_aside(entry)):
                return
            execute(self._client, "LREM", self._keys.aside, 1, entry)

    def close(self) -> None:
        """Close this lease's connection."""
        self._client.connection_pool.disconnect()


def _own_client(channel: Any, timeout_seconds: float) -> Any:
    before = getattr(channel, "_sentinel_manager", None)
    pool = channel._get_pool()  # noqa: SLF001
    if hasattr(channel, "_sentinel_manager"):
        # The channel closes the one it knows.
        channel._sentinel_manager = before  # noqa: SLF001
    pool.connection_kwargs.update(socket_timeout=timeout_seconds, retry=Retry(NoBackoff(), 0))
    return channel.Client(connection_pool=pool)


def can_be_renewed(channel: Any) -> bool:
    """Whether the broker of a channel, or of its class, has a lease that can be renewed."""
    kind = channel if isinstance(channel, type) else type(channel)
    return _is_sqs(kind) or (issubclass(kind, stock.Channel) and bool(channel.ack_emulation))


def lease_of(channel: Any, clock: Clock) -> MessageLease | None:
    """Return how a channel's messages are renewed; None where its broker has no lease that can be."""
    if _is_sqs(type(channel)):
        # boto3 is there only where SQS is used.
        from celery_safeguards.delivery.sqs import SqsLease  # noqa: PLC0415

        return SqsLease(channel, clock)
    return RedisLease(channel) if can_be_renewed(channel) else None


def is_lost(message: Any) -> bool:
    """Whether this process no longer answers for a message: it was put back, or lapsed; never told on other brokers."""
    channel, tag = message.channel, message.delivery_tag
    if isinstance(channel, HardenedChannel):
        return not channel.qos.holds(tag)
    if _is_sqs(type(channel)):
        return tag not in channel.qos._delivered or tag in channel.qos._dirty  # noqa: SLF001
    return False


def receive_count(message: Any) -> int:
    """Return how often SQS gave a message to anybody, this time included; 0: another broker, which marks it instead."""
    attributes = ((message.delivery_info or {}).get("sqs_message") or {}).get("Attributes") or {}
    return int(attributes.get("ApproximateReceiveCount") or 0)


def wire_properties(message: Any) -> Any:
    """Return a message's properties without what kombu's SQS transport puts there: its body, and the receipt."""
    properties = message.properties or {}
    info = properties.get("delivery_info") if isinstance(properties, Mapping) else None
    if not isinstance(info, Mapping) or "sqs_message" not in info:
        return properties
    return {**properties, "delivery_info": {name: info[name] for name in info if not name.startswith("sqs_")}}


def _is_sqs(kind: type) -> bool:
    # Whoever has a channel of it has imported its module.
    transport = sys.modules.get("kombu.transport.SQS")
    return transport is not None and issubclass(kind, transport.Channel)
