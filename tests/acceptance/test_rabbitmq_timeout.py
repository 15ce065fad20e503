"""
RabbitMQ's own limit to how long a message may stay unacknowledged: `consumer_timeout`, half an hour by default.

No client can extend it. The channel is closed under all its messages, those of innocent tasks too.
"""

import pytest

from tests.acceptance.faults_app import Scene
from tests.support import rabbitmq
from tests.support.announcements import is_said
from tests.support.waiting import wait_until

TIMEOUT_MS = 4_000
PATIENCE_SECONDS = 40
pytestmark = pytest.mark.rabbitmq


@pytest.fixture(scope="module")
def impatient():
    """A broker with a short timeout that it checks each second."""
    with rabbitmq.rabbitmq_server(consumer_timeout=TIMEOUT_MS, channel_tick_interval=1_000) as server:
        yield server


@pytest.fixture
def scene(impatient, redis_url, namespace, request):
    """The impatient broker for messages, Redis for everything else."""
    need = {name: request.getfixturevalue(name) for name in ("gateway", "announcements", "start_worker")}
    yield Scene(broker_url=impatient.url, store_url=redis_url, namespace=namespace, **need)
    impatient.delete(namespace)


def test_body_beyond_the_consumer_timeout_is_deferred_and_charges_once(
    scene, impatient, namespace, gateway, announcements
):
    """celery/celery#6760, rabbitmq/rabbitmq-server#11948: with `broker_channel_error_retry` the worker reconnects."""
    announcements.hold("before_charge", order_id="A1")
    worker = scene.worker(broker_channel_error_retry=True)
    task_id = scene.send("charge", "A1")
    announcements.wait_for(is_said("before_charge", order_id="A1"), PATIENCE_SECONDS)

    scene.wait_ended("deferred", PATIENCE_SECONDS, task_id=task_id)
    announcements.open("before_charge")

    scene.wait_ended("succeeded", PATIENCE_SECONDS, task_id=task_id)
    scene.wait_ended("deduplicated", PATIENCE_SECONDS, task_id=task_id)
    assert 1 == len(gateway.charges("A1"))
    assert worker.is_running()
    assert 0 == worker.stop(PATIENCE_SECONDS)
    assert 0 == impatient.ready(namespace)


def test_consumer_timeout_ends_a_worker_that_does_not_retry_channel_errors(scene, announcements):
    """openedx/openedx-platform#32811: Celery's default; the pair of the test above."""
    announcements.hold("before_charge", order_id="A1")
    worker = scene.worker()
    scene.send("charge", "A1")
    announcements.wait_for(is_said("before_charge", order_id="A1"), PATIENCE_SECONDS)

    gives_up = "Unrecoverable error: PreconditionFailed"
    wait_until(lambda: gives_up in worker.log(), PATIENCE_SECONDS, "the worker gives up")
    announcements.open("before_charge")

    assert 0 != worker.wait_exited(PATIENCE_SECONDS)
