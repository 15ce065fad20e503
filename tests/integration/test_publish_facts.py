"""
What the bounded publish takes for granted of kombu, redis-py and py-amqp beneath their documented surface.

Each test is one fact; a release that changes one fails here by name, before a publish hangs somewhere.
"""

import socket
from inspect import getsource, signature
from types import SimpleNamespace

import amqp.connection
import amqp.transport
import pytest
import redis
import redis.connection
from celery import Celery
from kombu import Connection, Exchange, Producer, Queue, pools
from kombu.connection import ConnectionPool
from kombu.exceptions import LimitExceeded, OperationalError
from kombu.transport import memory, virtual
from kombu.transport.pyamqp import Transport as AMQPTransport
from kombu.transport.redis import Channel as RedisChannel

from celery_safeguards._bounded import (
    BoundedConnection,
    BoundedConnectionPool,
    BoundedProducer,
    BoundedProducerPool,
    bound_producers,
    bounded_socket,
)


def test_celery_takes_its_producers_from_the_pool_that_is_set():
    """`bound_producers` sets it (celery `app/amqp.py`, `AMQP.producer_pool`)."""
    with Celery("facts", broker="memory://", set_as_current=False) as app:
        bound_producers(app)

        assert isinstance(app.producer_pool, BoundedProducerPool)
        with app.producer_or_acquire() as producer:
            assert isinstance(producer, BoundedProducer)
            assert isinstance(producer.connection, BoundedConnection)


def test_celery_forgets_its_pool_after_a_fork():
    """So it is set again before each publish (celery `app/base.py`, `Celery._after_fork`)."""
    with Celery("facts", broker="memory://", set_as_current=False) as app:
        bound_producers(app)
        app._after_fork()

        assert app.amqp._producer_pool is None


def test_kombu_gives_a_pooled_connection_a_class_that_can_be_replaced():
    """Which class that is, and its arguments, differ between versions (kombu `connection.py`, `ConnectionPool.new`)."""
    pool = BoundedConnectionPool(Connection("memory://"), limit=1)
    stock = ConnectionPool(Connection("memory://"), limit=1).new()

    made = pool.new()

    assert isinstance(made, type(stock))
    assert isinstance(made, BoundedConnection)
    assert made.as_uri() == stock.as_uri()


def test_kombu_waits_without_end_for_a_producer_and_its_connection():
    """Both waits are bounded (kombu `resource.py`, `Resource.acquire`; `pools.py`, `ProducerPool`)."""
    pool = pools.ProducerPool(Connection("memory://").Pool(1), limit=1)
    held = pool.acquire(block=True)

    with pytest.raises(LimitExceeded):
        pool.acquire(block=True, timeout=0.01)
    assert "block=True" in getsource(pools.ProducerPool._acquire_connection)
    held.release()


def test_kombu_asks_the_errback_before_each_repetition():
    """An error that it raises ends the repetitions (kombu `connection.py`, `Connection.ensure`)."""
    asked = []

    def give_up(error, pause_seconds):
        asked.append((error, pause_seconds))
        raise OperationalError("too late")

    def publish():
        raise ConnectionResetError

    connection = Connection("memory://")
    connection.transport.recoverable_connection_errors = (ConnectionResetError,)
    connection.recoverable_connection_errors = (ConnectionResetError,)
    repeated = connection.ensure(SimpleNamespace(revive=None), publish, give_up, max_retries=None)

    with pytest.raises(OperationalError, match="too late"):
        repeated()
    assert 1 == len(asked)
    assert ["self", "errback"] == list(signature(Connection._ensure_connection).parameters)[:2]


def test_kombu_makes_channels_of_the_transports_own_attribute():
    """So one transport can be given other channels (kombu `transport/virtual/base.py`, `create_channel`)."""
    transport = Connection("memory://").transport
    transport.Channel = type("Marked", (memory.Channel,), {})

    assert type(transport.create_channel(transport)) is transport.Channel
    assert "self.Channel(" in getsource(virtual.Transport.create_channel)


def test_kombu_gives_redis_the_class_of_its_connections():
    """It is where a bounded socket goes in (kombu `transport/redis.py`, `Channel._connparams`)."""
    transport = Connection("redis://nowhere:1/0").transport
    channel = object.__new__(RedisChannel)
    channel.connection = SimpleNamespace(client=transport.client, default_port=6379)

    for asynchronous in (False, True):
        assert issubclass(channel._connparams(asynchronous=asynchronous)["connection_class"], redis.Connection)


@pytest.mark.parametrize("kind", [redis.Connection, redis.UnixDomainSocketConnection, redis.SSLConnection])
def test_redis_reads_its_timeouts_from_its_attributes(kind):
    """Each connect and each new socket asks for them (redis-py `connection.py`, `_connect`)."""
    source = getsource(kind._connect) + getsource(redis.Connection._connect)

    assert "self.socket_timeout" in source
    assert "self.socket_connect_timeout" in source
    assert 7 == bounded_socket(kind)(socket_timeout=7).socket_timeout


def test_redis_sends_and_reads_by_two_methods_and_keeps_its_socket_here():
    """They are bounded (redis-py `connection.py`, `AbstractConnection`)."""
    for name in ("send_packed_command", "read_response"):
        assert callable(getattr(redis.Connection, name))
    assert redis.Connection()._sock is None


def test_redis_closes_a_connection_that_has_timed_out(redis_url):
    """Else the next command would read the answer that was late (redis-py `connection.py`, `read_response`)."""
    connection = redis.Redis.from_url(redis_url).connection_pool.connection_class(
        **redis.connection.parse_url(redis_url), socket_timeout=5
    )
    connection.connect()
    connection._sock.settimeout(0.01)
    connection.send_command("BLPOP", "facts:no-such-list", 1)

    with pytest.raises(redis.exceptions.TimeoutError):
        connection.read_response()
    assert connection._sock is None


def test_amqp_reads_every_frame_by_one_method_and_writes_within_a_timeout():
    """Both are bounded (amqp 5, `connection.py`, `transport.py`; kombu `transport/pyamqp.py`)."""
    left, right = socket.socketpair()
    with left, right:
        transport = amqp.transport.TCPTransport("nowhere", 1)
        transport.sock = left
        with transport.having_timeout(0.25):
            assert 0.25 == left.gettimeout()
        assert left.gettimeout() is None
        transport.sock = None
    assert "self.blocking_read(" in getsource(amqp.connection.Connection.drain_events)
    assert "self.Connection(" in getsource(AMQPTransport.establish_connection)
    assert "timeout" in signature(amqp.Channel.basic_publish).parameters


def test_kombu_encodes_a_body_in_one_method_before_anything_is_sent():
    """There it is weighed, compressed (kombu `messaging.py`, `Producer._prepare`)."""
    with Connection("memory://") as connection:
        headers = {}
        body, *_ = Producer(connection)._prepare({"a": "x" * 500}, "json", None, None, "zlib", headers)

    assert len(body) < 100
    assert "compression" in headers


def test_kombu_gives_the_properties_of_a_publish_to_its_message():
    """As which a broker gets an operation's id (kombu `messaging.py`, `Producer.publish`)."""
    with Connection("memory://") as connection:
        queue = Queue("facts-ids", Exchange("facts-ids"), "facts-ids")(connection.default_channel)
        queue.declare()
        Producer(connection).publish(
            "x", exchange=queue.exchange, routing_key="facts-ids", message_id="op", MessageDeduplicationId="op"
        )
        message = queue.get()
        queue.delete()

    assert ("op", "op") == (message.properties["message_id"], message.properties["MessageDeduplicationId"])
