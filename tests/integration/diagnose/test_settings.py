"""
Settings of Celery that undo a promise: each is found with its fix, and the sound set-up is left alone.
"""

from dataclasses import replace
from datetime import timedelta

import pytest
from kombu import Exchange, Queue
from kombu.common import Broadcast

from celery_safeguards import Idempotent, Safeguards
from celery_safeguards.delivery.visibility import Visibility
from celery_safeguards.diagnose.examining import examine
from celery_safeguards.diagnose.surroundings import by_settings
from celery_safeguards.findings import Severity
from tests.integration.diagnose.conftest import body, found_in, guard, ids

QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.parametrize("broker", ["redis://127.0.0.1:1/0", "memory://", "sentinel://127.0.0.1:1", "none-such://"])
def test_sound_set_up_has_nothing_to_be_said(make_app, broker):
    """A check that always complains is silenced, and so is the next one."""
    app = make_app(broker)
    guard(app, "shop.sync", time_limit=60)

    assert [] == ids(examine(app))


def test_timeout_under_the_result_back_ends_options_is_in_vain(make_app):
    """It seems to have no effect, and redelivery still comes after an hour (celery/celery#9339, #7651)."""
    app = make_app(result_backend_transport_options={"visibility_timeout": 60})

    assert "effective is 3600 s" in found_in(app)["SG140"]
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "visibility_timeout": 60}
    assert "SG140" not in found_in(app)


@pytest.mark.parametrize("text", ["310", "five minutes"])
def test_timeout_that_is_text_is_told(make_app, text):
    """It comes from the environment, and the sweep ends in a TypeError, or never runs."""
    app = make_app(broker_transport_options={"visibility_timeout": text})

    assert f"visibility_timeout={text!r} in broker_transport_options is no number" in found_in(app)["SG140"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "cannot put a message back"),
        (timedelta(hours=1), "cannot put a message back"),
        (float("nan"), "cannot put a message back"),
        (0, "while the first still holds it"),
        (-60, "while the first still holds it"),
        (float("inf"), "is never put back"),
    ],
)
def test_timeout_that_kombu_cannot_use_is_told(make_app, value, said):
    """It looks like a set-up: the sweep fails, or gives away what is held, and renewal cannot help."""
    found = found_in(make_app(broker_transport_options={"visibility_timeout": value}))

    assert f"visibility_timeout={value!r} in broker_transport_options" in found["SG140"]
    assert said in found["SG140"]


def test_sweep_without_an_interval_does_not_end_the_check(make_app):
    """What is not set in the environment is None, which ends a worker of kombu; the other findings still count."""
    options = {"unacked_restore_interval": None, "unacked_restore_throttle": None}

    assert "SG140" not in found_in(make_app(broker_transport_options=options))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ({"socket_timeout": None}, "socket_timeout of the Redis broker is not set"),
        ({"socket_keepalive": None}, "socket_keepalive of the Redis broker is not set"),
        ({"socket_timeout": None, "socket_keepalive": False}, "socket_timeout and socket_keepalive of"),
    ],
)
def test_connection_that_may_wait_for_ever_is_told(make_app, missing, said):
    """A worker lives and consumes nothing after a cut that nobody was told of (celery/celery#8030, #8091)."""
    assert said in found_in(make_app(broker_transport_options=missing))["SG143"]


def test_socket_in_the_file_system_needs_no_keepalive(make_app):
    """It cannot be dropped without a word."""
    app = make_app("redis+socket:///tmp/none.sock", broker_transport_options={})

    assert "SG143" not in found_in(app)


def test_broker_that_forgets_at_once_is_an_error(make_app):
    """Late acknowledgement has no effect there, and nobody is told."""
    app = make_app(broker_transport_options={"ack_emulation": False})

    assert {"SG147": True} == {each.id: each.is_refused for each in examine(app)}


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_fleet_of_greenlets_that_redelivers_nothing_is_told(make_app, pool):
    """Messages of a dead worker stay in `unacked` for ever; measured with kombu 5.7."""
    assert "SG142" in found_in(make_app(worker_pool=pool))
    assert "SG142" not in found_in(make_app(worker_pool="prefork"))


