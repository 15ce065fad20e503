"""
What this package takes for granted of Celery and kombu on RabbitMQ and SQS beneath their documented surface.

Each test is one fact; see `test_celery_facts.py`.
"""

import uuid
from types import SimpleNamespace

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue

from celery_safeguards._compat import drop_locally, has_native_delay
from tests.support.sqs import broker_options


class Request:
    """What a worker has of a delivery."""

    id, acknowledged = "t", False


@pytest.fixture
def app():
    """An app on RabbitMQ with a quorum queue on a topic exchange; nobody connects to it."""
    queue = Queue("q", Exchange("x", type="topic"), routing_key="k", queue_arguments={"x-queue-type": "quorum"})
    with Celery("facts", broker="amqp://", set_as_current=False) as app:
        app.conf.update(task_queues=[queue], task_default_queue="q")
        yield app


def test_celery_leaves_a_countdown_to_the_broker_and_cannot_send_less_than_a_second(app):
    """When this fails, Celery rounds up by itself, and `delivery.delayed` need not."""
    assert has_native_delay(app)
    with pytest.raises(ValueError, match="positive"):
        app.send_task("any", countdown=0.2)


def test_amqp_channel_has_nothing_that_a_local_drop_could_tell(rabbitmq_broker):
    """Its message is unacknowledged until the channel closes: it does not come back by itself."""
    with Connection(rabbitmq_broker.url) as connection, connection.channel() as channel:
        request = Request()
        request.message = SimpleNamespace(channel=channel, delivery_tag=1)

        assert not drop_locally(request)
        assert request.acknowledged


def test_sqs_message_carries_its_queue_and_its_receipts(sqs_url):
    """The tag is the receipt's handle; the count of receipts is asked for unless somebody changes what is."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with Connection(sqs_url, transport_options=broker_options(60)) as connection:
        queue = connection.SimpleQueue(name)
        queue.put({"number": 1})
        message = queue.get(timeout=15)
        received = message.delivery_info["sqs_message"]
        channel = queue.channel
        message.ack()
        queue.close()
        channel.sqs().delete_queue(QueueUrl=message.delivery_info["sqs_queue"])

    assert received["ReceiptHandle"] == message.delivery_tag
    assert "1" == received["Attributes"]["ApproximateReceiveCount"]
    assert message.delivery_info["sqs_queue"].endswith(f"/{name}")


def test_sqs_queue_that_exists_keeps_its_timeout(sqs_url):
    """When this fails, kombu applies `visibility_timeout` to queues that exist, and nobody need ask the queue."""
    name = f"t{uuid.uuid4().hex[:12]}"
    for seconds in (60, 600):
        with (
            Connection(sqs_url, transport_options=broker_options(seconds)) as connection,
            connection.channel() as channel,
        ):
            channel._new_queue(name)
            client, url = channel.sqs(), channel._queue_cache[name]
            said = client.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    client.delete_queue(QueueUrl=url)

    assert {"VisibilityTimeout": "60"} == said
