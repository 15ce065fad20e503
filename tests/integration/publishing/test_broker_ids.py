"""What a broker is told of an idempotency key: on first publishes only, and never where a duplicate must arrive."""

import contextlib

import pytest
from celery import Celery
from celery.signals import before_task_publish

from celery_safeguards import Idempotent, Safeguards, SafeTask
from celery_safeguards import headers as h
from celery_safeguards.pipeline.broker_ids import broker_ids, operation_id
from tests.support.bench import Bench

KEYED = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))


@pytest.fixture
def on_broker(namespace):
    """Make an app of a broker that is never asked, with one keyed task, and return that."""
    with contextlib.ExitStack() as stack:

        def make(broker_url, queue="orders.fifo", safeguards=KEYED):
            app = stack.enter_context(Celery(namespace, broker=broker_url, set_as_current=False))
            app.conf.update(task_default_queue=queue, safeguards_store_url="memory://")
            task = app.task(_body, name="op", shared=False, base=SafeTask, safeguards=safeguards)
            return app.tasks[task.name]

        yield make


def _body(number, note=""):
    return number


def ids(task, number=1, note="", **options):
    """Return what a publish of these arguments tells its broker."""
    return broker_ids(task.app, task.plan, task.key_headers((number, note), {}), options, (number, note), {})


@pytest.mark.parametrize("scheme", ["amqp", "amqps", "pyamqp"])
def test_rabbitmq_is_told_the_operation_as_message_id(on_broker, scheme):
    """Two publishes of one operation have one id, in every process."""
    task = on_broker(f"{scheme}://nowhere//")

    assert ids(task) == ids(task) == {"message_id": operation_id(task.plan, task.key_headers((1,), {}))}
    assert ids(task) != ids(task, number=2)


def test_sqs_fifo_queue_is_told_the_operation(on_broker):
    """Without it kombu makes a random one, and SQS drops nothing."""
    task = on_broker("sqs://")

    assert {"MessageDeduplicationId"} == set(ids(task))
    assert 64 == len(ids(task)["MessageDeduplicationId"])
    assert ids(task) == ids(task, queue="payments.fifo")


def test_queue_is_the_tasks_own_or_the_one_its_arguments_are_routed_to(on_broker):
    """A router that reads arguments, and is given none, would fail every publish."""

    def by_number(name, args, kwargs, options, task=None, **_):
        return {"queue": f"shard-{args[0] % 2}{'.fifo' if args[0] % 2 else ''}"}

    routed = on_broker("sqs://")
    routed.app.conf.task_routes = (by_number,)
    own = on_broker("sqs://", "orders")
    own.queue = "payments.fifo"

    assert {} == ids(routed, number=2)
    assert {"MessageDeduplicationId"} == set(ids(routed, number=1)) == set(ids(own))


def test_other_arguments_under_the_same_key_have_another_id(on_broker):
    """A conflict must arrive, to be refused aloud; SQS would drop it in silence."""
    task = on_broker("sqs://")

    assert ids(task, note="a") != ids(task, note="b")


@pytest.mark.parametrize("waiting", ["link", "chain", "chord", "group_id"])
def test_duplicate_that_something_waits_for_is_never_dropped_by_sqs(on_broker, waiting):
    """Its continuation would be gone with it."""
    assert {} == ids(on_broker("sqs://"), **{waiting: ["something"]})


def test_work_that_runs_anew_after_its_death_is_never_dropped_by_sqs(on_broker):
    """The new publication would vanish for five minutes."""
    runs_anew = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun", on_dead="run"))

    assert {} == ids(on_broker("sqs://", safeguards=runs_anew))


@pytest.mark.parametrize(("broker_url", "queue"), [("sqs://", "orders"), ("redis://nowhere", "orders.fifo")])
def test_other_queues_are_told_nothing(on_broker, broker_url, queue):
    """It would be bytes for nothing."""
    assert {} == ids(on_broker(broker_url, queue))


def test_id_of_the_caller_is_kept(on_broker):
    """Who gives one has their reasons."""
    task = on_broker("amqp://nowhere//")

    assert {} == ids(task, message_id="mine")


def test_first_publish_has_the_id_and_its_retry_has_none(namespace):
    """A retry with the id of its first publish would be dropped by the broker, and the work lost."""
    published = []

    def note(headers, properties, **_):
        published.append((headers["retries"], headers[h.KEY], properties.get("message_id")))

    with contextlib.closing(Bench(namespace)) as bench:
        # Read when a task is published; the bench's messages go through memory.
        task = bench.keyed(lambda self, number: self.retry(countdown=1) if self.request.retries == 0 else number)
        bench.app.connection_for_write = bench.app.connection_for_read
        bench.app.producer_pool  # noqa: B018 - made of the memory broker, before the URL says another
        bench.app.conf.broker_write_url = "amqp://nowhere//"
        before_task_publish.connect(note)
        try:
            task.delay(1)
            bench.drain()
        finally:
            before_task_publish.disconnect(note)

    first, again = published
    assert (0, "op:1", operation_id(task.plan, task.key_headers((1,), {}))) == first
    assert (1, "op:1", None) == again
