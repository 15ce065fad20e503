"""
A message that has to wait is parked in one step, once, and comes back when it is due.
"""

import json

import pytest
from kombu import Consumer, Exchange, Producer, Queue
from redis.exceptions import ResponseError

from celery_safeguards.delivery.parking import Kept, Line, call_next, park, return_due
from tests.support.waiting import wait_until


@pytest.fixture
def taken(broker):
    """A message that is taken, and the channel that has it."""
    channel = broker.connect()
    received = broker.consume(channel)
    broker.publish(1, headers={"id": "t1", "eta": "2026-01-01T00:00:00+00:00", "kept": "ä\u2028\x00"}, priority=3)
    broker.drain(channel)
    return channel, received[0]


def parked(broker):
    return dict(broker.redis.zrange(f"{broker.prefix}unacked_parked", 0, -1, withscores=True))


def test_parked_message_is_nobodys_and_comes_back_when_it_is_due(broker, taken):
    channel, message = taken

    assert park(broker.connect(), message.delivery_tag, {"sg_deferrals": 1}, 0.3)

    assert {} == broker.unacked() == broker.indexed()
    assert [] == broker.queued()
    assert [message.delivery_tag] == list(parked(broker))
    assert Kept(0, 1, 0) == return_due(channel)
    wait_until(lambda: return_due(channel).returned, 5, "it is due")
    (back,) = broker.queued()
    assert {"id": "t1", "eta": None, "kept": "ä\u2028\x00", "sg_deferrals": 1} == back["headers"]
    assert message._raw["body"] == back["body"]
    assert 3 == back["properties"]["priority"]
    assert {} == parked(broker)
    assert not broker.redis.exists(f"{broker.prefix}unacked_parked_messages")


def test_message_that_is_parked_twice_comes_back_once(broker, taken):
    """The answer to the first time may be lost."""
    channel, message = taken

    assert park(channel, message.delivery_tag, {}, 0)
    assert park(channel, message.delivery_tag, {}, 60)
    message.ack()

    assert Kept(1, 0, 0) == return_due(channel)
    assert Kept(0, 0, 0) == return_due(channel)
    assert 1 == len(broker.queued())


@pytest.mark.parametrize("way", ["due", "called"])
def test_parked_message_that_cannot_go_back_stays_parked(broker, taken, way):
    """A program that uses its queue's name for something else, or a sweeper without rights to it, cost the message."""
    channel, message = taken
    park(channel, message.delivery_tag, {}, 0, Line("lock:a", 1.0))
    queue = f"{broker.prefix}orders\x06\x163"
    broker.redis.set(queue, "something else")

    if way == "due":
        assert Kept(0, 1, 0) == return_due(channel)
    else:
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            call_next(channel, "lock:a")

    broker.redis.delete(queue)
    assert [message.delivery_tag] == list(parked(broker))
    assert call_next(channel, "lock:a")
    assert 1 == len(broker.queued())
    assert {} == parked(broker)


def test_who_may_not_give_a_parked_message_back_leaves_it_to_others(own_broker):
    """What is parked is the database's: who sweeps may have no right to the queues of another app."""
    broker = own_broker
    channel = broker.connect()
    received = broker.consume(channel)
    broker.publish(1)
    broker.drain(channel)
    park(channel, received[0].delivery_tag, {}, 0)
    rights = ["~*unacked*", "&*", "+@all"]
    broker.redis.execute_command("ACL", "SETUSER", "shop", "on", ">secret", *rights)
    broker._url = broker._url.replace("redis://", "redis://shop:secret@")

    assert Kept(0, 1, 0) == return_due(broker.connect())

    broker.redis.zadd(f"{broker.prefix}unacked_parked", {received[0].delivery_tag: 0})
    assert Kept(1, 0, 0) == return_due(channel)
    assert 1 == len(broker.queued())


def test_message_without_headers_is_parked(broker):
    """Of a program that speaks Celery's first protocol."""
    channel = broker.connect()
    received = broker.consume(channel)
    broker.push_raw('{"body": "e30=", "headers": null, "properties": {"delivery_info": {}, "delivery_tag": "1"}}')
    broker.drain(channel)

    assert park(channel, received[0].delivery_tag, {"sg_deferrals": 1}, 0)

    assert Kept(1, 0, 0) == return_due(channel)
    assert {"sg_deferrals": 1, "eta": None} == broker.queued()[0]["headers"]


def test_message_that_another_worker_has_is_not_parked(broker, taken):
    channel, message = taken
    broker.age()
    assert 1 == channel.sweep()

    assert not park(channel, message.delivery_tag, {}, 0)

    assert {} == parked(broker)
    assert 1 == len(broker.queued())


