"""
The hardened Redis transport: kombu's own with another channel, for plain, TLS and socket, and for Sentinel.
"""

from time import monotonic
from typing import Any

from kombu.transport import redis as stock

from celery_safeguards.delivery.channel import HardenedChannel


class _Poller(stock.MultiChannelPoller):  # type: ignore[misc]
    """kombu's poller, which also tells when the consumer's loop last turned."""

    turned_at = 0.0

    def on_poll_start(self) -> None:
        """Begin a turn of the loop."""
        self.turned_at = monotonic()
        super().on_poll_start()


class HardenedTransport(stock.Transport):  # type: ignore[misc]
    """Transport of `redis://`, `rediss://` and `redis+socket://`."""

    Channel = HardenedChannel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = _Poller()


class HardenedSentinelChannel(HardenedChannel, stock.SentinelChannel):  # type: ignore[misc]
    """The same for a master that Sentinel knows."""


class HardenedSentinelTransport(HardenedTransport):
    """Transport of `sentinel://`."""

    default_port = stock.SentinelTransport.default_port
    Channel = HardenedSentinelChannel
