"""
How a copy of a message is delayed where RabbitMQ may wait for it: by whole seconds, and back to the queue it is from.
"""

import pytest
from celery import Celery
from kombu import Exchange, Queue

from celery_safeguards.delivery.delayed import delay_options, queue_behind

BITS = "0." * 25 + "1.0.1."
DELAYED = "celery_delayed_delivery"


def made(broker, *queues):
    app = Celery("delayed", broker=broker, set_as_current=False)
    app.conf.task_queues = queues
    app.conf.task_default_queue = queues[0].name
    return app


def queue(name, kind="quorum"):
    return Queue(
        name, Exchange(f"{name}-x", type="topic"), routing_key=f"{name}.key", queue_arguments={"x-queue-type": kind}
    )


@pytest.fixture
def app():
    """An app on RabbitMQ with two quorum queues; nobody connects to it."""
    with made("amqp://", queue("first"), queue("second")) as app:
        yield app


@pytest.mark.parametrize("asked, given", [(0.2, 1), (1.0, 1), (1.2, 2), (0, 0), (-3, -3)])
def test_delay_is_whole_seconds_and_never_too_short(app, asked, given):
    """Celery cuts them off: 0.2 s cannot be published, and after 1.9 s the copy comes too early."""
    assert given == delay_options(app, {"exchange": "", "routing_key": "first"}, asked)["countdown"]


@pytest.mark.parametrize(
    "exchange, key, name",
    [
        ("second-x", "second.key", "second"),
        (DELAYED, f"{BITS}second.key", "second"),
        (f"shop_{DELAYED}", f"{BITS}second.key", "second"),
        ("", "second", None),
        ("second-x", "another.key", None),
        (DELAYED, f"{BITS}another.key", None),
    ],
)
def test_copy_goes_to_the_queue_of_its_original(app, exchange, key, name):
    """Celery 5.7 sends what has no queue to the default one, whatever exchange and key say."""
    assert name == delay_options(app, {"exchange": exchange, "routing_key": key}, 5).get("queue")


def test_copy_that_is_not_delayed_goes_the_way_it_came(app):
    assert {"countdown": 0} == delay_options(app, {"exchange": "second-x", "routing_key": "second.key"}, 0)


@pytest.mark.parametrize("broker, kind", [("amqp://", "classic"), ("redis://", "quorum")])
def test_other_brokers_and_queues_keep_fractions(broker, kind):
    """There the worker waits."""
    with made(broker, queue("first", kind)) as app:
        assert {"countdown": 0.2} == delay_options(app, {"exchange": "", "routing_key": "first"}, 0.2)


def test_only_what_was_delayed_has_a_queue_behind_it(app):
    assert queue_behind(app, "second-x", "second.key") is None
    assert "second" == queue_behind(app, DELAYED, f"{BITS}second.key").name
