"""
What the hardened transport and the renewal of messages take for granted of kombu, redis-py and Celery.

Each test is one fact about their own classes. A release that changes one fails here by name, before it fails somewhere
as a message that is lost or runs twice.
"""

import inspect
from types import SimpleNamespace

import pytest
import redis
from celery import Celery
from celery.app.amqp import AMQP
from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import Connection, Queue
from kombu.connection import ConnectionPool
from kombu.transport import redis as stock
from kombu.transport import virtual

from celery_safeguards._handed import running_tags


@pytest.fixture
def channel(redis_url, namespace):
    """A stock channel with a queue."""
    with Connection(redis_url, transport_options={"global_keyprefix": f"{namespace}."}) as connection:
        channel = connection.default_channel
        Queue("facts", channel=channel).declare()
        yield channel


def publish(channel, body="x"):
    channel.basic_publish(channel.prepare_message(body, None, "text/plain", "utf-8"), exchange="", routing_key="facts")


def take(channel, *, no_ack=False):
    publish(channel)
    return channel.basic_get("facts", no_ack=no_ack)


# --- what is held


def test_messages_in_hand_are_in_delivered_and_ended_ones_in_dirty_too(channel):
    """What is renewed, and what a dropped message is taken off."""
    first, second = take(channel), take(channel)

    first.ack()

    assert [first.delivery_tag, second.delivery_tag] == list(channel.qos._delivered)
    assert {first.delivery_tag} == channel.qos._dirty
    channel.qos._flush()
    assert [second.delivery_tag] == list(channel.qos._delivered)


def test_prefetch_limit_counts_delivered_less_dirty(channel):
    """A dirty tag that is not delivered would count as a free slot."""
    channel.basic_qos(0, 1, False)
    take(channel)
    assert not channel.qos.can_consume()

    channel.qos._dirty.add("no such message")

    assert channel.qos.can_consume()


def test_limit_of_none_is_no_limit(channel):
    channel.basic_qos(0, 0, False)
    take(channel)

    assert channel.qos.can_consume()


def test_acknowledgement_goes_to_the_channel_that_the_message_names(channel):
    """So a message that another channel has adopted is acknowledged through that one."""
    message, told = take(channel), []
    message.channel = SimpleNamespace(basic_ack=lambda tag, **_: told.append(tag), no_ack_consumers=None)

    message.ack()

    assert [message.delivery_tag] == told


def test_delivery_tag_is_minted_at_publish_and_kept_by_a_restore(channel):
    """Why the hardened transport mints one at each taking."""
    message = take(channel)
    message.requeue()

    assert message.delivery_tag == channel.basic_get("facts").delivery_tag


def test_payload_has_its_tag_and_where_it_went_in_its_properties(channel):
    payload = take(channel)._raw

    assert {"delivery_tag", "delivery_info", "priority", "body_encoding"} <= set(payload["properties"])
    assert {"exchange": "", "routing_key": "facts"}.items() <= payload["properties"]["delivery_info"].items()


def test_entry_of_unacked_is_the_message_its_exchange_and_its_routing_key(channel, redis_client, namespace):
    take(channel)

    (entry,) = redis_client.hvals(f"{namespace}.unacked")
    assert entry.startswith("[{")
    assert entry.endswith(', "", "facts"]')
    assert 1 == redis_client.zcard(f"{namespace}.unacked_index")


# --- how a channel takes


def test_poller_asks_where_there_is_credit_and_reads_by_the_channels_methods(channel):
    """The hardened channel replaces `_brpop_start` and `_brpop_read`; the poller looks at `_in_poll`."""
    channel.basic_consume("facts", False, lambda message: None, "tag")
    assert not channel._in_poll

    channel.connection.cycle.on_poll_start()

    assert channel.client.connection is channel._in_poll
    assert channel._brpop_read == channel.handlers["BRPOP"]


def test_poller_does_not_ask_without_credit(channel):
    channel.basic_qos(0, 1, False)
    take(channel)
    channel.basic_consume("facts", False, lambda message: None, "tag")

    channel.connection.cycle.on_poll_start()

    assert not channel._in_poll


