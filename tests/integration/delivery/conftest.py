"""
A broker of a test's own: queues and `unacked` under a prefix, connections by the stock transport or the hardened one.
"""

import contextlib
import json

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.transport.redis import Transport as StockTransport

from celery_safeguards.delivery import qos
from celery_safeguards.delivery.transport import HardenedTransport

TRANSPORTS = {"stock": StockTransport, "hardened": HardenedTransport}


class Broker:
    """One queue on a real server, seen from clients and from the server."""

    def __init__(self, url, client, prefix, stack):
        self._url = url
        self._stack = stack
        self.redis = client
        self.prefix = prefix
        self.queue = Queue("orders", Exchange("orders", type="direct"), routing_key="orders")

    def connect(self, kind="hardened", **options):
        """Open a connection and return its channel; closed with the test."""
        options = {"global_keyprefix": self.prefix, "visibility_timeout": 60, **options}
        connection = Connection(self._url, transport=TRANSPORTS[kind], transport_options=options)
        self._stack.callback(_close, connection)
        return connection.default_channel

    def consume(self, channel, *, prefetch=10, no_ack=False):
        """Consume with a channel; returns the list that the messages will come to."""
        received = []
        consumer = Consumer(
            channel, [self.queue], on_message=received.append, accept=["json"], no_ack=no_ack, prefetch_count=prefetch
        )
        consumer.consume()
        return received

    def publish(self, number=1, *, kind="hardened", channel=None, **options):
        """Publish one message."""
        producer = Producer(channel or self.connect(kind))
        producer.publish(
            {"number": number}, exchange=self.queue.exchange, routing_key="orders", declare=[self.queue], **options
        )

    def drain(self, channel, *, seconds=3):
        """Let a channel's connection turn until it has received something."""
        channel.connection.client.drain_events(timeout=seconds)

    def push_raw(self, raw, queue="orders"):
        """Put bytes into a queue as some other program might."""
        self.redis.lpush(self.prefix + queue, raw)

    def queued(self):
        """Return the messages that wait, next first."""
        steps = ("", "\x06\x163", "\x06\x166", "\x06\x169")
        raw = [each for step in steps for each in reversed(self.redis.lrange(f"{self.prefix}orders{step}", 0, -1))]
        return [json.loads(each) for each in raw]

    def unacked(self):
        """Return the entries of messages that are taken and not acknowledged, by delivery tag."""
        return {tag: json.loads(entry) for tag, entry in self.redis.hgetall(f"{self.prefix}unacked").items()}

    def indexed(self):
        """Return when each of them was received or renewed."""
        return dict(self.redis.zrange(f"{self.prefix}unacked_index", 0, -1, withscores=True))

    def age(self, seconds=1_000):
        """Make every unacknowledged message older."""
        for tag in self.indexed():
            self.redis.zincrby(f"{self.prefix}unacked_index", -seconds, tag)

    def count(self):
        """Return how many messages the broker still has, waiting or taken."""
        return len(self.queued()) + len(self.unacked())


def _close(connection):
    with contextlib.suppress(Exception):
        connection.close()


@pytest.fixture
def broker(redis_url, redis_client, namespace):
    """A broker on the session's server."""
    with contextlib.ExitStack() as stack:
        yield Broker(redis_url, redis_client, f"{namespace}.", stack)
        qos.name_what_runs(tuple)
    leftover = list(redis_client.scan_iter(f"{namespace}.*"))
    if leftover:
        redis_client.delete(*leftover)


@pytest.fixture
def own_broker(fresh_redis, namespace):
    """A broker on a server of its own, which the test may stop, fill or cut."""
    import redis

    with contextlib.ExitStack() as stack:
        client = stack.enter_context(redis.Redis.from_url(fresh_redis.url, decode_responses=True))
        yield Broker(fresh_redis.url, client, f"{namespace}.", stack)
        qos.name_what_runs(tuple)
