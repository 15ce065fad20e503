"""
What could not be said to the server in time is said later, by whoever comes next; nothing waits for the timeout.
"""

import logging
import threading

import pytest
from kombu import Exchange, Queue

from celery_safeguards.delivery import qos
from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.lease import RedisLease
from celery_safeguards.delivery.scripts import TAKE
from celery_safeguards.delivery.transport import HardenedTransport
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

logger = logging.getLogger(__name__)


def receive(broker, count=1, **options):
    """Publish messages and take them; returns the channel and the messages."""
    channel = broker.connect(**options)
    received = broker.consume(channel)
    for number in range(count):
        broker.publish(number)
        broker.drain(channel)
    return channel, received


def ask(broker, channel):
    """Put the question for a message, and read no answer."""
    broker.redis.script_load(TAKE.source)
    channel.connection.cycle.on_poll_start()


def lease_on(channel, request):
    lease = RedisLease(channel)
    request.addfinalizer(lease.close)
    return lease


@pytest.fixture
def unsaid(broker, redis_url):
    """A channel with a message whose acknowledgement did not reach the server, which is back."""
    with Cutter(redis_url) as cutter:
        direct, broker._url = broker._url, cutter.url
        channel = broker.connect()
        broker._url = direct
        received = broker.consume(channel)
        broker.publish(1)
        broker.drain(channel)
        cutter.refuse()
        with pytest.raises(channel.connection_errors):
            received[0].ack()
        cutter.allow()
        assert 1 == broker.count()
        yield channel


def test_acknowledgement_that_failed_on_a_channel_that_lives_is_said_again(broker, unsaid, request):
    """
    A pause of the server, or more acknowledgements at once than the pool has connections (celery/celery#9054).

    The consumer's connection stays, so that no new channel comes to say it: the body would run again.
    """
    lease_on(unsaid, request).sweep()

    assert 0 == broker.count()
    assert () == unsaid.qos.held


def test_acknowledgement_that_failed_is_said_at_the_close(broker, unsaid):
    """A consumer without a worker around it has nobody else to say it."""
    unsaid.close()

    assert 0 == broker.count()


def test_what_two_channels_could_not_say_is_said_by_the_third(own_broker, fresh_redis):
    """The server goes away again while the second one takes over (celery/celery#8030: two restarts within 3 s)."""
    first, (ended, waiting, running) = receive(own_broker, count=3, socket_connect_timeout=1)
    qos.name_what_runs(lambda: {running.delivery_tag})
    fresh_redis.stop()
    with pytest.raises(first.connection_errors):
        ended.ack()
    first.close()
    fresh_redis.start()
    second = own_broker.connect(socket_connect_timeout=1)
    fresh_redis.stop()
    second.take_over(first)
    second.close()
    fresh_redis.start()
    wait_until(own_broker.redis.ping, 5, "the server answers")

    third = own_broker.connect()
    third.take_over(second)

    assert {running.delivery_tag} == set(own_broker.unacked()) == set(third.qos.held)
    assert 1 == len(own_broker.queued())
    assert waiting.delivery_tag not in third.qos.held


def test_closed_channel_holds_what_it_kept_until_its_lease_is_closed(broker):
    """The thread of renewal may look through it once more, and would forget for how long a body may run."""
    channel, (message,) = receive(broker)
    qos.name_what_runs(lambda: {message.delivery_tag})
    channel.connection.client.close()

    after = broker.connect()
    after.take_over(channel)

    assert (message.delivery_tag,) == channel.qos.held == after.qos.held


def test_message_that_ends_twice_frees_one_slot(broker):
    """A message that lapsed is given up once and acknowledged when its body ends."""
    channel, (message,) = receive(broker)
    channel.basic_qos(0, 1, False)
    channel.qos.forget(message.delivery_tag)
    channel.qos._flush()
    received = broker.consume(channel, prefetch=1)
    broker.publish(2)
    broker.drain(channel)

    message.ack()

    assert not channel.qos.can_consume()
    assert 1 == len(received)


