"""
What a replay sends: the message that died, byte for byte, on the way that it came.
"""

import json

import pytest
from kombu import Producer

from celery_safeguards.replay import ReplayRefused, replay
from celery_safeguards.replay.plan import replay_message
from celery_safeguards.replay.publishing import publish, publish_together
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import VALUES, copied, die, make_app, queued, run, stored, take

pytestmark = pytest.mark.redis


def test_values_of_every_type_are_equal_after_a_replay(shop):
    """A replay from a stored repr runs with "True" and "..." (celery/django-celery-results#113)."""
    letter = die(shop, shop.note, **VALUES)

    replay(shop.app, letter.id, "ann")
    run(shop.app)

    assert shop.ran == [("note", VALUES)]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_replayed_body_is_byte_for_byte_the_one_that_died(shop, serializer):
    """Bytes that were decoded and written anew are another message."""
    shop.app.conf.accept_content = ["json", "pickle"]
    shop.note.apply_async(kwargs=VALUES, serializer=serializer, compression="zlib")
    died = take(shop.app)
    shop.error = ValueError()
    run(shop.app, died)

    (letter,) = Wiring.of(shop.app).letters.list().letters
    replay(shop.app, letter.id, "ann")
    replayed = take(shop.app)

    assert replayed.body == died.body
    assert (replayed.content_type, replayed.content_encoding) == (died.content_type, died.content_encoding)


def test_priority_and_time_limits_are_kept(shop, namespace):
    """A replay that loses its priority waits behind all it was urgent against (celery/celery#5654)."""
    options = {"time_limit": 300, "soft_time_limit": 270, "priority": 3}
    letter = die(shop, shop.note, options=options, a=1)

    replay(shop.app, letter.id, "ann")

    assert queued(shop.app, f"{namespace}\x06\x163") == 1
    message = take(shop.app)
    assert message.headers["timelimit"] == [300, 270]
    assert message.properties["priority"] == 3


def test_message_returns_to_the_queue_it_came_from(shop, namespace):
    """In another queue no worker may have the task."""
    letter = copied(shop, delivery_info={"exchange": "", "routing_key": f"{namespace}-slow"})

    replay(shop.app, letter.id, "ann")

    assert (queued(shop.app, f"{namespace}-slow"), queued(shop.app)) == (1, 0)


def test_way_that_ends_nowhere_is_refused(shop):
    """A broker drops what no queue takes, and the letter would say that it was replayed."""
    letter = copied(shop, delivery_info={"exchange": "media", "routing_key": "video"})

    with pytest.raises(ReplayRefused, match="task_queues"):
        replay(shop.app, letter.id, "ann")
    assert stored(shop, letter) == letter


def test_letter_of_delayed_delivery_returns_to_its_queue(shop):
    """On RabbitMQ's quorum queues every retry comes by way of the delay exchange."""
    delayed = "0." * 25 + "1.0.1." + shop.app.amqp.default_queue.routing_key
    letter = copied(shop, delivery_info={"exchange": "celery_delayed_delivery", "routing_key": delayed})

    replay(shop.app, letter.id, "ann")

    assert queued(shop.app) == 1


def test_letter_of_eager_work_goes_the_way_of_its_task(shop):
    """Eager work has no route of its own, and its letters are real."""
    bare = {"task": "shop.note", "id": "t", "root_id": "t"}
    letter = copied(shop, delivery_info={}, headers=bare, properties={})

    replay(shop.app, letter.id, "ann")

    assert run(shop.app) == {"a": 1}


def test_letter_of_an_unknown_task_is_replayed(shop, redis_url, namespace):
    """Whoever replays need not have the code: a desk, or an app before its deploy."""
    letter = die(shop, shop.note, a=1)

    with make_app(redis_url, redis_url, namespace) as desk:
        replay(desk, letter.id, "ann")

    assert run(shop.app) == {"a": 1}


@pytest.mark.skipif(not hasattr(Producer, "batch"), reason="messages go together with kombu 5.7")
def test_messages_that_go_together_are_what_they_are_alone(shop, namespace):
    """In order, with their properties, and each to the queue that it came from."""
    way = {"exchange": "", "routing_key": f"{namespace}-slow"}
    letters = [die(shop, shop.note, **VALUES), die(shop, shop.note, options={"priority": 3, "headers": {"tenant": 7}})]
    letters.append(copied(shop, delivery_info=way))
    outgoing = [replay_message(letter, f"id-{letter.id}", at_seconds=0.0) for letter in letters]

    for number, message in enumerate(outgoing):
        publish(shop.app, letters[number].id, message)
    alone = waiting(shop, namespace)
    assert publish_together(shop.app, outgoing)

    assert waiting(shop, namespace) == alone
    assert [1, 1, 1] == [len(messages) for messages in alone]


def test_large_messages_do_not_go_together(shop):
    """Thousands of megabytes would be in memory at once, more than once."""
    letter = die(shop, shop.note, text="a" * 1_500_000)
    message = replay_message(letter, "id-1", at_seconds=0.0)

    assert not publish_together(shop.app, [message, message])
    assert queued(shop.app) == 0


def waiting(shop, namespace):
    """Take the messages of three queues, without what each publish makes anew."""
    found = []
    with shop.app.connection_for_read() as connection:
        client = connection.default_channel.client
        for name in (namespace, f"{namespace}\x06\x163", f"{namespace}-slow"):
            messages = [json.loads(text) for text in iter(lambda name=name: client.rpop(name), None)]
            for message in messages:
                del message["properties"]["delivery_tag"]
            found.append(messages)
    return found