def test_connection_that_is_dropped_is_no_longer_in_poll(channel):
    """Then the poller asks anew, and the old question is put back."""
    channel.basic_consume("facts", False, lambda message: None, "tag")
    channel.connection.cycle.on_poll_start()

    channel.client.connection.disconnect()

    assert channel._in_poll is None


def test_transport_delivers_by_a_table_of_callbacks_of_its_queues(channel):
    """`basic_consume` fills it, `basic_cancel` empties it; the hardened channel puts its own there."""
    channel.basic_consume("facts", False, lambda message: None, "tag")
    assert {"facts"} == set(channel.connection._callbacks)
    assert ["facts"] == list(channel.active_queues) == channel._active_queues

    channel.basic_cancel("tag")

    assert {} == channel.connection._callbacks


def test_queues_take_turns_and_the_one_served_goes_last(channel):
    channel._queue_cycle.update(["a", "b"])
    assert ["a", "b"] == list(channel._queue_cycle.consume(2))

    channel._queue_cycle.rotate("a")

    assert ["b", "a"] == list(channel._queue_cycle.consume(2))


def test_priority_is_a_step_of_the_queues_name(channel):
    assert [0, 3, 6, 9] == channel.priority_steps
    assert ["facts", f"facts{channel.sep}3"] == [channel._q_for_pri("facts", step) for step in (0, 3)]
    assert 3 == channel._get_message_priority({"properties": {"priority": 3}}, reverse=False)


def test_empty_list_of_queues_of_an_exchange_is_no_default(channel):
    """A message without a binding has no queue, and is set aside; the default exchange is the queue's own name."""
    assert ["facts"] == channel._lookup("", "facts")
    assert not channel._lookup("nowhere", "facts")


def test_exchange_that_is_not_declared_counts_as_direct(channel):
    assert "direct" == channel.typeof("nowhere").type


def test_client_of_a_channel_prefixes_some_commands_and_the_class_below_it_none(channel, redis_client, namespace):
    """Why the transport's scripts are sent beneath it, with full names."""
    client = channel._create_client()

    client.execute_command("SET", "mine", "1")
    redis.Redis.execute_command(client, "SET", f"{namespace}.full", "1")

    assert ["1", "1"] == redis_client.mget(f"{namespace}.mine", f"{namespace}.full")
    assert channel.global_keyprefix == f"{namespace}."


def test_pool_of_a_channel_takes_its_timeouts_by_keyword(channel):
    """The lease's own connection has shorter ones."""
    pool = channel._get_pool()

    assert {"socket_timeout", "socket_connect_timeout", "socket_keepalive", "db"} <= set(pool.connection_kwargs)
    pool.disconnect()


def test_connections_of_a_channel_repeat_nothing_by_themselves(channel):
    """A publish that is sent twice is two messages."""
    connection = channel.pool.make_connection()

    assert 0 == connection.retry._retries


# --- how a channel ends


def test_close_puts_back_first_and_leaves_its_transport_last(channel, monkeypatch):
    """While messages are put back the channel is closed, and its exchanges and its transport are still there."""
    seen = []

    def restore(qos, stderr=None):
        seen.append((qos.channel.closed, qos.channel.connection is not None, qos.channel.exchange_types is not None))

    monkeypatch.setattr(virtual.QoS, "restore_unacked_once", restore)
    take(channel)

    channel.close()

    assert [(True, True, True)] == seen
    assert channel.connection is None


def test_close_reads_an_outstanding_answer_unless_the_channel_says_there_is_none(channel):
    """`end_poll` has read it then."""
    channel.basic_consume("facts", False, lambda message: None, "tag")
    channel.connection.cycle.on_poll_start()
    channel._in_poll = None
    channel._brpop_read = None

    channel.close()

    assert channel.closed


def test_parts_of_a_close_are_methods_of_their_own():
    for name in ("_disconnect_pools", "_close_clients"):
        assert callable(getattr(stock.Channel, name))
    assert "_disconnect_pools" in inspect.getsource(stock.Channel._after_fork)