def test_message_that_is_just_acknowledged_is_not_taken_for_another_workers(broker, redis_url):
    """The thread of renewal finds it gone from the server, and would say in the log that it was redelivered."""
    with Cutter(redis_url) as cutter:
        direct, broker._url = broker._url, cutter.url
        channel = broker.connect()
        broker._url = direct
        received = broker.consume(channel)
        broker.publish(1)
        broker.drain(channel)
        (message,) = received
        assert message is channel.qos.message_of(message.delivery_tag)
        cutter.stall(requests=False)
        acknowledging = threading.Thread(target=message.ack)

        acknowledging.start()
        wait_until(lambda: not broker.unacked(), 5, "the server has heard of it")
        assert channel.qos.message_of(message.delivery_tag) is None
        cutter.resume()
        acknowledging.join()

        assert channel.qos.message_of(message.delivery_tag) is None


def test_acknowledgement_that_fails_after_another_channel_has_taken_over_is_said_by_that_one(broker, redis_url):
    """A thread waits for the answer while its connection is cut, closed and followed by another."""
    with Cutter(redis_url) as cutter:
        direct, broker._url = broker._url, cutter.url
        channel = broker.connect()
        broker._url = direct
        received = broker.consume(channel)
        broker.publish(1)
        broker.drain(channel)
        (message,) = received
        qos.name_what_runs(lambda: {message.delivery_tag})
        cutter.stall()
        acknowledging = threading.Thread(target=message.ack_log_error, args=(logger, channel.connection_errors))
        acknowledging.start()
        wait_until(lambda: channel.qos.message_of(message.delivery_tag) is None, 5, "it is being acknowledged")

        # As its close does, which would end the thread's connection before this test can go on.
        channel.qos.restore_unacked()
        after = broker.connect()
        after.take_over(channel)
        assert (message.delivery_tag,) == after.qos.held
        cutter.cut()
        acknowledging.join()

    assert 1 == broker.count()
    after.qos.make_up()
    assert 0 == broker.count()
    assert () == after.qos.held


def test_question_whose_connection_is_dropped_is_put_back_before_the_next(broker):
    """kombu's check of a connection that stays silent drops it, and asks anew on another (kombu 5.7)."""
    channel = broker.connect()
    received = broker.consume(channel)
    broker.publish(1)
    ask(broker, channel)
    wait_until(broker.unacked, 5, "the message is taken")
    channel.client.connection.disconnect()

    broker.drain(channel)

    assert [{"number": 1}] == [each.payload for each in received]
    assert 1 == broker.count()


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("ending", ["cancel", "close"])
def test_answer_that_nobody_waits_for_any_more_goes_back(broker, no_ack, ending):
    """celery/celery#1773: the consumer of the queue is cancelled, or the channel closed, while its question is out."""
    channel = broker.connect()
    received = broker.consume(channel, no_ack=no_ack)
    (consumer_tag,) = channel._consumers
    other = Queue("others", Exchange("orders", type="direct"), routing_key="others")
    broker.publish(1)
    ask(broker, channel)
    wait_until(lambda: not broker.queued(), 5, "the message is taken")

    if ending == "close":
        channel.close()
    else:
        channel.basic_cancel(consumer_tag)
        channel.basic_consume("others", no_ack, received.append, "other")
        assert other.name == "others"
        with pytest.raises(TimeoutError):
            broker.drain(channel, seconds=0.3)

    assert [] == received
    assert 1 == len(broker.queued())
    assert {} == broker.unacked()


def test_channel_that_cannot_delete_its_queues_is_closed_and_keeps_what_runs(broker):
    """celery/kombu#1004: after a failover the old server refuses writes; a channel left open kept its messages."""
    channel, (message,) = receive(broker)
    qos.name_what_runs(lambda: {message.delivery_tag})
    subscription = Queue("hearing", Exchange("news", type="fanout"), auto_delete=True)
    subscription(channel).declare()
    broker.redis.set(f"{broker.prefix}_kombu.binding.news.spoilt", "1")
    broker.redis.delete(f"{broker.prefix}_kombu.binding.news")
    # A key of another type is refused by the server as a write to a replica is.
    broker.redis.set(f"{broker.prefix}_kombu.binding.news", "no set")

    channel.close()

    assert channel.closed
    assert "client" not in channel.__dict__ or channel.client.connection is None
    assert {message.delivery_tag} == set(channel.qos.kept)