@pytest.mark.parametrize(("cancels", "said"), [(False, "a second run begins"), (True, "ends the body of every")])
def test_what_a_cut_does_is_told_either_way(make_app, cancels, said):
    """Neither is what most people expect."""
    app = make_app(worker_cancel_long_running_tasks_on_connection_loss=cancels)
    guard(app, "shop.sync", time_limit=60)
    guard(app, "shop.pay", Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun")), time_limit=60)
    found = found_in(app)

    assert said in found["SG159"]
    assert "shop.pay" not in found["SG159"]


# --- dead letters by the broker


@pytest.mark.parametrize(("broker", "is_told"), [("redis://127.0.0.1:1/0", True), ("amqp://", False)])
def test_dead_letter_arguments_on_a_broker_that_ignores_them(make_app, broker, is_told):
    """Guides set them on Redis, and nothing ever arrives (celery/celery#3261, #4797)."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    app = make_app(broker, task_queues=[Queue("work", queue_arguments=arguments)], task_default_queue="work")

    assert is_told == ("SG155" in found_in(app))


def test_queue_of_dead_letters_that_workers_consume(make_app):
    """What has failed is run again, and goes round."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    work, dead = Queue("work", queue_arguments=arguments), Queue("dead", routing_key="dead")
    both = make_app("amqp://", task_queues=[work, dead], task_default_queue="work")
    one = make_app("amqp://", task_queues=[work], task_default_queue="work")
    elsewhere = Queue("work", queue_arguments={"x-dead-letter-exchange": "dead"})
    all_hear = make_app("amqp://", task_queues=[elsewhere, Broadcast("all")], task_default_queue="work")

    assert "dead takes the dead letters of another queue" in found_in(both)["SG156"]
    assert "SG156" not in found_in(one)
    assert "SG156" not in found_in(all_hear)


# --- what comes back without end


def test_plain_tasks_that_go_round_for_ever_are_told(make_app):
    """They hold the processes that the guarded tasks need (measured: starts until the worker is stopped)."""
    app = make_app("memory://")
    app.task(body, name="shop.hangs", shared=False, acks_late=True, acks_on_failure_or_timeout=False)
    app.task(body, name="shop.kills", shared=False, acks_late=True, reject_on_worker_lost=True)
    app.task(body, name="shop.early", shared=False, reject_on_worker_lost=True)
    app.task(body, name="shop.late", shared=False, acks_late=True)
    found = found_in(app)

    assert {"SG157", "SG158"} == set(found)
    assert "shop.hangs: acks_on_timeout is off" in found["SG157"]
    assert "again: shop.kills: reject_on_worker_lost" in found["SG158"]


# --- RabbitMQ and SQS


def test_worker_that_ends_by_an_error_of_its_channel_is_told(make_app):
    """After `consumer_timeout` a worker dies, as channel errors are not retried by default (celery/celery#6760)."""
    assert "broker_channel_error_retry is off" in found_in(make_app("amqp://"))["SG153"]
    assert "SG153" not in found_in(make_app("amqp://", broker_channel_error_retry=True))


def test_timeout_that_rabbitmq_tells_nobody_is_not_known_until_somebody_says_it(make_app):
    """Half an hour is the default, and many servers have another; nothing here could notice."""
    told = [each for each in examine(make_app("amqp://")) if each.id == "SG141"]

    assert [(Severity.UNKNOWN, False)] == [(each.severity, each.is_refused) for each in told]
    assert "taken to be its default of 1800 s" in told[0].text
    assert "SG141" not in found_in(make_app("amqp://", safeguards_consumer_timeout_seconds=3_600))


@pytest.mark.parametrize(("kind", "is_told"), [("direct", True), ("topic", False)])
def test_quorum_queue_behind_a_direct_exchange_leaves_delays_to_the_workers(make_app, kind, is_told):
    """ETA and retry messages fill the prefetch buffer, and block the worker (celery/celery#9149)."""
    queue = Queue("work", exchange=Exchange("work", type=kind), routing_key="work", queue_arguments=QUORUM)
    app = make_app("amqp://", broker_channel_error_retry=True, task_queues=[queue], task_default_queue="work")
    found = found_in(app)

    assert is_told == ("SG151" in found)
    assert "work: RabbitMQ drops a message" in found["SG152"]


def test_delays_that_rabbitmq_keeps_are_no_part_of_the_sum(make_app):
    """No worker holds them there."""
    queue = Queue("work", exchange=Exchange("work", type="topic"), routing_key="work", queue_arguments=QUORUM)
    settings = {"broker_channel_error_retry": True, "worker_prefetch_multiplier": 1, "task_default_queue": "work"}
    key = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"), retry=None)
    native = make_app("amqp://", safeguards_consumer_timeout_seconds=100, task_queues=[queue], **settings)
    held = make_app("amqp://", safeguards_consumer_timeout_seconds=100, **settings)
    for app in (native, held):
        guard(app, "shop.pay", key, time_limit=50)

    assert "SG150" not in found_in(native)
    assert "a delay of up to 60 s + its limit of 50 s = 110 s" in found_in(held)["SG150"]


@pytest.mark.parametrize(("timeout", "expected"), [(43_200, []), (43_201, ["SG154"])])
def test_sqs_has_a_longest_timeout(make_app, timeout, expected):
    """It refuses more than twelve hours."""
    app = make_app("memory://")
    visibility = Visibility(broker="sqs", timeout_seconds=float(timeout))
    around = replace(by_settings(app), visibility=visibility)

    assert expected == [each.id for each in examine(app, around)]


def test_renewal_on_sqs_ends_after_twelve_hours(make_app):
    """Renewed as it may be, a receipt of SQS is over then, and the message comes again."""
    app = make_app("memory://", worker_prefetch_multiplier=1)
    guard(app, "shop.long", time_limit=50_000)
    visibility = Visibility(broker="sqs", timeout_seconds=1800.0, is_renewed=True)
    found = found_in(app, replace(by_settings(app), visibility=visibility))

    assert "its limit of 50000 s = 50000 s, above the visibility timeout of 43200 s" in found["SG104"]
