"""
What intake takes for granted of Celery and kombu beneath their documented surface.

Each test is one fact. A release that changes one fails here by name, before it fails somewhere as a lost message.
"""

import inspect
import threading

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu.asynchronous import Hub
from kombu.message import Message

from celery_safeguards import SafeTask
from celery_safeguards._compat import (
    INTAKE_HOOKS,
    is_raised_by_building_a_request,
    keep_undecodable_bodies,
    run_what_waits,
)
from celery_safeguards.worker.errands import errands_of
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 10


@pytest.fixture
def app(namespace):
    """An app with a broker in memory."""
    with Celery(namespace, broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        app.conf.update(task_default_queue=namespace, safeguards_store_url="memory://")
        yield app


def test_consumer_has_the_methods_that_intake_stands_before():
    """Missing ones are Celery's again, and what they give up is lost."""
    parameters = {name: [*inspect.signature(getattr(Consumer, name)).parameters] for name in INTAKE_HOOKS}

    assert {
        "on_unknown_message": ["self", "body", "message"],
        "on_unknown_task": ["self", "body", "message", "exc"],
        "on_invalid_task": ["self", "body", "message", "exc"],
        "on_decode_error": ["self", "message", "exc"],
        "create_task_handler": ["self", "promise"],
    } == parameters
    assert callable(Consumer.call_soon)


def test_running_consumer_gives_messages_up_by_attributes_of_itself(app):
    """Methods that were bound once, when the class was made, could not be stood before."""

    @app.task(name="facts.guarded", base=SafeTask, shared=False)
    def guarded():
        return None

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30) as worker:
        consumer = worker.consumer
        stood_before = [name for name in INTAKE_HOOKS if name in vars(consumer)]
        on_decode_error = consumer.task_consumer.on_decode_error

    assert [*INTAKE_HOOKS] == stood_before
    assert on_decode_error == vars(consumer)["on_decode_error"]


def test_error_of_a_request_that_is_built_is_told_from_all_others(app):
    """Taken for the broker's, it is a lost connection, again and again; taken for the message's, a lost one is none."""

    def told(build):
        try:
            build()
        except Exception as error:
            return is_raised_by_building_a_request(error)
        return None

    without_id = Message(b"[[], {}, {}]", content_type="application/json", headers={"task": "x"})

    assert told(lambda: Request(without_id, app=app)) is True
    assert told(lambda: {}["id"]) is False


def test_body_that_cannot_be_decoded_is_handed_over_with_its_error(app, namespace):
    """Kombu makes the message before it notes that it was taken: an error there loses it, and ends the loop."""
    handed, tag = [], {"delivery_tag": "1", "body_encoding": "base64", "delivery_info": {}}
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        with pytest.raises(ValueError, match="base64"):
            channel.Message({"body": "abcde", "headers": {}, "properties": tag}, channel=channel)

        keep_undecodable_bodies(channel)
        kept = type(channel).Message
        consumer = app.amqp.TaskConsumer(channel, on_decode_error=lambda *args: handed.append(args))
        consumer._receive_callback(channel.Message({"body": "abcde", "headers": {"a": 1}, "properties": tag}, channel))
        whole = channel.Message({"body": "YQ==", "headers": {}, "properties": tag}, channel=channel)
        keep_undecodable_bodies(channel)

        ((message, error),) = handed
        assert ("abcde", {"a": 1}, "1") == (message.body, message.headers, message.delivery_tag)
        assert isinstance(error, ValueError)
        assert (b"a", []) == (whole.body, whole.errors)
        assert kept is type(channel).Message
        assert channel.Message.__mro__.count(kept) == 1


def test_hub_takes_callbacks_from_other_threads_and_leaves_the_rest_to_be_run():
    """What a store has answered in a thread comes back by it; at a shutdown it is done by hand."""
    hub, done = Hub(), []
    thread = threading.Thread(target=lambda: hub.call_soon(done.append, "late"))
    thread.start()
    thread.join()

    run_what_waits(hub)
    run_what_waits(None)
    hub.close()

    assert ["late"] == done


def test_what_follows_from_the_last_errand_is_done_without_a_loop(app):
    """A pool of greenlets has no hub: what is to be acknowledged waits with the consumer, which looked before."""

    @app.task(name="facts.guarded", base=SafeTask, shared=False)
    def guarded():
        return None

    done = []
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30) as worker:
        consumer = worker.consumer
        errands_of(app).run(
            lambda: wait_until(lambda: errands_of(app) is None, PATIENCE_SECONDS, "the worker is shut down"),
            lambda _: consumer.call_soon(done.append, "late"),
            pytest.fail,
        )

    assert ["late"] == done
