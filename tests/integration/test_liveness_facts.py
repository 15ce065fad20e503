"""What the proof of a worker's life takes for granted of Celery and kombu; each test is one fact."""

import queue
from inspect import getsource
from types import SimpleNamespace

import pytest
from celery.worker.consumer import Consumer
from celery.worker.loops import synloop
from kombu import Connection
from kombu.asynchronous import Hub
from kombu.transport import redis

from celery_safeguards._compat import note_polls, polls_for_messages
from tests.support.waiting import wait_until


def test_a_hub_calls_a_timer_in_its_loop():
    """It tells that the loop turns, and wakes one that waits (kombu `asynchronous/hub.py`)."""
    hub, called = Hub(), []
    try:
        timer = hub.call_repeatedly(0.01, lambda: called.append(1))
        wait_until(lambda: hub.fire_timers(min_delay=0.01) and called, 5, "the timer is due")
        timer.cancel()
    finally:
        hub.close()


def test_without_a_hub_a_call_may_be_put_into_a_consumers_loop_from_any_thread():
    """It is made between two waits (celery `worker/consumer/consumer.py`, `call_soon`; `worker/loops.py`)."""
    consumer = SimpleNamespace(hub=None, _pending_operations=[])

    Consumer.call_soon(consumer, print)

    assert 1 == len(consumer._pending_operations)
    assert "perform_pending_operations()" in getsource(synloop)


@pytest.mark.parametrize(("kind", "noted"), [("BRPOP", 1), ("LISTEN", 0)])
def test_the_redis_poller_reads_by_one_method_and_says_empty_by_an_exception(kind, noted):
    """An answer to the poll is noted there, in a worker with a hub and in one without (kombu `transport/redis.py`)."""
    for reader in (redis.Transport.on_readable, redis.MultiChannelPoller.handle_event):
        assert "on_readable(fileno)" in getsource(reader)
    assert "raise Empty" in getsource(redis.Channel._brpop_read)
    connection = Connection("redis://nowhere:1/0")
    poller, notes = connection.transport.cycle, []

    def has_nothing():
        raise queue.Empty

    channel = SimpleNamespace(qos=SimpleNamespace(can_consume=lambda: True), handlers={kind: has_nothing})
    poller._fd_to_chan[7] = (channel, kind)
    assert note_polls(connection, lambda: notes.append(1))

    with pytest.raises(queue.Empty):
        connection.transport.on_readable(7)
    poller._fd_to_chan.clear()

    assert noted == len(notes)


def test_an_idle_redis_answers_its_poll_every_second():
    """A worker is deaf when it is older than a probe allows (kombu `transport/redis.py`)."""
    # Kombu before 5.6 has it as a default argument.
    stated = getattr(redis.Transport, "brpop_timeout", None) or redis.Channel._brpop_start.__defaults__[0]

    assert 1 == stated


def test_other_transports_have_no_poller_that_tells():
    """There loop and broker must do."""
    assert not note_polls(Connection("memory://"), print)
    assert not note_polls(Connection("pyamqp://nowhere"), print)


def test_a_worker_whose_prefetch_is_used_up_does_not_poll():
    """So its silence is none (kombu `transport/virtual/base.py`, `QoS.can_consume`)."""
    with Connection("memory://") as connection:
        channel = connection.default_channel
        channel.basic_qos(0, 1, False)
        consumer = SimpleNamespace(task_consumer=SimpleNamespace(channel=channel))
        assert polls_for_messages(consumer)

        channel.qos.append(SimpleNamespace(delivery_info={}), "tag")

        assert not polls_for_messages(consumer)
        channel.qos.ack("tag")
        assert polls_for_messages(consumer)
    assert polls_for_messages(SimpleNamespace(task_consumer=None)), "while it connects, one is due"


@pytest.mark.parametrize(("active", "polls"), [({"work"}, True), (set(), False)])
def test_a_worker_that_consumes_no_queue_does_not_poll(active, polls):
    """Drained by a command, or fed by broadcasts alone (kombu `transport/redis.py`, `Channel.active_queues`)."""
    channel = SimpleNamespace(qos=SimpleNamespace(can_consume=lambda: True), active_queues=active)

    assert polls == polls_for_messages(SimpleNamespace(task_consumer=SimpleNamespace(channel=channel)))
    assert isinstance(redis.Channel.active_queues, property)


def test_opening_a_channel_of_redis_asks_the_server():
    """It is the round trip without a message (kombu `transport/redis.py`, `Channel.__init__`)."""
    assert ".ping()" in getsource(redis.Channel.__init__)
