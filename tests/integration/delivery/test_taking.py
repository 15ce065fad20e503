"""
Messages are taken and noted in one step, in kombu's order, and what is no message harms nobody.
"""

import json

import pytest
from kombu.transport.redis import Channel as StockChannel
from redis.exceptions import OutOfMemoryError

from celery_safeguards.delivery.scripts import TAKE
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

WAKE = "orders\x06\x16wake"


def test_taken_message_is_noted_under_a_tag_of_its_delivery(broker):
    channel = broker.connect()
    received = broker.consume(channel)
    broker.publish(7)

    broker.drain(channel)

    (message,) = received
    assert {"number": 7} == message.payload
    assert {message.delivery_tag} == set(broker.unacked()) == set(broker.indexed())
    message.ack()
    assert {} == broker.unacked() == broker.indexed()


def take_and_vanish(broker, kind):
    """Ask for a message, and be cut off when the server has handed it out."""
    channel = broker.connect(kind)
    broker.consume(channel)
    cycle = channel.connection.cycle
    cycle.on_poll_start()
    if kind == "hardened":
        # Asked once in vain, it waits for a word; then it asks again.
        broker.publish(1)
        for _ in range(2):
            wait_until(lambda: channel.client.connection.can_read(timeout=1), 5, "an answer")
            with pytest.raises(Exception, match=r"^$"):
                channel._brpop_read()
    else:
        broker.publish(1)
    wait_until(lambda: not broker.queued(), 5, "the message is taken")
    channel.client.connection._sock.close()
    return channel


def test_message_of_a_worker_that_is_cut_off_while_taking_is_lost_on_stock(broker):
    """The control (measured by SIGKILL, too): popped, and not noted yet."""
    take_and_vanish(broker, "stock")

    assert 0 == broker.count()


def test_message_of_a_worker_that_is_cut_off_while_taking_is_kept(broker):
    channel = take_and_vanish(broker, "hardened")

    assert 1 == len(broker.unacked())
    channel.connection.client.close()
    assert [{"number": 1}] == [json.loads(_body(each)) for each in broker.queued()]


def _body(message):
    import base64

    return base64.b64decode(message["body"])


@pytest.mark.parametrize("kind", ["stock", "hardened"])
def test_messages_come_by_priority_whoever_has_published_them(broker, kind):
    """celery/celery#5654: 0 is the highest, steps are lists of their own."""
    for number, priority in enumerate((9, 3, 0, 6)):
        broker.publish(number, kind=kind, priority=priority)
    channel = broker.connect()
    received = broker.consume(channel)

    for _ in range(4):
        broker.drain(channel)

    assert [2, 1, 3, 0] == [each.payload["number"] for each in received]


def test_stock_worker_reads_what_the_hardened_publishes(broker):
    channel = broker.connect("stock")
    received = broker.consume(channel)
    broker.publish(5)

    broker.drain(channel)

    assert [5] == [each.payload["number"] for each in received]


def test_prefetch_limit_holds(broker):
    for number in range(3):
        broker.publish(number)
    channel = broker.connect()
    received = broker.consume(channel, prefetch=2)

    for _ in range(2):
        broker.drain(channel)
    with pytest.raises(TimeoutError):
        broker.drain(channel, seconds=1.5)
    assert 2 == len(received)

    received[0].ack()
    broker.drain(channel)
    assert 3 == len(received)


def test_word_wakes_a_waiting_worker_and_none_is_left(broker):
    channel = broker.connect(polling_interval=30)
    received = broker.consume(channel)
    with pytest.raises(TimeoutError):
        broker.drain(channel, seconds=0.3)
    publisher = broker.connect()

    # The wait on the server is 30 s: only a word can end it in time.
    broker.publish(1, channel=publisher)
    broker.drain(channel, seconds=5)
    with pytest.raises(TimeoutError):
        broker.drain(channel, seconds=0.3)

    assert 1 == len(received)
    assert not broker.redis.exists(broker.prefix + WAKE)


def test_words_do_not_pile_up_without_workers(broker):
    publisher = broker.connect()
    for number in range(100):
        broker.publish(number, channel=publisher)

    assert 64 == broker.redis.llen(broker.prefix + WAKE)


def test_queue_that_expires_leaves_no_word(broker):
    """Replies to `inspect` go to queues of a few seconds."""
    from kombu import Queue

    broker.queue = Queue("orders", broker.queue.exchange, routing_key="orders", expires=5.0)
    broker.publish(1)

    if hasattr(StockChannel, "_maybe_update_queues_expire"):
        # Since kombu 5.6.
        assert 0 < broker.redis.pttl(broker.prefix + "orders") <= 5_000
    assert 0 < broker.redis.pttl(broker.prefix + WAKE) <= 5_000


def test_consumer_that_acknowledges_nothing_leaves_nothing(broker):
    channel = broker.connect()
    received = broker.consume(channel, no_ack=True)
    broker.publish(1)

    broker.drain(channel)

    assert 1 == len(received)
    assert {} == broker.unacked() == broker.indexed()


@pytest.mark.parametrize("no_ack", [False, True])
def test_one_message_is_taken_by_hand(broker, no_ack):
    channel = broker.connect()
    broker.publish(3)

    message = broker.queue(channel).get(no_ack=no_ack)

    assert {"number": 3} == message.payload
    assert (set() if no_ack else {message.delivery_tag}) == set(broker.unacked())
    assert broker.queue(channel).get() is None