def test_restore_at_the_end_of_a_process_is_a_finalizer_that_can_be_called_off(channel):
    finalizer = channel.qos._on_collect

    finalizer.cancel()

    assert not finalizer.still_active()
    assert not channel.qos._delivered.restored


# --- which transport


def test_connections_of_an_app_are_made_by_a_class_that_its_amqp_names():
    assert Connection is AMQP.Connection


def test_connection_names_its_transport_by_a_method(redis_url):
    class Chosen(Connection):
        def get_transport_cls(self):
            return stock.SentinelTransport

    with Connection(redis_url) as usual:
        assert stock.Transport is usual.get_transport_cls()
        assert usual.__eqhash__() == Connection(redis_url).__eqhash__()
    with Chosen(redis_url) as chosen:
        assert isinstance(chosen.transport, stock.SentinelTransport)


def test_pool_of_connections_makes_them_by_new(redis_url):
    with Connection(redis_url) as connection:
        pool = connection.Pool(1)
        made = pool.new()

        assert isinstance(pool, ConnectionPool)
        assert stock.Transport is made.get_transport_cls()


def test_channel_names_the_class_of_its_qos_and_its_transport_the_class_of_its_channel():
    assert stock.QoS is stock.Channel.QoS
    assert stock.Channel is stock.Transport.Channel
    assert stock.SentinelChannel is stock.SentinelTransport.Channel
    assert isinstance(stock.Transport(SimpleNamespace(transport_options={})).cycle, stock.MultiChannelPoller)


# --- which bodies run on


def test_only_a_pool_of_processes_forgets_what_it_was_handed():
    """`flush` of all others does nothing; that of a process pool is put on the instance at its start."""
    assert BasePool.flush is ThreadPool.flush
    assert "self.flush = getattr(P, 'flush'" in inspect.getsource(PreforkPool.on_start)


class Held(Request):
    """A request as far as these lists look at it."""

    def __init__(self, tag, *, is_handed=False):
        self.id = tag
        self._message = SimpleNamespace(delivery_tag=tag)
        self._apply_result = object if is_handed else None


@pytest.fixture
def requests():
    """One that runs, one that was handed to the pool, one that waits."""
    running, handed, waiting = Held("running"), Held("handed", is_handed=True), Held("waiting")
    state.active_requests.add(running)
    state.reserved_requests.update((handed, waiting))
    yield running, handed, waiting
    for each in (running, handed, waiting):
        state.active_requests.discard(each)
        state.reserved_requests.discard(each)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (ThreadPool, {"running", "handed"}),
        (PreforkPool, {"running"}),
    ],
    ids=["threads", "prefork"],
)
def test_bodies_that_run_on_are_the_active_ones_and_what_threads_were_handed(requests, pool, expected):
    pool = pool.__new__(pool)
    if isinstance(pool, PreforkPool):
        pool.flush = lambda: None

    # The lists are of the process, and tests before may have left something there.
    assert expected == running_tags(pool) & {each.id for each in requests}


def test_worker_that_stops_says_so():
    assert state.should_stop is None
    assert state.should_terminate is None


def test_connection_is_closed_before_its_bodies_are_cancelled_and_before_the_consumer_forgets_them():
    """While the channel closes, Celery's lists still say what runs."""
    source = inspect.getsource(Consumer.on_connection_error_after_connected)

    assert source.index("connection.collect(") < source.index("worker_cancel_long_running_tasks_on_connection_loss")
    assert "reserved_requests" not in source
    assert "self.pool.flush()" in inspect.getsource(Consumer.on_close)


def test_request_that_celery_cancels_says_so_and_is_left_unacknowledged():
    source = inspect.getsource(Request)

    assert "self._already_cancelled = True" in source
    assert "acknowledge" not in inspect.getsource(Request.cancel) + inspect.getsource(Request._announce_cancelled)


def test_tasks_are_consumed_by_the_default_channel_of_the_consumers_connection(namespace):
    """Whose successor the next one's is."""
    with Celery(namespace, broker="memory://", set_as_current=False) as app, app.connection_for_read() as connection:
        consumer = app.amqp.TaskConsumer(connection)

        assert connection.default_channel is consumer.channel
