"""
Messages go back to their queue once, by whoever may put them back, and no late word takes another delivery away.
"""

import logging
from math import inf, nan

import pytest
from kombu import Queue

from celery_safeguards.delivery import qos
from celery_safeguards.delivery.lease import RedisLease
from tests.support.waiting import wait_until


def receive(broker, kind="hardened", **options):
    """Publish one message and take it; returns the channel and the message."""
    channel = broker.connect(kind, **options)
    received = broker.consume(channel)
    broker.publish(1)
    broker.drain(channel)
    return channel, received[0]


def take_again(broker, kind, channel):
    """Let the message of `channel` lapse, and have another connection put it back and take it."""
    broker.age()
    other = broker.connect(kind)
    other.qos.restore_visible(num=None, interval=1)
    received = broker.consume(other)
    broker.drain(other)
    return received[0]


def test_late_acknowledgement_leaves_the_second_delivery_alone(broker):
    channel, first = receive(broker)
    second = take_again(broker, "hardened", channel)

    first.ack()

    assert first.delivery_tag != second.delivery_tag
    assert {second.delivery_tag} == set(broker.unacked()) == set(broker.indexed())


def test_late_acknowledgement_takes_the_second_delivery_away_on_stock(broker):
    """The control: one tag for both, so that a crash of the second worker loses the message."""
    channel, first = receive(broker, "stock")
    take_again(broker, "stock", channel)

    first.ack()

    assert 0 == broker.count()


def test_lapsed_message_is_put_back_by_one_of_two_who_sweep(broker):
    receive(broker)
    broker.age()
    sweepers = [broker.connect(), broker.connect()]

    assert [1, 0] == [each.sweep() for each in sweepers]
    (message,) = broker.queued()
    assert message["headers"]["redelivered"]
    assert message["properties"]["delivery_info"]["redelivered"]


def test_sweep_of_many_leaves_a_worker_time_to_renew(broker, request):
    """After the death of a whole fleet it took minutes, in which nothing that ran here was renewed."""
    channel = broker.connect()
    entry = '[{"body": "", "properties": {}}, "", "orders"]'
    for number in range(150):
        broker.redis.hset(f"{broker.prefix}unacked", f"t{number}", entry)
        broker.redis.zadd(f"{broker.prefix}unacked_index", {f"t{number}": 1})
    lease = RedisLease(channel)
    request.addfinalizer(lease.close)

    assert [100, 50, 0] == [lease.sweep() for _ in range(3)]
    assert 150 == len(broker.queued())


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, 3600), (0, 3600), (-5, 3600), (nan, 3600), (inf, 3600), ("soon", 3600), ("61", 61)]
)
def test_timeout_that_no_message_can_heed_is_not_taken(broker, given, seconds, caplog):
    """By None or 0 a worker renews nothing, or puts back at once what others hold (SG140 tells it)."""
    with caplog.at_level(logging.WARNING, logger="celery_safeguards.delivery.channel"):
        channel = broker.connect(visibility_timeout=given)
    broker.publish()
    broker.consume(channel)
    broker.drain(channel)

    assert (seconds, 0, 1) == (channel.visibility_timeout, channel.sweep(), len(broker.unacked()))
    assert (given != "61") == (f"visibility_timeout={given!r} is ignored" in caplog.text)


def test_message_that_is_renewed_after_it_was_seen_to_lapse_stays(broker):
    channel, message = receive(broker)

    assert not channel.put_back(message.delivery_tag, latest="1.5")
    assert channel.put_back(message.delivery_tag)
    assert not channel.put_back(message.delivery_tag)
    assert 1 == broker.count()


@pytest.mark.parametrize(("taker", "sweeper"), [("stock", "hardened"), ("hardened", "stock")])
def test_each_transport_puts_back_what_the_other_has_taken(broker, taker, sweeper):
    channel, _ = receive(broker, taker)
    broker.age()

    broker.connect(sweeper).qos.restore_visible(num=None, interval=1)

    assert {} == broker.unacked()
    assert ["orders"] == [each["properties"]["delivery_info"]["routing_key"] for each in broker.queued()]
    assert channel is not None


