"""
A server that follows another takes its place while messages are held: they are renewed, acknowledged and taken there.

celery/kombu#1004, celery/celery#6348: "read only replica", or a worker that talks to the wrong server.
"""

import contextlib

import pytest
from kombu import Connection
from redis.exceptions import ReadOnlyError

from celery_safeguards.delivery import qos
from celery_safeguards.delivery.lease import RedisLease
from celery_safeguards.delivery.transport import HardenedSentinelTransport
from tests.integration.delivery.conftest import Broker
from tests.support.sentinel import NAME, watched_servers
from tests.support.waiting import wait_until


class WatchedBroker(Broker):
    """The broker of these tests, found through Sentinel."""

    def __init__(self, watched, prefix, stack):
        super().__init__(watched.url, stack.enter_context(watched.client()), prefix, stack)
        self.watched = watched

    def connect(self, **options):
        options = {"global_keyprefix": self.prefix, "visibility_timeout": 60, "master_name": NAME, **options}
        connection = Connection(self._url, transport=HardenedSentinelTransport, transport_options=options)
        self._stack.callback(self._close, connection)
        return connection.default_channel

    def publish(self, number=1, **options):
        super().publish(number, channel=self.connect(), **options)

    def fail_over(self):
        wait_until(self.watched.is_ready, 20, "the replica is ready")
        self.redis.wait(1, 5_000)
        self.watched.fail_over()
        self.redis = self._stack.enter_context(self.watched.client())

    def _close(self, connection):
        with contextlib.suppress(Exception):
            connection.close()


@pytest.fixture
def broker(namespace):
    with contextlib.ExitStack() as stack:
        yield WatchedBroker(stack.enter_context(watched_servers()), f"{namespace}.", stack)
        qos.name_what_runs(tuple)


def _is_cut(broker, channel):
    try:
        broker.drain(channel, seconds=1)
    except TimeoutError:
        return False
    except channel.connection_errors:
        return True
    return False


def test_messages_are_held_across_a_failover(broker, request):
    channel = broker.connect()
    received = broker.consume(channel)
    for number in range(3):
        broker.publish(number)
        broker.drain(channel)
    running, ended, waiting = received
    qos.name_what_runs(lambda: {running.delivery_tag})
    lease = RedisLease(channel)
    request.addfinalizer(lease.close)
    assert [] == list(lease.renew(lease.held))

    broker.fail_over()
    before = broker.indexed()
    # The old server answers still, and refuses: each connection learns of it once.
    with contextlib.suppress(channel.connection_errors):
        lease.renew(lease.held)
    with contextlib.suppress(channel.connection_errors):
        ended.ack()
    assert [] == list(lease.renew(lease.held))
    lease.sweep()
    assert before != broker.indexed()
    assert {running.delivery_tag, waiting.delivery_tag} == set(broker.unacked())
    wait_until(lambda: _is_cut(broker, channel), 10, "the consumer learns of it")
    channel.connection.client.close()

    assert {running.delivery_tag} == set(broker.unacked())
    assert 1 == len(broker.queued())
    after = broker.connect()
    after.take_over(channel)
    received = broker.consume(after)
    broker.drain(after)
    assert [waiting.payload] == [each.payload for each in received]
    received[0].ack()
    running.ack()
    assert 0 == broker.count()


def _connections(broker):
    return {int(each["id"]) for each in broker.redis.client_list()}


@pytest.mark.parametrize("way", ["renewal", "publish", "acknowledgement"])
def test_connection_to_a_server_that_was_demoted_is_given_up(own_broker, way, request):
    """Behind an address that was moved it would refuse for ever: bodies that run on were renewed no more."""
    broker = own_broker
    channel = broker.connect()
    received = broker.consume(channel)
    broker.publish(1)
    broker.drain(channel)
    lease, publisher = RedisLease(channel), broker.connect()
    request.addfinalizer(lease.close)
    writes = {
        "renewal": lambda: lease.renew([received[0].delivery_tag]),
        "publish": lambda: broker.publish(2, channel=publisher),
        "acknowledgement": received[0].ack,
    }
    lease.sweep()
    broker.publish(3, channel=publisher)

    before = _connections(broker)

    broker.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(ReadOnlyError):
        writes[way]()
    broker.redis.execute_command("REPLICAOF", "NO", "ONE")

    wait_until(lambda: 1 == len(before - _connections(broker)), 5, "the connection is given up")
