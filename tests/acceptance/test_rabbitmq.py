"""
What holds on RabbitMQ, on classic and on quorum queues; records, claims and letters are in Redis.

A message stays with its consumer until it is acknowledged or the channel closes: nothing lapses, nothing needs to be
renewed, and what a dead worker held is redelivered at once. A connection that is cut closes the channel under the
bodies that run on.
"""

import os
import signal

import pytest

from tests.acceptance.faults_app import Scene
from tests.support.announcements import is_said
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 30
QUEUES = {
    "classic": {},
    "quorum": {"task_default_queue_type": "quorum"},
    # Celery's native delayed delivery: what has a countdown waits in the broker.
    "quorum, delayed by the broker": {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"},
}
pytestmark = pytest.mark.rabbitmq


@pytest.fixture
def broker(rabbitmq_broker, namespace):
    """The broker, and in the end nothing of this test in it."""
    yield rabbitmq_broker
    rabbitmq_broker.delete(namespace)


@pytest.fixture(params=["classic", "quorum"])
def queue(request):
    """What kind of queue the messages are in."""
    return request.param


@pytest.fixture
def cutter(broker):
    """A way to the broker that can be cut."""
    with Cutter(broker.url) as cutter:
        yield cutter


@pytest.fixture
def workers():
    """All workers of this test."""
    return []


@pytest.fixture
def scene(broker, queue, namespace, request, workers):
    """The broker for messages, Redis for everything else."""
    need = {name: request.getfixturevalue(name) for name in ("gateway", "announcements", "start_worker")}
    start = need["start_worker"]

    def start_worker(*args, **options):
        workers.append(start(*args, **options))
        return workers[-1]

    return Scene(
        broker_url=broker.url,
        store_url=request.getfixturevalue("redis_url"),
        namespace=namespace,
        task_default_exchange=namespace,
        task_default_routing_key=namespace,
        **{**need, "start_worker": start_worker},
        **QUEUES[queue],
    )


@pytest.fixture
def stop_all(broker, namespace, workers):
    """Stop all workers that live: nothing may be left that they hold, and nothing return to the queue."""

    def stop_all():
        # A body's end is told before its message is acknowledged: what a shutdown comes in between of is put back.
        wait_until(lambda: broker.messages(namespace) == 0, PATIENCE_SECONDS, "every message is acknowledged")
        for worker in workers:
            if worker.is_running():
                # Longer than billiard waits for a parent that has not read a child's last result: 300 times 0.1 s.
                assert 0 == worker.stop(PATIENCE_SECONDS * 2)
        assert 0 == broker.ready(namespace)

    return stop_all


@pytest.mark.parametrize("point", ["before_charge", "after_charge"])
def test_child_killed_in_mid_payment_charges_once(scene, gateway, announcements, point, stop_all):
    """Borderless360/django-logic#79: the broker never knows that a child died, and plain Celery acknowledges."""
    announcements.hold(point, order_id="A1")
    worker = scene.worker()
    task_id = scene.send("charge", "A1")
    child = announcements.wait_for(is_said(point, order_id="A1"), PATIENCE_SECONDS)

    os.kill(child["pid"], signal.SIGKILL)
    announcements.open(point)

    scene.wait_ended("succeeded" if point == "before_charge" else "deduplicated", PATIENCE_SECONDS, task_id=task_id)
    assert worker.is_running()
    stop_all()
    assert 1 == len(gateway.charges("A1"))


def test_work_of_a_killed_worker_goes_on_at_once_and_charges_once(scene, gateway, announcements, stop_all):
    """celery/celery#4984: on Redis it takes a timeout; here the channel closes with the worker."""
    announcements.hold("after_charge", order_id="A1")
    worker = scene.worker()
    task_id = scene.send("charge", "A1")
    announcements.wait_for(is_said("after_charge", order_id="A1"), PATIENCE_SECONDS)
    heir = scene.worker()

    worker.kill_all()
    announcements.open("after_charge")

    heir.wait_for(is_said("ended", task_id=task_id), PATIENCE_SECONDS)
    scene.wait_ended("deduplicated", PATIENCE_SECONDS, task_id=task_id)
    stop_all()
    assert 1 == len(gateway.charges("A1"))


def test_work_of_a_killed_worker_charges_twice_without_safeguards(scene, gateway, announcements):
    """The control."""
    announcements.hold("after_charge", order_id="A1")
    worker = scene.worker()
    scene.send("charge_plain", "A1")
    announcements.wait_for(is_said("after_charge", order_id="A1"), PATIENCE_SECONDS)
    scene.worker()

    worker.kill_all()
    announcements.open("after_charge")

    assert 2 == len(gateway.wait_for_charges("A1", PATIENCE_SECONDS, count=2))


def test_cut_connection_defers_the_second_delivery(scene, cutter, gateway, announcements, stop_all):
    """
    celery/celery#7185: the message is redelivered while its body runs.

    The body's own acknowledgement belongs to the channel that is gone, and must not end the worker or another delivery.
    """
    announcements.hold("before_charge", order_id="A1")
    worker = scene.worker(broker_url=cutter.url)
    task_id = scene.send("charge", "A1")
    announcements.wait_for(is_said("before_charge", order_id="A1"), PATIENCE_SECONDS)

    cutter.cut()
    scene.wait_ended("deferred", PATIENCE_SECONDS, task_id=task_id)
    announcements.open("before_charge")

    scene.wait_ended("succeeded", PATIENCE_SECONDS, task_id=task_id)
    scene.wait_ended("deduplicated", PATIENCE_SECONDS, task_id=task_id)
    other = scene.send("charge", "B1")
    scene.wait_ended("succeeded", PATIENCE_SECONDS, task_id=other)
    assert worker.is_running()
    stop_all()
    assert [1, 1] == [len(gateway.charges(order_id)) for order_id in ("A1", "B1")]


def test_cut_connection_charges_twice_without_safeguards(scene, cutter, gateway, announcements):
    """The control."""
    announcements.hold("before_charge", order_id="A1")
    scene.worker(broker_url=cutter.url)
    scene.send("charge_plain", "A1")
    announcements.wait_for(is_said("before_charge", order_id="A1"), PATIENCE_SECONDS)

    cutter.cut()
    announcements.wait_for(is_said("before_charge", order_id="A1"), PATIENCE_SECONDS, count=2)
    announcements.open("before_charge")

    assert 2 == len(gateway.wait_for_charges("A1", PATIENCE_SECONDS, count=2))


@pytest.mark.parametrize("queue", QUEUES, indirect=True)
def test_retry_and_deferrals_run_once_wherever_they_wait(scene, gateway, announcements, stop_all):
    """celery/celery#9149: a retry by countdown fills a quorum queue's worker, unless the broker delays it."""
    announcements.hold("begins", attempt=2)
    scene.worker()
    first = scene.send("flaky", "A1")
    announcements.wait_for(is_said("begins", attempt=2), PATIENCE_SECONDS)

    duplicate = scene.send("flaky", "A1")
    # A deferral of a deferral: it must find its way back to the queue from wherever it waited.
    scene.wait_ended("deferred", PATIENCE_SECONDS, task_id=duplicate, count=3)
    announcements.open("begins")

    scene.wait_ended("succeeded", PATIENCE_SECONDS, task_id=first)
    scene.wait_ended("deduplicated", PATIENCE_SECONDS, task_id=duplicate)
    stop_all()
    assert 1 == len(gateway.charges("A1"))


# The first start of all is not counted where its whole worker died.
@pytest.mark.parametrize("dies, starts", [("child", 3), ("worker", 4)])
def test_message_that_kills_its_workers_is_buried(scene, announcements, dies, starts, stop_all):
    """celery/celery#9082: redelivered at once, it would end one worker after the other."""
    announcements.hold("begins")
    task_id = scene.send("pay_unkeyed", "A1")

    worker = scene.worker(concurrency=1)
    for count in range(1, starts + 1):
        begun = announcements.wait_for("begins", PATIENCE_SECONDS, count=count)
        if dies == "child":
            worker.kill_child(begun["pid"])
        else:
            worker.kill_all()
            worker = scene.worker(concurrency=1)
    letter = announcements.wait_for(is_said("letter", task_id=task_id), PATIENCE_SECONDS)

    # The end of a task whose worker is told to stop just then may be missed (Celery 5.5): half a minute's wait.
    announcements.wait_for(is_said("task_failure", task_id=task_id), PATIENCE_SECONDS)
    stop_all()
    assert "worker_lost" == letter["kind"]
    assert starts == len(announcements.heard("begins"))
    assert [letter["id"]] == [each.id for each in scene.letters()]


@pytest.mark.parametrize("queue", QUEUES, indirect=True)
def test_letter_is_written_before_the_message_is_gone(scene, announcements, stop_all):
    """A failed payment would be acknowledged away; where it waited, RabbitMQ has written a date into its headers."""
    scene.worker()
    task_id = scene.send("refuse", "A1", countdown=1)

    said = announcements.wait_for(is_said("letter", task_id=task_id), PATIENCE_SECONDS)

    # The end of a task whose worker is told to stop just then may be missed (Celery 5.5): half a minute's wait.
    announcements.wait_for(is_said("task_postrun", task_id=task_id, state="FAILURE"), PATIENCE_SECONDS)
    stop_all()
    assert [said["id"]] == [letter.id for letter in scene.letters()]


def test_message_for_an_unknown_task_is_kept_as_a_letter(scene, announcements, stop_all):
    """celery/celery#5504: a worker deployed after its publishers throws such a message away."""
    scene.worker()
    task_id = scene.app.send_task("faults.gone", ("A1",)).id

    letter = announcements.wait_for(is_said("letter", task_id=task_id), PATIENCE_SECONDS)

    stop_all()
    assert [("unknown_task", letter["id"])] == [(each.kind, each.id) for each in scene.letters()]


def test_warm_shutdown_waits_for_the_body_and_gives_the_rest_back(scene, gateway, announcements, stop_all):
    """celery/celery#3802: what was prefetched returns to the queue, what runs is acknowledged."""
    announcements.hold("before_charge", order_id="A1")
    worker = scene.worker(concurrency=1, worker_prefetch_multiplier=2)
    scene.send("charge", "A1")
    announcements.wait_for(is_said("before_charge", order_id="A1"), PATIENCE_SECONDS)
    scene.send("charge", "B1")
    worker.wait_for("task_received", PATIENCE_SECONDS, count=2)

    worker.terminate()
    heir = scene.worker(concurrency=1)
    announcements.open("before_charge")

    assert 0 == worker.wait_exited(PATIENCE_SECONDS)
    scene.wait_ended("succeeded", PATIENCE_SECONDS, count=2)
    assert heir.is_running()
    stop_all()
    assert [1, 1] == [len(gateway.charges(order_id)) for order_id in ("A1", "B1")]


def test_dropped_delivery_comes_back(scene, broker, cutter, gateway, announcements, stop_all):
    """
    A retry that cannot be published keeps its message, which would wait until the channel closes.

    Until then it kept this worker's only prefetch slot, too: nothing was delivered to it any more.
    """
    announcements.hold("begins", attempt=1)
    worker = scene.worker(concurrency=1, broker_read_url=broker.url, broker_write_url=cutter.url)
    task_id = scene.send("flaky", "A1")
    announcements.wait_for(is_said("begins", attempt=1), PATIENCE_SECONDS)

    cutter.refuse()
    announcements.open("begins")
    scene.wait_ended("fenced", PATIENCE_SECONDS, task_id=task_id)
    cutter.allow()

    scene.wait_ended("succeeded", PATIENCE_SECONDS, task_id=task_id)
    assert worker.is_running()
    stop_all()
    assert 1 == len(gateway.charges("A1"))
