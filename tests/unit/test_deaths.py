"""
What is read of a broker's word on a message's deaths, without a broker.
"""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from celery_safeguards.ingest.deaths import Past
from celery_safeguards.outcome import FailureKind

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).replace(tzinfo=None)
NOON_SECONDS = NOON.replace(tzinfo=UTC).timestamp()


def death(queue="orders", reason="rejected", *, exchange="shop", keys=("work",), count=1, time=NOON):
    return {
        "queue": queue,
        "reason": reason,
        "exchange": exchange,
        "routing-keys": list(keys),
        "count": count,
        "time": time,
    }


def past(*deaths, queue="dead", first=None, **info):
    headers = {"x-death": list(deaths)}
    if first is not None:
        headers |= {"x-first-death-queue": first[0], "x-first-death-reason": first[1]}
    return Past.of(SimpleNamespace(headers=headers, delivery_info=info), queue)


@pytest.mark.parametrize(
    "reason, kind, follows",
    [
        ("rejected", FailureKind.DATA, True),
        ("expired", FailureKind.EXPIRED, False),
        ("maxlen", FailureKind.INFRASTRUCTURE, False),
        ("delivery_limit", FailureKind.UNKNOWN_OUTCOME, True),
        ("a reason of a newer RabbitMQ", FailureKind.UNKNOWN_OUTCOME, True),
    ],
)
def test_reason_is_told_as_far_as_it_is_known(reason, kind, follows):
    """A reason that nobody here knows leaves open whether something has happened."""
    (found,) = past(death(reason=reason)).deaths

    assert (kind, follows) == (found.kind, found.may_follow_a_start)


def test_time_without_a_zone_is_utc():
    """AMQP knows no zones: read as local time, a failure would be hours away."""
    (found,) = past(death()).deaths

    assert NOON_SECONDS == found.at_seconds
    assert NOON_SECONDS == found.entry(NOON_SECONDS + 5).at_seconds
    assert NOON_SECONDS - 5 == found.entry(NOON_SECONDS - 5).at_seconds


def test_way_is_that_of_the_first_death():
    """Through a queue that retries by expiry the last way is that queue's own."""
    found = past(
        death("retry", "expired", exchange="retries", keys=("later",), count=3),
        death(count=3, keys=("work", "copy")),
        first=("orders", "rejected"),
    )

    assert ("shop", "work") == (found.first.exchange, found.first.routing_key)
    assert "retry" == found.deaths[0].queue


def test_first_death_that_came_again_is_found_by_its_name():
    """RabbitMQ moves an entry to the front each time it counts it."""
    found = past(
        death(count=3, exchange="shop"), death("retry", "expired", exchange="retries"), first=("orders", "rejected")
    )

    assert "shop" == found.first.exchange


def test_celerys_own_delay_is_no_death():
    """A message that has waited for its countdown has expired again and again, and its way begins in those queues."""
    delays = [death(f"celery_delayed_{level}", "expired", exchange=f"celery_delayed_{level}") for level in (0, 2)]
    found = past(
        death(exchange="celery_delayed_delivery", keys=("0.1.work",)), *delays, first=("celery_delayed_2", "expired")
    )

    assert ["orders"] == [each.queue for each in found.deaths]
    assert "celery_delayed_delivery" == found.first.exchange
    assert Past() == past(*delays)


def test_way_out_of_the_drained_queue_is_no_way_back():
    """A dead-letter queue whose own messages expire into the shop's: replayed by that, a message would go into it."""
    found = past(death("dead", "expired", exchange="", keys=("dead",)), queue="dead")

    assert (None, "expired") == (found.first, found.deaths[0].reason)


def test_each_death_has_its_name():
    """The same at each delivery, another one once it has died anew."""
    names = [past(death(**changes)).name for changes in ({}, {}, {"count": 2}, {"queue": "other"}, {"time": None})]

    assert names[0] == names[1]
    assert 4 == len(set(names))


def sqs(queue="dead", *, received="1", key="orders", **attributes):
    message = {"MessageId": "m-1", "Attributes": {"ApproximateReceiveCount": received, **attributes}}
    info = {"sqs_message": message, "exchange": "", "routing_key": key}
    return Past.of(SimpleNamespace(headers={}, delivery_info=info), queue)


def test_sqs_tells_how_often_it_was_received_before():
    """The receipt that is at hand is none of them."""
    found = sqs(received="4", DeadLetterQueueSourceArn="arn:aws:sqs:eu-west-1:1:prod-orders")

    assert ("prod-orders", "orders", 3) == (found.deaths[0].queue, found.first.routing_key, found.deaths[0].count)
    assert "m-1" == found.name


@pytest.mark.parametrize("key", ["dead", None])
def test_what_was_sent_to_the_dead_letter_queue_of_sqs_itself_has_no_way(key):
    """It was never anywhere else."""
    found = sqs(key=key)

    assert ((), None, "m-1") == (found.deaths, found.first, found.name)
