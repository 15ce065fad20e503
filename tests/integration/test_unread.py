"""
What the letter of a message that is not read says of an earlier start, and that a redelivery finds the letter.
"""

from types import SimpleNamespace

import pytest
from kombu.message import Message

from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.restoring import aside_entry, read_aside
from celery_safeguards.outcome import FailureKind
from celery_safeguards.worker.aside import Aside
from celery_safeguards.worker.unread import keep_unread

HEADERS = {"task": "bench.of_the_next_release", "id": "t-1", "retries": 0}


class Hardened(HardenedChannel):
    """A channel that no server is behind."""

    def __init__(self):
        pass

    def __del__(self):
        pass


def from_sqs(receipts):
    """How kombu hands over a message that was received so often; each receipt is a tag of its own."""
    answer = {"MessageId": "m", "Attributes": {"ApproximateReceiveCount": str(receipts)}}
    return {"delivery_tag": f"receipt {receipts}", "delivery_info": {"routing_key": "q", "sqs_message": answer}}


def from_hardened_redis(deliveries):
    """How a message comes from the hardened transport, which makes a tag for each delivery."""
    info = {"routing_key": "q", "redelivered": deliveries > 1}
    return {"delivery_tag": f"tag {deliveries}", "delivery_info": info, "channel": Hardened()}


def from_rabbitmq(deliveries):
    """How a message comes from RabbitMQ, whose tags are numbers of the channel."""
    return {"delivery_tag": deliveries, "delivery_info": {"routing_key": "q", "redelivered": deliveries > 1}}


def keep(bench, headers=HEADERS, **given):
    bench.clock.sleep(1)
    message = Message(b"[[1], {}, {}]", headers=headers, content_type="application/json", **given)
    assert keep_unread(bench.app, message, FailureKind.UNKNOWN_TASK, "no such task", KeyError("of_the_next_release"))


@pytest.mark.parametrize("headers", [HEADERS, {"task": "bench.nameless"}], ids=["with an id", "without an id"])
@pytest.mark.parametrize("come", [from_sqs, from_hardened_redis, from_rabbitmq])
def test_worker_killed_between_letter_and_reject_leaves_one_letter_on_every_broker(bench, come, headers):
    """Two letters of one message would be two replays."""
    keep(bench, headers, **come(1))

    keep(bench, headers, **come(2))

    assert 1 == len(bench.all_letters())


@pytest.mark.parametrize("come", [from_sqs, from_hardened_redis, from_rabbitmq])
def test_same_bytes_published_again_without_an_id_have_a_letter_of_their_own(bench, come):
    """Neither of them says which it is; taken for known, the second would be gone."""
    keep(bench, {"task": "bench.nameless"}, **come(1))

    keep(bench, {"task": "bench.nameless"}, **come(1))

    assert 2 == len(bench.all_letters())


@pytest.mark.parametrize(
    ("headers", "come", "is_possible"),
    [
        ({}, from_sqs(1), False),
        ({}, from_sqs(2), True),
        ({}, from_rabbitmq(2), True),
        ({"retries": 1}, from_rabbitmq(1), True),
        ({"sg_began": 1_700_000_000.0}, from_rabbitmq(1), True),
        ({"sg_seen": 7}, from_rabbitmq(1), True),
        ({"retries": "many"}, from_rabbitmq(1), False),
    ],
)
def test_letter_tells_that_another_worker_may_have_begun(bench, headers, come, is_possible):
    """That worker knew the task: a replay of its work is not a first start."""
    keep(bench, {**HEADERS, **headers}, **come)

    assert [is_possible] == [each.effect_possible for each in bench.all_letters()]


def test_bytes_set_aside_once_are_one_letter_however_many_workers_move_them(bench):
    """Each looks once a second, and all that look while the first one writes read the same entry."""
    once, again = (read_aside(aside_entry(b"junk", "q", "no message").encode()) for _ in range(2))

    for aside in (once, once, again, again):
        bench.clock.sleep(1)
        Aside(bench.app).move(SimpleNamespace(give_aside=lambda keep, aside=aside: keep(aside)))

    assert [b"junk", b"junk"] == [each.wire.body for each in bench.all_letters()]
