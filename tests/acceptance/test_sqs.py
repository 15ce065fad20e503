"""
What holds on Amazon SQS; records, claims and letters are in Redis.

A message is hidden for its queue's visibility timeout from each receipt, and is given to somebody else after that.
"""

import json

import pytest
from celery import Celery

from tests.acceptance.faults_app import Scene
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.sqs import broker_options
from tests.support.waiting import wait_until

VISIBILITY_SECONDS = 3
PATIENCE_SECONDS = 40
pytestmark = pytest.mark.sqs


@pytest.fixture
def visible_seconds():
    """What the workers' settings say of the timeout; the queue has its own."""
    return VISIBILITY_SECONDS


@pytest.fixture
def queue(sqs_url, namespace):
    """The queue, as seen by a client of its own, and in the end deleted."""
    with Queue(sqs_url, namespace) as queue:
        yield queue


class Queue:
    def __init__(self, url, name):
        # Not there where the oldest versions are tested.
        import boto3

        self._client = boto3.client(
            "sqs",
            endpoint_url=url.replace("sqs://key:secret@", "http://"),
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        made = self._client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": str(VISIBILITY_SECONDS)})
        self._url = made["QueueUrl"]

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._client.delete_queue(QueueUrl=self._url)
        self._client.close()

    def messages(self):
        """Return how many messages the queue has as `(visible, hidden)`."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=names)["Attributes"]
        return tuple(int(found[name]) for name in names)

    def wait_empty(self):
        wait_until(lambda: self.messages() == (0, 0), PATIENCE_SECONDS, "the queue is empty")


@pytest.fixture
def scene(sqs_url, queue, redis_url, namespace, visible_seconds, request):
    """SQS for messages, Redis for everything else."""
    need = {name: request.getfixturevalue(name) for name in ("gateway", "announcements", "start_worker")}
    return Scene(
        broker_url=sqs_url,
        store_url=redis_url,
        namespace=namespace,
        broker_transport_options=broker_options(visible_seconds),
        **need,
    )


@pytest.mark.parametrize("visible_seconds", [VISIBILITY_SECONDS, 600], ids=["as set", "queue has less than is set"])
def test_body_that_outlives_the_visibility_timeout_runs_once(scene, queue, announcements):
    """celery/celery#5306: the timeout is the queue's; where it is shorter than the settings say, that one counts."""
    announcements.hold("begins")
    for _ in range(2):
        scene.worker(concurrency=1)
    task_id = scene.send("pay_unkeyed", "A1")
    first = announcements.wait_for("begins", PATIENCE_SECONDS)

    # As long as three timeouts: the other worker polls all that time, and is given what is sent to it.
    for number in range(3):
        scene.send("refuse", f"B{number}", countdown=VISIBILITY_SECONDS * (number + 1))
    scene.wait_ended("dead_lettered", PATIENCE_SECONDS, count=3)
    announcements.open("begins")

    scene.wait_ended("succeeded", PATIENCE_SECONDS, task_id=task_id)
    queue.wait_empty()
    assert [first] == announcements.heard("begins")
    assert 4 == len(announcements.heard("task_received"))


def test_body_that_outlives_the_visibility_timeout_runs_again_on_plain_celery(
    sqs_url, queue, redis_url, namespace, announcements, start_worker
):
    """The control: nothing renews in a worker whose tasks are all plain."""
    announcements.hold("before_effect")
    options = broker_options(VISIBILITY_SECONDS)
    env = {apps.BROKER_URL: sqs_url, apps.STORE_URL: redis_url, apps.NAMESPACE: namespace}
    for _ in range(2):
        start_worker("tests.acceptance.plain_app:app", {**env, apps.BROKER_OPTIONS: json.dumps(options)}).wait_ready()
    with Celery("producer", broker=sqs_url, set_as_current=False) as producer:
        producer.conf.update(task_default_queue=namespace, broker_transport_options=options)
        producer.send_task("plain.effect", ("A1",))

    announcements.wait_for("before_effect", PATIENCE_SECONDS, count=2)


def test_work_of_a_killed_worker_goes_on_after_the_timeout_and_charges_once(scene, queue, gateway, announcements):
    """celery/celery#4984: a timeout may be short, so that this is soon."""
    announcements.hold("after_charge", order_id="A1")
    worker = scene.worker()
    task_id = scene.send("charge", "A1")
    announcements.wait_for(is_said("after_charge", order_id="A1"), PATIENCE_SECONDS)
    heir = scene.worker()

    worker.kill_all()
    announcements.open("after_charge")

    heir.wait_for(is_said("ended", task_id=task_id), PATIENCE_SECONDS)
    scene.wait_ended("deduplicated", PATIENCE_SECONDS, task_id=task_id)
    queue.wait_empty()
    assert 1 == len(gateway.charges("A1"))


def test_child_killed_in_mid_payment_charges_once(scene, queue, gateway, announcements):
    """Put back, the message is hidden for `wait_time_seconds` first."""
    announcements.hold("after_charge", order_id="A1")
    worker = scene.worker()
    task_id = scene.send("charge", "A1")
    announcements.wait_for(is_said("after_charge", order_id="A1"), PATIENCE_SECONDS)

    worker.kill_child(announcements.heard("after_charge")[0]["pid"])
    announcements.open("after_charge")

    scene.wait_ended("deduplicated", PATIENCE_SECONDS, task_id=task_id)
    queue.wait_empty()
    assert 1 == len(gateway.charges("A1"))
    assert worker.is_running()


def test_message_that_kills_its_workers_is_buried(scene, queue, announcements):
    """SQS marks no redelivery, it counts receipts; unread, such a message would end one worker after the other."""
    announcements.hold("begins")
    task_id = scene.send("pay_unkeyed", "A1")

    # The first start of all is not counted where its whole worker died.
    for count in (1, 2, 3, 4):
        worker = scene.worker(concurrency=1)
        announcements.wait_for("begins", PATIENCE_SECONDS, count=count)
        worker.kill_all()
    scene.worker(concurrency=1)
    letter = announcements.wait_for(is_said("letter", task_id=task_id), PATIENCE_SECONDS)

    queue.wait_empty()
    assert "worker_lost" == letter["kind"]
    assert 4 == len(announcements.heard("begins"))
    kept = scene.letters()
    assert [letter["id"]] == [each.id for each in kept]
    assert "ReceiptHandle" not in repr(kept[0].wire.properties)


def test_message_for_an_unknown_task_is_kept_as_a_letter(scene, queue, announcements):
    """celery/celery#5504: on SQS it came again and again, or was deleted."""
    worker = scene.worker()
    task_id = scene.app.send_task("faults.gone", ("A1",)).id

    letter = announcements.wait_for(is_said("letter", task_id=task_id), PATIENCE_SECONDS)

    queue.wait_empty()
    kept = scene.letters()
    assert [("unknown_task", letter["id"])] == [(each.kind, each.id) for each in kept]
    assert "ReceiptHandle" not in repr(kept[0].wire.properties)
    assert worker.is_running()
