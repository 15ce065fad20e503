"""
What RabbitMQ has given up becomes letters that a replay sends the way they first came.
"""

import time

import pytest
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from celery_safeguards.deadletter.arguments import arguments_of
from tests.integration.ingest.conftest import LIMIT
from tests.integration.replay.shop import run

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


def test_rejected_message_is_a_letter_as_it_was_sent(shop, broker, ingest, letters, namespace):
    """Drained into files, its route, its key and its history were lost."""
    sent = shop.charge.apply_async(kwargs={"order_id": 7})
    rejected = broker.reject()
    broker.waiting(1)

    assert {"ingested": 1} == ingest()

    (letter,) = letters()
    assert ("data", sent.id, "shop.charge", "open") == (letter.kind, letter.task_id, letter.task, letter.state)
    assert letter.effect_possible
    # Who drains the queue is not who has failed.
    assert "" == letter.release
    assert ("order:7", "shop.charge") == (letter.key, letter.scope)
    assert rejected.body.encode() == letter.wire.body
    assert {"order_id": 7} == arguments_of(letter.wire).plain["kwargs"]
    assert {"exchange": namespace, "routing_key": "work"} == letter.wire.delivery_info
    assert [namespace] == [death["queue"] for death in letter.wire.headers["x-death"]]
    assert f"given up by queue {namespace}: a consumer rejected it" == letter.reason
    died, ingested = letter.history
    assert ("dead-lettered: rejected", "ingested") == (died.what, ingested.what)
    assert f"exchange '{namespace}', routing key 'work'" in died.detail
    assert abs(time.time() - died.at_seconds) < 60
    assert died.at_seconds == letter.last_failed_seconds
    broker.waiting(0)


def test_expired_message_can_be_replayed_without_a_word(shop, broker, ingest, letters, cli):
    """It was never started: nobody has to say that it may run twice."""
    shop.mail.apply_async(kwargs={"order_id": 7}, expires=0.05)
    broker.waiting(1)

    ingest()

    (letter,) = letters()
    assert ("expired", False) == (letter.kind, letter.effect_possible)
    assert 0 == cli("dead", "replay", letter.id, "--by", "ann").exit_code
    run(shop.app, broker.take())
    assert [("mail", {"order_id": 7})] == shop.ran


@pytest.mark.parametrize("queue_type", ["quorum"], indirect=True)
def test_delivery_limit_leaves_the_outcome_unknown(shop, broker, ingest, letters, cli):
    """Delivered again and again and never acknowledged: it may well have had its effect."""
    shop.mail.apply_async(kwargs={"order_id": 7})
    for _ in range(LIMIT + 1):
        broker.take().requeue()
    broker.waiting(1)

    ingest()

    (letter,) = letters()
    assert ("unknown_outcome", True) == (letter.kind, letter.effect_possible)
    assert "delivered as often as the queue allows" in letter.reason
    refused = cli("dead", "replay", letter.id, "--by", "ann")
    assert (1, True) == (refused.exit_code, "may have had an effect" in refused.output)