def test_who_has_stood_in_line_for_longest_is_called_first(broker):
    channel = broker.connect()
    received = broker.consume(channel)
    for number in range(3):
        broker.publish(number)
        broker.drain(channel)
    for message, since in zip(received, (30.0, 10.0, 20.0), strict=True):
        assert park(channel, message.delivery_tag, {}, 600, Line("lock:a", since))

    assert not call_next(channel, "lock:b")
    assert [True, True, True, False] == [call_next(channel, "lock:a") for _ in range(4)]

    assert [1, 2, 0] == [_body(each)["number"] for each in reversed(broker.queued())]
    assert {} == parked(broker)
    assert [] == list(broker.redis.scan_iter(f"{broker.prefix}unacked*"))


def test_who_comes_back_when_due_leaves_the_line(broker, taken):
    channel, message = taken
    park(channel, message.delivery_tag, {}, 0, Line("lock:a", 1.0))

    assert Kept(1, 0, 0) == return_due(channel)

    assert not call_next(channel, "lock:a")
    assert [] == list(broker.redis.scan_iter(f"{broker.prefix}unacked*"))


def test_only_the_first_of_a_line_comes_back_by_itself_and_then_the_next(broker):
    """All at once would be in the way of every other message of the queue, and would find the lock busy again."""
    channel = broker.connect()
    received = broker.consume(channel)
    for number in range(3):
        broker.publish(number)
        broker.drain(channel)
    for message, since in zip(received, (30.0, 10.0, 20.0), strict=True):
        assert park(channel, message.delivery_tag, {}, 0, Line("lock:a", since))

    # The first that was parked was the first of the line by then.
    assert Kept(2, 1, 0) == return_due(channel)
    assert Kept(1, 0, 0) == return_due(channel)


def test_who_becomes_the_first_of_a_line_waits_its_own_time_from_then_on(broker):
    """Whoever was called before it may have died, or be withdrawn: then nobody calls it."""
    channel = broker.connect()
    received = broker.consume(channel)
    for number in range(3):
        broker.publish(number)
        broker.drain(channel)
    for number, message in enumerate(received):
        assert park(channel, message.delivery_tag, {}, 0.3, Line("lock:a", float(number)))

    assert call_next(channel, "lock:a")
    assert Kept(0, 2, 0) == return_due(channel)
    for left in (1, 0):
        wait_until(lambda left=left: return_due(channel).parked == left, 5, "the next one comes back")

    assert [0, 1, 2] == sorted(_body(each)["number"] for each in broker.queued())


def test_broadcast_is_not_parked(own_broker):
    """Its copy belongs to no queue: given back, it would lie in a list that nobody reads."""
    broker = own_broker
    channel = broker.connect()
    queue = Queue("orders.mine", Exchange("all", type="fanout"), auto_delete=True)
    received = []
    with Consumer(channel, [queue], on_message=received.append, accept=["json"]):
        channel.connection.cycle.on_poll_start()
        wait_until(lambda: channel._in_listen, 5, "it listens")
        wait_until(lambda: any(int(each["psub"]) for each in broker.redis.client_list()), 5, "it is heard")
        Producer(channel).publish({"number": 1}, exchange=queue.exchange)
        wait_until(lambda: _turn(broker, channel) and received, 10, "it has come")

        assert not park(channel, received[0].delivery_tag, {}, 0)

        assert {} == parked(broker)
        assert [received[0].delivery_tag] == list(broker.unacked())
        received[0].ack()


def test_many_that_are_due_come_back_at_once_and_wake_those_who_wait(broker):
    channel = broker.connect()
    received = broker.consume(channel, prefetch=300)
    publisher = broker.connect()
    for number in range(250):
        broker.publish(number, channel=publisher)
    wait_until(lambda: _turn(broker, channel) and len(received) == 250, 20, "all are taken")
    for message in received:
        park(channel, message.delivery_tag, {}, 0)
        message.ack()

    assert Kept(250, 0, 0) == return_due(channel)

    assert 250 == len(broker.queued())
    assert 64 == broker.redis.llen(f"{broker.prefix}orders\x06\x16wake")
    assert sorted(range(250)) == sorted(each["number"] for each in map(_body, broker.queued()))


def _turn(broker, channel):
    try:
        broker.drain(channel, seconds=1)
    except TimeoutError:
        return True
    return True


def _body(message):
    import base64

    return json.loads(base64.b64decode(message["body"]))