def test_message_whose_answer_was_lost_is_taken_by_the_second_try(broker, redis_url):
    """`retry_on_timeout` asks again under this tag: the next message took the place of the first, which was gone."""
    for number in range(2):
        broker.publish(number)
    with Cutter(redis_url) as cutter:
        direct, broker._url = broker._url, cutter.url
        channel = broker.connect(retry_on_timeout=True)
        broker._url = direct
        broker.redis.script_load(TAKE.source)
        cutter.lose_next_answer(b"EVALSHA")
        message = broker.queue(channel).get()

    assert {"number": 0} == message.payload
    assert 2 == broker.count()


def test_publishes_of_one_batch_come_and_wake(broker):
    channel = broker.connect()
    if not getattr(channel, "supports_batch_publish", False):
        pytest.skip("this kombu has no batches")
    batch = channel.create_publish_batch(10)
    for number in range(3):
        message = channel.prepare_message(json.dumps({"number": number}), None, "application/json", "utf-8")
        batch.publish(message, exchange="", routing_key="orders")
    batch.flush()
    batch.close()

    assert 3 == len(broker.queued())
    assert 3 == broker.redis.llen(broker.prefix + WAKE)


def test_server_that_knows_no_script_is_told(broker):
    """A restart and a failover forget them; a stranger's SCRIPT FLUSH, too."""
    channel = broker.connect()
    received = broker.consume(channel)
    broker.publish(1)
    broker.drain(channel)

    broker.redis.script_flush()
    broker.publish(2)
    broker.drain(channel)

    assert [1, 2] == [each.payload["number"] for each in received]


class Token:
    """What a provider of streaming credentials gives for the user of these tests, or what the server refuses."""

    def __init__(self, user):
        self.user = user

    def try_get(self, _name):
        return self.user

    def get_value(self):
        return "renewed"


@pytest.mark.skipif(not hasattr(StockChannel, "_flush_brpop_reauth"), reason="this kombu has no streaming credentials")
@pytest.mark.parametrize("user", ["default", "nobody"])
@pytest.mark.parametrize("kind", ["stock", "hardened"])
def test_worker_without_work_gives_the_credentials_that_were_renewed(broker, kind, user):
    """Else the server ends its connection when the old ones expire; a connection that is refused is made anew."""
    channel = broker.connect(kind)
    received = broker.consume(channel)
    with pytest.raises(TimeoutError):
        broker.drain(channel, seconds=0.1)
    connection = channel.client.connection
    connection.set_re_auth_token(Token(user))

    with pytest.raises(TimeoutError):
        broker.drain(channel, seconds=2)

    assert connection._re_auth_token is None
    broker.publish(1)
    broker.drain(channel)
    assert 1 == len(received)


def test_full_server_refuses_messages_and_still_gives_them_out(own_broker):
    """getsentry/self-hosted#3888: else a full broker could never be emptied."""
    for number in range(20):
        own_broker.publish(number, headers={"padding": "x" * 10_000})
    channel = own_broker.connect()
    received = own_broker.consume(channel, prefetch=100)
    publisher = own_broker.connect()
    own_broker.redis.config_set("maxmemory-policy", "noeviction")
    own_broker.redis.config_set("maxmemory", own_broker.redis.info("memory")["used_memory"] - 10_000)

    with pytest.raises(OutOfMemoryError):
        publisher.basic_publish(
            publisher.prepare_message("x" * 10_000, None, "text/plain", "utf-8"), exchange="", routing_key="orders"
        )
    for _ in range(20):
        own_broker.drain(channel)

    assert 20 == len(received) == len(own_broker.unacked())


GOOD_TAIL = '"properties": {"delivery_tag": "x", "delivery_info": {"exchange": "", "routing_key": "orders"}'
MALFORMED = {
    "not JSON": "rubbish",
    "binary": b"\xff\xfe\x00",
    "empty": "",
    "no object": "[1, 2]",
    "no properties": '{"body": "x"}',
    "properties null": '{"body": "x", "properties": null}',
    "bad base64": '{"body": "x", ' + GOOD_TAIL + ', "body_encoding": "base64"}}',
    "unknown encoding": '{"body": "x", ' + GOOD_TAIL + ', "body_encoding": "rot13"}}',
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_message_is_set_aside_and_the_next_one_comes(broker, name):
    """celery/celery#4308, celery/kombu#2421: it ended every worker that took it, one after the other."""
    broker.push_raw(MALFORMED[name])
    broker.publish(2)
    channel = broker.connect()
    received = broker.consume(channel)

    wait_until(lambda: _turn(broker, channel) and received, 10, "the good message")

    assert [2] == [each.payload["number"] for each in received]
    assert 1 == len(broker.unacked())
    (entry,) = broker.redis.lrange(f"{broker.prefix}unacked_aside", 0, -1)
    noted = json.loads(entry)
    assert "orders" == noted["queue"]
    assert noted["reason"]


def _turn(broker, channel):
    try:
        broker.drain(channel, seconds=1)
    except TimeoutError:
        return True
    return True


def test_what_is_no_message_ends_a_stock_consumer(broker):
    """The control."""
    broker.push_raw("rubbish")
    channel = broker.connect("stock")
    broker.consume(channel)

    with pytest.raises(ValueError, match="Expecting value"):
        broker.drain(channel)
    assert 0 == broker.count()