class Subscriber:
    """One of several who hear the same news, and acknowledge them."""

    def __init__(self, broker, name):
        self.channel = broker.connect()
        self.received = []
        queue = Queue(name, Exchange("news", type="fanout"), auto_delete=True)
        consumer = self.channel.connection.client.Consumer(
            [queue], channel=self.channel, on_message=self.received.append, accept=["json"]
        )
        consumer.consume()
        self.channel.connection.cycle.on_poll_start()
        wait_until(lambda: self.channel._in_listen, 5, "it listens")

    def hear(self, broker):
        wait_until(lambda: broker.drain(self.channel) or self.received, 5, "the news")


def test_news_that_one_has_acknowledged_are_still_the_others_to_do(own_broker, request):
    """A `Broadcast` task that one worker had done was dropped by those who had not begun it: all had one tag."""
    broker = own_broker
    subscribers = [Subscriber(broker, name) for name in ("left", "right")]
    wait_until(lambda: 2 == sum(int(each["psub"]) for each in broker.redis.client_list()), 5, "both are heard")
    publisher = subscribers[0].channel
    publisher.basic_publish(
        publisher.prepare_message('{"number": 1}', None, "application/json", "utf-8"),
        exchange="news",
        routing_key="",
    )
    for each in subscribers:
        each.hear(broker)
    left, right = (each.received[0] for each in subscribers)
    lease = lease_on(subscribers[1].channel, request)

    left.ack()

    assert left.delivery_tag != right.delivery_tag
    assert [] == list(lease.renew([right.delivery_tag]))
    right.ack()
    assert {} == broker.unacked()


@pytest.mark.parametrize("news", ["[1, 2]", "5", '"x"', '{"body": "x"}', '{"properties": null}', '{"properties": []}'])
def test_news_that_are_no_message_end_nobody_who_hears_them(own_broker, news):
    """They end a stock worker, and all that hear them at once."""
    broker = own_broker
    subscriber = Subscriber(broker, "left")
    wait_until(lambda: 1 == sum(int(each["psub"]) for each in broker.redis.client_list()), 5, "it is heard")
    topic = broker.prefix + subscriber.channel._get_publish_topic("news", "")
    assert 1 == broker.redis.publish(topic, news)
    publisher = broker.connect()
    publisher.exchange_declare("news", "fanout")
    publisher.basic_publish(
        publisher.prepare_message('{"number": 1}', None, "application/json", "utf-8"), exchange="news", routing_key=""
    )

    subscriber.hear(broker)

    assert [{"number": 1}] == [each.payload for each in subscriber.received]


@pytest.fixture
def heard(own_broker):
    """A subscriber that has heard a broadcast."""
    subscriber = Subscriber(own_broker, "left")
    wait_until(lambda: 1 == sum(int(each["psub"]) for each in own_broker.redis.client_list()), 5, "it is heard")
    channel = subscriber.channel
    message = channel.prepare_message('{"number": 1}', None, "application/json", "utf-8")
    channel.basic_publish(message, exchange="news", routing_key="")
    subscriber.hear(own_broker)
    return subscriber


@pytest.fixture
def slow_clock(monkeypatch):
    """A process whose clock is years behind the server's."""
    monkeypatch.setattr("kombu.transport.redis.time", lambda: 1_000.0)


def test_news_are_noted_by_the_servers_clock(own_broker, slow_clock, heard):
    """A worker whose clock was behind had its news swept by all others at once, as if nobody had renewed them."""
    assert 0 == own_broker.connect().sweep()

    assert {heard.received[0].delivery_tag} == set(own_broker.unacked())


def test_news_of_a_dead_worker_are_kept_aside_by_who_does_not_hear_them(own_broker, heard):
    """Kombu knows the kind of an exchange where it was declared; else it is direct, with a queue that nobody reads."""
    own_broker.age()

    assert 0 == own_broker.connect().sweep()

    assert 1 == own_broker.redis.llen(f"{own_broker.prefix}unacked_aside")
    assert not own_broker.redis.exists(f"{own_broker.prefix}left")