def test_nobody_sweeps_for_one_interval_after_all_stood_still(broker):
    """A pause of the server, or of a whole fleet: the living renew first."""
    receive(broker)
    sweeper = broker.connect()
    assert 0 == sweeper.sweep()
    broker.age()
    pulse = f"{broker.prefix}unacked_pulse"
    broker.redis.hset(pulse, "at", float(broker.redis.hget(pulse, "at")) - 21)

    assert 0 == sweeper.sweep()
    broker.redis.hset(pulse, "from", float(broker.redis.hget(pulse, "from")) - 20)
    assert 1 == sweeper.sweep()


def test_requeued_message_goes_behind_the_others(broker):
    channel = broker.connect()
    received = broker.consume(channel, prefetch=1)
    broker.publish(1)
    broker.publish(2)
    broker.drain(channel)

    received[0].requeue()

    assert [2, 1] == [_number(each) for each in broker.queued()]
    broker.drain(channel)
    assert 2 == received[1].payload["number"]


def _number(message):
    import base64
    import json

    return json.loads(base64.b64decode(message["body"]))["number"]


def test_message_whose_binding_is_gone_is_kept_aside(broker):
    """Stock drops it: no queue, no message (noted by a stock worker under its exchange)."""
    receive(broker, "stock")
    broker.redis.delete(f"{broker.prefix}_kombu.binding.orders")
    broker.age()

    assert 0 == broker.connect().sweep()
    assert 1 == broker.redis.llen(f"{broker.prefix}unacked_aside")


NO_PRIORITY = ["Infinity", "1e999", "NaN", '"high"', "null", "[]"]


@pytest.mark.parametrize("priority", NO_PRIORITY)
@pytest.mark.parametrize("way", ["lapsed", "requeued", "closed"])
def test_message_whose_priority_is_none_goes_back_as_any_other(broker, priority, way):
    """One that cannot go back would stop the sweeps of all workers, and what lapsed behind it would never return."""
    channel = broker.connect()
    received = broker.consume(channel)
    broker.push_raw(
        '{"body": "", "properties": {"delivery_info": {}, "priority": PRIORITY}}'.replace("PRIORITY", priority)
    )
    broker.drain(channel)
    broker.publish(1)
    broker.drain(channel)

    if way == "lapsed":
        broker.age()
        broker.connect().sweep()
    elif way == "requeued":
        for each in received:
            each.requeue()
    else:
        channel.connection.client.close()

    assert 2 == len(received) == len(broker.queued())
    assert {} == broker.unacked()


@pytest.mark.parametrize("place", ['["orders"], "orders"', '{"name": "orders"}, "orders"', '"", ["orders"]', "null, 5"])
def test_message_whose_place_has_no_name_is_kept_aside(broker, place):
    """A stock worker has noted it as it came."""
    receive(broker, "stock")
    (tag,) = broker.unacked()
    broker.redis.hset(f"{broker.prefix}unacked", tag, f'[{{"body": "", "properties": {{}}}}, {place}]')
    broker.age()

    assert 0 == broker.connect().sweep()
    assert {} == broker.unacked()
    assert 1 == broker.redis.llen(f"{broker.prefix}unacked_aside")


@pytest.mark.parametrize("way", ["lapsed", "requeued", "closed"])
def test_message_that_cannot_go_back_is_left_until_it_can(broker, way):
    """A program that uses its queue's name for something else, while the queue is empty, cost the message."""
    channel, message = receive(broker)
    queue = f"{broker.prefix}orders"
    broker.redis.set(queue, "something else")

    if way == "lapsed":
        broker.age()
        assert 0 == broker.connect().sweep()
    elif way == "requeued":
        message.requeue()
    else:
        channel.connection.client.close()

    assert {message.delivery_tag} == set(broker.unacked()) == set(broker.indexed())
    broker.redis.delete(queue)
    broker.age()
    assert 1 == broker.connect().sweep()
    assert 1 == len(broker.queued())