def test_message_that_a_full_queue_dropped_is_told_so(broker, ingest, letters, queue_type):
    """The queue was full: neither the message nor its task is to blame."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": broker.dead, "x-queue-type": queue_type}
    short = f"{broker.queue}.short"
    broker.channel.queue_declare(short, durable=True, auto_delete=False, arguments={**arguments, "x-max-length": 1})
    for number in range(2):
        broker.put_raw("[]", short, headers={"task": "shop.mail", "id": f"t{number}"})
    broker.waiting(1)

    ingest()
    broker.channel.queue_delete(short)

    (letter,) = letters()
    assert ("infrastructure", "t0", False) == (letter.kind, letter.task_id, letter.effect_possible)


def test_replay_does_not_take_its_deaths_along(shop, broker, ingest, letters, cli):
    """RabbitMQ counts on what it finds: a first rejection would be told as the second one."""
    shop.note.apply_async(kwargs={"order_id": 7})
    broker.reject()
    broker.waiting(1)
    ingest()
    (letter,) = letters()

    assert 0 == cli("dead", "replay", letter.id, "--by", "ann").exit_code
    replayed = broker.take()
    assert not [name for name in replayed.headers if "-death" in name]
    replayed.reject()
    broker.waiting(1)
    assert {"ingested": 1} == ingest()

    (again,) = letters()
    assert (letter.id, "open", [1]) == (again.id, again.state, [d["count"] for d in again.wire.headers["x-death"]])
    assert 2 == sum(entry.what == "dead-lettered: rejected" for entry in again.history)


def test_rabbitmq_counts_on_what_it_is_sent(shop, broker, ingest, letters):
    """The control, of RabbitMQ before 4.0: with its deaths sent along the count goes on."""
    shop.note.apply_async(kwargs={"order_id": 7})
    broker.reject()
    broker.waiting(1)
    ingest()
    (letter,) = letters()

    broker.put_raw(letter.wire.body, headers=dict(letter.wire.headers), content_type="application/json")
    broker.reject()
    broker.waiting(1)
    ingest()

    assert [1, 2] == sorted(each.wire.headers["x-death"][0]["count"] for each in letters())


def test_keyed_work_that_was_done_meanwhile_is_not_done_again(shop, broker, ingest, letters, cli):
    """The letter carries the key: a replay of it finds what another publication has done."""
    shop.note_once.apply_async(kwargs={"order_id": 7})
    broker.reject()
    broker.waiting(1)
    ingest()
    (letter,) = letters()
    shop.note_once.apply_async(kwargs={"order_id": 7})
    run(shop.app, broker.take())

    assert 0 == cli("dead", "replay", letter.id, "--by", "ann").exit_code
    run(shop.app, broker.take())

    assert 1 == len(shop.ran)
    assert ["closed"] == [each.state for each in letters()]


def test_message_of_a_foreign_producer_gets_its_key(shop, broker, ingest, letters):
    """Admission would make the same one of its arguments."""
    broker.put_raw(
        '[[7], {}, {"callbacks": null}]',
        headers={"task": "shop.charge", "id": "t-1"},
        content_type="application/json",
        content_encoding="utf-8",
    )
    broker.reject()
    broker.waiting(1)

    ingest()

    assert [("order:7", "shop.charge")] == [(each.key, each.scope) for each in letters()]


def test_what_was_put_there_by_hand_goes_its_tasks_way(shop, broker, ingest, letters, cli):
    """Its route leads into the dead-letter queue: replayed by that, it would go round in a circle."""
    broker.put_raw(
        '[[], {"order_id": 7}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
        broker.dead,
        headers={"task": "shop.mail", "id": "t-1"},
        content_type="application/json",
        content_encoding="utf-8",
    )
    broker.waiting(1)

    ingest()

    (letter,) = letters()
    assert ("unknown_outcome", True, {}) == (letter.kind, letter.effect_possible, letter.wire.delivery_info)
    assert "does not say how it came" in letter.reason
    assert 0 == cli("dead", "replay", letter.id, "--by", "ann", "--yes-it-may-run-twice").exit_code
    run(shop.app, broker.take())
    assert [("mail", {"order_id": 7})] == shop.ran
    broker.waiting(0)


def test_limit_leaves_the_rest(shop, broker, ingest, letters):
    """Whoever wants to look at the first ones must not have to take all."""
    for number in range(3):
        shop.note.apply_async(kwargs={"order_id": number})
        broker.reject()
    broker.waiting(3)

    assert {"ingested": 2} == ingest("--limit", "2")

    broker.waiting(1)
    assert 2 == len(letters())
    assert {"ingested": 1} == ingest()
    assert {} == ingest()


@pytest.mark.parametrize("queue_type", ["quorum"], indirect=True)
def test_message_that_was_delayed_by_the_broker_finds_its_queue(shop, broker, ingest, letters, cli):
    """Its first deaths are those of its delay, which RabbitMQ does not tell from others."""
    with shop.app.connection_for_write() as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        bind_queue_to_native_delayed_delivery_exchange(connection, shop.app.amqp.queues[broker.queue])
    shop.note.apply_async(kwargs={"order_id": 7}, countdown=1)
    broker.reject()
    broker.waiting(1)

    assert {"ingested": 1} == ingest()

    (letter,) = letters()
    assert "celery_delayed_0" in [each["queue"] for each in letter.wire.headers["x-death"]]
    assert ["dead-lettered: rejected", "ingested"] == [entry.what for entry in letter.history]
    assert 0 == cli("dead", "replay", letter.id, "--by", "ann").exit_code
    run(shop.app, broker.take())
    assert 1 == len(shop.ran)
