"""
From a broker's dead-letter queue to the letters and back to work, with workers and commands that are killed.

Messages are in RabbitMQ or SQS; records and letters are in Redis.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
from kombu import Queue

from celery_safeguards.replay import replay
from tests.acceptance.faults_app import Scene
from tests.support import announce
from tests.support.announcements import is_said
from tests.support.sockets import Cutter
from tests.support.sqs import broker_options
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

PATIENCE_SECONDS = 30
LIMIT = 2
VISIBILITY_SECONDS = 2


@pytest.fixture
def start_ingest(scene, dead, announcements, tmp_path):
    """Start `dead ingest` in a process of its own; killed with the test."""
    with contextlib.ExitStack() as started:

        def start(*words, **changes):
            env = {**os.environ, announce.ADDRESS: announcements.address, **scene.environment(**changes)}
            command = [sys.executable, "-m", "tests.acceptance.ingest_under_test", dead, *words]
            with (tmp_path / f"ingest-{len(list(tmp_path.iterdir()))}.log").open("wb") as log:
                process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        yield start


@pytest.fixture
def dead(namespace):
    """Name of the dead-letter queue."""
    return f"{namespace}.dead"


@pytest.mark.rabbitmq
class TestRabbitMQ:
    @pytest.fixture(params=["classic", "quorum"])
    def queue_type(self, request):
        return request.param

    @pytest.fixture
    def broker(self, rabbitmq_broker, namespace, dead):
        yield rabbitmq_broker
        for name in (namespace, dead):
            rabbitmq_broker.delete(name)

    @pytest.fixture
    def scene(self, broker, queue_type, redis_url, namespace, dead, request):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-queue-type": queue_type}
        if queue_type == "quorum":
            arguments["x-delivery-limit"] = LIMIT
        queue = {"exchange": namespace, "exchange_type": "topic", "routing_key": "work", "queue_arguments": arguments}
        need = {name: request.getfixturevalue(name) for name in ("gateway", "announcements", "start_worker")}
        scene = Scene(
            broker_url=broker.url, store_url=redis_url, namespace=namespace, task_queues={namespace: queue}, **need
        )
        with scene.app.connection_for_write() as connection:
            channel = connection.default_channel
            Queue(dead, queue_arguments={"x-queue-type": queue_type}, no_declare=True)(channel).queue_declare()
            scene.app.amqp.queues[namespace](channel).declare()
        return scene

    @pytest.fixture
    def die(self, scene, broker, namespace, dead):
        """Have the broker give up so many charges, in this way; returns their ids."""

        def die(how="rejected", count=1):
            before = broker.ready(dead)
            options = {"expires": 0.05} if how == "expired" else {}
            ids = [scene.send("charge", f"A{number}", **options) for number in range(count)]
            with scene.app.connection_for_read() as connection:
                queue = scene.app.amqp.queues[namespace](connection.default_channel)
                for _ in range({"rejected": count, "expired": 0, "delivery_limit": count * (LIMIT + 1)}[how]):
                    message = wait_until(queue.get, PATIENCE_SECONDS, "a message waits")
                    message.reject(requeue=how == "delivery_limit")
            wait_until(lambda: broker.ready(dead) == before + count, PATIENCE_SECONDS, f"{count} messages are dead")
            return ids

        return die

    @pytest.mark.parametrize(
        "queue_type, how, kind",
        [
            ("classic", "rejected", "data"),
            ("quorum", "rejected", "data"),
            ("classic", "expired", "expired"),
            ("quorum", "expired", "expired"),
            ("quorum", "delivery_limit", "unknown_outcome"),
        ],
        indirect=["queue_type"],
    )
    def test_what_the_broker_gave_up_is_replayed_and_charges_once(self, scene, broker, die, start_ingest, how, kind):
        """Until now it lay in a queue that no list shows, or went round for ever where a worker consumed that."""
        (task_id,) = die(how)

        assert 0 == start_ingest().wait(PATIENCE_SECONDS)
        (letter,) = scene.letters()
        assert (kind, task_id, 'order:"A0"') == (letter.kind, letter.task_id, letter.key)
        sent = replay(scene.app, letter.id, "ann")
        worker = scene.worker()

        scene.wait_ended("succeeded", PATIENCE_SECONDS, task_id=sent.task_id)
        assert 0 == worker.stop(PATIENCE_SECONDS)
        assert 1 == len(scene.gateway.charges("A0"))
        assert ["closed"] == [each.state for each in scene.letters()]
        namespace = scene.app.conf.task_default_queue
        assert (0, 0) == (broker.ready(f"{namespace}.dead"), broker.ready(namespace))

    def test_killed_between_letter_and_acknowledgement_it_is_one_letter(
        self, scene, broker, die, start_ingest, announcements, dead
    ):
        """The message comes back, and must meet its letter."""
        (task_id,) = die()
        announcements.hold("ingested")
        process = start_ingest()
        written = announcements.wait_for(is_said("ingested", task_id=task_id), PATIENCE_SECONDS)

        process.send_signal(signal.SIGKILL)
        process.wait()
        announcements.open("ingested")
        wait_until(lambda: broker.ready(dead) == 1, PATIENCE_SECONDS, "the message has come back")

        assert 0 == start_ingest().wait(PATIENCE_SECONDS)
        assert [written["id"]] == [each.id for each in scene.letters()]
        assert [written] == announcements.heard("ingested")
        assert 0 == broker.ready(dead)

    def test_killed_again_and_again_it_loses_and_doubles_nothing(
        self, scene, broker, die, start_ingest, announcements, dead
    ):
        """Wherever the kill comes."""
        ids = die(count=20)
        for count in (3, 7, 13):
            process = start_ingest()
            announcements.wait_for("ingested", PATIENCE_SECONDS, count=count)
            process.kill()
            process.wait()

        wait_until(lambda: start_ingest().wait(PATIENCE_SECONDS) == 0, PATIENCE_SECONDS, "it ends")
        assert sorted(ids) == sorted(each.task_id for each in scene.letters())
        wait_until(lambda: broker.ready(dead) == 0, PATIENCE_SECONDS, "the queue is empty")

    def test_two_at_once_make_each_message_one_letter(self, scene, broker, die, start_ingest, announcements, dead):
        """Two people, or a deployment of two containers."""
        ids = die(count=20)
        announcements.hold("ingested")
        both = [start_ingest() for _ in range(2)]
        announcements.wait_for("ingested", PATIENCE_SECONDS, count=2)
        announcements.open("ingested")

        assert [0, 0] == [process.wait(PATIENCE_SECONDS) for process in both]
        assert 2 == len({said["pid"] for said in announcements.heard("ingested")})
        assert sorted(ids) == sorted(each.task_id for each in scene.letters())
        assert 0 == broker.ready(dead)

    def test_message_that_a_worker_could_not_read_stays_one_letter(
        self, scene, broker, start_ingest, announcements, dead
    ):
        """The worker writes its letter and rejects it, so it is in both places."""
        worker = scene.worker()
        task_id = scene.app.send_task("faults.gone", ("A0",)).id
        written = announcements.wait_for(is_said("letter", task_id=task_id), PATIENCE_SECONDS)
        wait_until(lambda: broker.ready(dead) == 1, PATIENCE_SECONDS, "it is rejected")

        assert 0 == start_ingest().wait(PATIENCE_SECONDS)

        assert [written["id"]] == [each.id for each in scene.letters()]
        assert 0 == broker.ready(dead)
        assert 0 == worker.stop(PATIENCE_SECONDS)

    @pytest.mark.parametrize("queue_type", ["classic"], indirect=True)
    def test_queue_that_a_worker_consumes_is_refused(self, scene, start_ingest, dead, tmp_path):
        """Named by -Q it is in no settings; what has failed is run again, or is made a letter, as chance has it."""
        worker = scene.worker(queues=[dead])

        assert 1 == start_ingest().wait(PATIENCE_SECONDS)

        assert any(f"is consumed by {worker.name}" in log.read_text() for log in tmp_path.glob("ingest-*.log"))
        worker.stop(PATIENCE_SECONDS)
        assert 0 == start_ingest().wait(PATIENCE_SECONDS)

    def test_follower_outlives_a_cut_and_ends_by_sigterm(self, scene, broker, die, start_ingest, announcements, dead):
        """It stands beside the workers for weeks."""
        with Cutter(broker.url) as cutter:
            process = start_ingest("--follow", "--json", broker_url=cutter.url)
            die()
            announcements.wait_for("ingested", PATIENCE_SECONDS)
            cutter.refuse()
            die()
            cutter.allow()
            announcements.wait_for("ingested", PATIENCE_SECONDS, count=2)
            wait_until(lambda: broker.ready(dead) == 0, PATIENCE_SECONDS, "the queue is empty")

            process.terminate()

            # A broker that was cut off may owe two answers, each of which is waited for so long.
            assert 0 == process.wait(3 * PATIENCE_SECONDS)
        assert [0] == [said["code"] for said in announcements.heard("summed_up")]
        assert 2 == len(scene.letters())

    def test_follower_waits_for_a_store_that_is_away(self, broker, die, start_ingest, announcements, dead, fresh_redis):
        """Its message goes back to the queue, and is taken when there is somebody to keep it."""
        process = start_ingest("--follow", store_url=fresh_redis.url)
        die()
        announcements.wait_for("ingested", PATIENCE_SECONDS)
        fresh_redis.stop()
        die()
        # While it holds the message it is not ready: back again, it was let go once at least.
        wait_until(lambda: broker.ready(dead) == 1, PATIENCE_SECONDS, "the message has come back")
        fresh_redis.start()

        announcements.wait_for("ingested", PATIENCE_SECONDS, count=2)
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(PATIENCE_SECONDS)


@pytest.mark.sqs
class TestSQS:
    @pytest.fixture
    def client(self, sqs_url):
        # Not there where the oldest versions are tested.
        import boto3

        where = {"endpoint_url": sqs_url.replace("sqs://key:secret@", "http://"), "region_name": "us-east-1"}
        with contextlib.closing(
            boto3.client("sqs", aws_access_key_id="key", aws_secret_access_key="secret", **where)
        ) as client:
            yield client

    @pytest.fixture
    def urls(self, client, namespace, dead):
        """URLs of the queue and of its dead-letter queue."""
        hidden = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
        dead_url = client.create_queue(QueueName=dead.replace(".", "-"), Attributes=hidden)["QueueUrl"]
        asked = client.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])
        redrive = {"deadLetterTargetArn": asked["Attributes"]["QueueArn"], "maxReceiveCount": str(LIMIT)}
        made = client.create_queue(QueueName=namespace, Attributes={**hidden, "RedrivePolicy": json.dumps(redrive)})
        yield made["QueueUrl"], dead_url
        for url in (made["QueueUrl"], dead_url):
            client.delete_queue(QueueUrl=url)

    @pytest.fixture
    def scene(self, sqs_url, urls, redis_url, namespace, request):
        need = {name: request.getfixturevalue(name) for name in ("gateway", "announcements", "start_worker")}
        options = broker_options(VISIBILITY_SECONDS)
        return Scene(
            broker_url=sqs_url, store_url=redis_url, namespace=namespace, broker_transport_options=options, **need
        )

    @pytest.fixture
    def die(self, scene, client, urls):
        """Have a charge received as often as its queue allows."""

        def die():
            task_id = scene.send("charge", "A0")
            queue, dead = urls
            for _ in range(LIMIT):
                found = lambda: client.receive_message(QueueUrl=queue, VisibilityTimeout=0).get("Messages")  # noqa: E731
                wait_until(found, PATIENCE_SECONDS, "it is received")

            def is_dead():
                client.receive_message(QueueUrl=queue, VisibilityTimeout=0)
                return count(client, dead) == (1, 0)

            wait_until(is_dead, PATIENCE_SECONDS, "it is dead")
            return task_id

        return die

    def test_what_sqs_gave_up_is_replayed_and_charges_once(self, scene, die, start_ingest, client, urls):
        """SQS says only how often somebody has received it: its outcome is unknown."""
        task_id = die()

        assert 0 == start_ingest().wait(PATIENCE_SECONDS)
        (letter,) = scene.letters()
        assert ("unknown_outcome", True, task_id) == (letter.kind, letter.effect_possible, letter.task_id)
        assert f"given up by queue {scene.app.conf.task_default_queue}: it was received as often as" in letter.reason
        assert ('order:"A0"', "faults.charge") == (letter.key, letter.scope)
        assert scene.app.conf.task_default_queue == letter.wire.delivery_info["routing_key"]
        assert "ReceiptHandle" not in repr(letter.wire)
        sent = replay(scene.app, letter.id, "ann")
        scene.worker()

        scene.wait_ended("succeeded", PATIENCE_SECONDS, task_id=sent.task_id)
        wait_until(lambda: [count(client, url) for url in urls] == [(0, 0)] * 2, PATIENCE_SECONDS, "both are empty")
        assert 1 == len(scene.gateway.charges("A0"))
        assert ["closed"] == [each.state for each in scene.letters()]

    def test_killed_between_letter_and_acknowledgement_it_is_one_letter(
        self, scene, die, start_ingest, announcements, client, urls
    ):
        """Kombu would have put it back into the queue that it first came from, beside the letter."""
        die()
        announcements.hold("ingested")
        process = start_ingest()
        announcements.wait_for("ingested", PATIENCE_SECONDS)
        process.kill()
        process.wait()
        announcements.open("ingested")
        wait_until(lambda: count(client, urls[1]) == (1, 0), PATIENCE_SECONDS, "the message has come back")

        assert 0 == start_ingest().wait(PATIENCE_SECONDS)
        assert [(0, 0)] * 2 == [count(client, url) for url in urls]
        assert 1 == len(scene.letters())

    def test_message_that_could_not_be_kept_goes_back_to_no_other_queue(
        self, die, start_ingest, client, urls, fresh_redis, tmp_path
    ):
        """A store that is away must not send the dead to work; where that fails, kombu writes them to a file."""
        fresh_redis.stop()
        die()

        assert 3 == start_ingest(store_url=fresh_redis.url).wait(PATIENCE_SECONDS)

        assert ((0, 0), 1) == (count(client, urls[0]), sum(count(client, urls[1])))
        assert not [log for log in tmp_path.glob("ingest-*.log") if "DUMP STATE" in log.read_text()]

    def test_queue_that_is_not_there_is_refused_and_not_made(self, scene, start_ingest, client, dead):
        """Kombu makes what it does not find, and a name that is mistyped would read as an empty queue."""
        assert 1 == start_ingest(f"{dead}-x").wait(PATIENCE_SECONDS)

        assert "QueueUrls" not in client.list_queues(QueueNamePrefix=f"{dead.replace('.', '-')}-x")


def count(client, url):
    """Return how many messages a queue has as `(visible, hidden)`."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return tuple(int(found[name]) for name in names)