def test_message_that_may_not_go_back_stops_no_other(own_broker):
    """`unacked` is the database's: who sweeps may have no right to the queues of another app."""
    broker, orders = own_broker, own_broker.queue
    broker.queue = Queue("billing", orders.exchange, routing_key="orders")
    _, bill = receive(broker)
    broker.age(1)
    broker.queue = orders
    receive(broker)
    broker.age()
    rights = [f"~{broker.prefix}{name}*" for name in ("orders", "unacked", "_kombu")]
    broker.redis.execute_command("ACL", "SETUSER", "shop", "on", ">secret", *rights, "&*", "+@all")
    broker._url = broker._url.replace("redis://", "redis://shop:secret@")

    assert 1 == broker.connect().sweep()

    assert {bill.delivery_tag} == set(broker.unacked())


def test_closing_puts_back_what_no_body_runs_of(broker):
    channel = broker.connect()
    received = broker.consume(channel)
    for number in range(2):
        broker.publish(number)
        broker.drain(channel)
    running, waiting = received
    qos.name_what_runs(lambda: {running.delivery_tag})

    channel.connection.client.close()

    assert {running.delivery_tag} == set(broker.unacked())
    assert [1] == [_number(each) for each in broker.queued()]
    assert waiting.delivery_tag not in channel.qos.held
    assert (running.delivery_tag,) == channel.qos.held


def test_stock_puts_back_what_a_body_runs_of(broker):
    """The control: celery/celery#7185. The same worker begins a second body at once."""
    channel, _ = receive(broker, "stock")
    qos.name_what_runs(lambda: {"anything"})

    channel.connection.client.close()

    assert {} == broker.unacked()
    assert 1 == len(broker.queued())


@pytest.fixture
def carried(broker):
    """A closed channel, the message that runs on, and the channel that follows."""
    channel, message = receive(broker)
    qos.name_what_runs(lambda: {message.delivery_tag})
    channel.connection.client.close()
    return channel, message, broker.connect()


def test_message_that_ran_on_is_acknowledged_by_the_next_channel(broker, carried):
    before, message, after = carried
    after.take_over(before)
    assert (message.delivery_tag,) == after.qos.held

    message.ack()

    assert 0 == broker.count()
    assert () == after.qos.held
    assert after.qos.can_consume()


def test_message_that_ended_between_two_channels_is_acknowledged_by_the_next(broker, carried):
    before, message, after = carried
    message.ack()
    assert 1 == broker.count()

    after.take_over(before)

    assert 0 == broker.count()


def test_message_rejected_between_two_channels_is_put_back_by_the_next(broker, carried):
    before, message, after = carried
    message.requeue()

    after.take_over(before)

    assert {} == broker.unacked()
    assert 1 == len(broker.queued())


def test_message_carried_over_does_not_count_against_the_prefetch_limit(broker, carried):
    """Else a slot of the pool would stand idle for as long as the body runs."""
    before, _, after = carried
    after.take_over(before)
    received = broker.consume(after, prefetch=1)
    broker.publish(2)

    broker.drain(after)

    assert 1 == len(received)


def test_message_carried_over_is_carried_over_again(broker, carried):
    before, message, after = carried
    after.take_over(before)
    after.connection.client.close()
    third = broker.connect()
    third.take_over(after)

    message.ack()

    assert 0 == broker.count()


def test_channel_closes_while_the_server_is_away_and_the_next_one_mends_it(own_broker, fresh_redis):
    """celery/celery#9054: and nothing that was not begun waits for the visibility timeout."""
    channel = own_broker.connect(socket_connect_timeout=1)
    received = own_broker.consume(channel)
    for number in range(3):
        own_broker.publish(number)
        own_broker.drain(channel)
    running, ended, waiting = received
    qos.name_what_runs(lambda: {running.delivery_tag})
    fresh_redis.stop()
    with pytest.raises(channel.connection_errors):
        ended.ack()
    channel.close()
    assert channel.closed

    fresh_redis.start()
    after = own_broker.connect()
    after.take_over(channel)
    wait_until(own_broker.redis.ping, 5, "the server answers")

    assert {running.delivery_tag} == set(own_broker.unacked())
    assert [2] == [_number(each) for each in own_broker.queued()]
    assert waiting.delivery_tag not in after.qos.held