def test_full_server_still_renews_and_sweeps(own_broker, request):
    """getsentry/self-hosted#3888: it has no room for more, and what runs must not lapse for that."""
    channel, (message,) = receive(own_broker)
    lease = lease_on(channel, request)
    lease.sweep()
    own_broker.age()
    old = own_broker.indexed()
    own_broker.redis.config_set("maxmemory-policy", "noeviction")
    own_broker.redis.config_set("maxmemory", 1)

    assert [] == list(lease.renew([message.delivery_tag]))
    assert old != own_broker.indexed()
    own_broker.redis.config_set("maxmemory", 0)
    own_broker.age()
    own_broker.redis.config_set("maxmemory", 1)
    lease.sweep()

    assert 1 == len(own_broker.queued())


def test_pause_of_the_sweep_ends_although_the_servers_clock_was_set_back(broker):
    """celery/celery#1980: a server that follows another may be hours behind it."""
    channel, _ = receive(broker)
    channel.sweep()
    broker.age()
    broker.redis.hset(f"{broker.prefix}unacked_pulse", "from", 2_000_000_000 * 2)

    assert 1 == channel.sweep()


def test_word_of_a_queue_that_is_used_once_is_gone_soon(broker):
    """Each `inspect` has a queue for its replies, and leaves it."""
    broker.publish(1)

    assert 0 < broker.redis.ttl(f"{broker.prefix}orders\x06\x16wake") <= 5


def test_cut_beneath_many_questions_loses_nothing(redis_url, broker):
    """Each cut comes at another moment of taking: asked, taken, answered, delivered, acknowledged."""
    with Cutter(redis_url) as cutter:
        publisher = broker.connect()
        for number in range(60):
            broker.publish(number, channel=publisher)
        done, before = set(), None
        while len(done) < 60:
            before = _consume_until_cut(broker, cutter, before, done)

    assert set(range(60)) == done
    before.close()
    assert 0 == broker.count()


def _consume_until_cut(broker, cutter, before, done):
    """Take and acknowledge some messages, and lose the answer to a question; returns the closed channel."""
    broker._url, url = cutter.url, broker._url
    channel = broker.connect()
    broker._url = url
    if before is not None:
        channel.take_over(before)
    received = broker.consume(channel, prefetch=3)
    words = (b"EVALSHA", b"HDEL", b"BRPOP")
    try:
        for turn in range(4):
            broker.drain(channel, seconds=1)
            for message in received:
                message.ack()
                done.add(message.payload["number"])
            received.clear()
            if turn == 2:
                cutter.lose_next_answer(words[len(done) % 3])
    except (*channel.connection_errors, TimeoutError):
        done.update(each.payload["number"] for each in received if each.delivery_tag in channel.qos.unsent)
    channel.close()
    return channel


def test_user_of_one_prefix_needs_nothing_beyond_it(own_broker, request):
    """celery/kombu#1569: with an access list, a key without the prefix ends the worker."""
    prefix, plain = own_broker.prefix, own_broker._url
    rights = [f"~{prefix}*", f"&{prefix}*", "+@all", "-@dangerous", "-@admin"]
    own_broker.redis.execute_command("ACL", "SETUSER", "shop", "on", ">secret", *rights)
    own_broker._url = plain.replace("redis://", "redis://shop:secret@")
    channel, (first, second, third, fourth) = receive(own_broker, count=4)
    lease = lease_on(channel, request)

    first.ack()
    second.requeue()
    third.reject()
    assert [] == list(lease.renew([fourth.delivery_tag]))
    lease.sweep()
    own_broker.push_raw("rubbish")
    for _ in range(2):
        own_broker.drain(channel)
    own_broker.age()
    lease.sweep()
    channel.close()

    assert 2 == len(own_broker.queued())
    assert 1 == own_broker.redis.llen(f"{prefix}unacked_aside")
    assert {} == own_broker.unacked()


def test_channel_has_bounds_for_a_server_that_is_silent():
    """celery/celery#8030: without them a connection that was dropped silently is waited on for ever."""
    assert issubclass(HardenedTransport.Channel, HardenedChannel)
    assert HardenedChannel.socket_timeout
    assert HardenedChannel.socket_keepalive
