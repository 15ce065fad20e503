"""
A shop whose tasks die on command, and what becomes of their messages and letters.

A message is taken from its queue and run in this process, as a worker's pool child runs it.
"""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

from celery import Celery

from celery_safeguards import DidNotHappen, Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from celery_safeguards._redis import Keys
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.request import SafeRequest
from tests.support.apps import queue_settings


def make_app(broker_url, store_url, namespace, **settings):
    app = Celery("shop", broker=broker_url, set_as_current=False)
    app.conf.update(queue_settings(namespace))
    app.conf.update(
        safeguards_store_url=store_url,
        safeguards_namespace=namespace,
        task_publish_retry_policy={"max_retries": 0},
        **settings,
    )
    return app


def make_shop(app):
    """Return tasks that fail while `shop.error` is set, and what they did."""
    world = SimpleNamespace(app=app, error=None, ran=[], verdict=DidNotHappen(), asked=[])

    def body(name, **arguments):
        world.ran.append((name, arguments))
        if world.error is not None:
            raise world.error
        return arguments

    def find(order_id):
        world.asked.append(order_id)
        return world.verdict

    once = RetryPolicy(attempts=1)

    @app.task(shared=False, base=SafeTask, name="shop.note", safeguards=Safeguards(repeatable=True, retry=once))
    def note(**arguments):
        return body("note", **arguments)

    @app.task(shared=False, base=SafeTask, name="shop.mail", safeguards=Safeguards(retry=once))
    def mail(**arguments):
        return body("mail", **arguments)

    @app.task(
        shared=False,
        base=SafeTask,
        name="shop.charge",
        safeguards=Safeguards(
            idempotent=Idempotent("order:{order_id}", on_unknown="quarantine", quiet_seconds=0), retry=once
        ),
    )
    def charge(order_id):
        return body("charge", order_id=order_id)

    @app.task(
        shared=False,
        base=SafeTask,
        name="shop.pay",
        safeguards=Safeguards(
            idempotent=Idempotent("payment:{order_id}", on_unknown=Verify(find, after_seconds=0)), retry=once
        ),
    )
    def pay(order_id):
        return body("pay", order_id=order_id)

    @app.task(
        shared=False,
        base=SafeTask,
        name="shop.note_once",
        safeguards=Safeguards(idempotent=Idempotent("note:{order_id}", on_unknown="rerun"), retry=once),
    )
    def note_once(order_id):
        return body("note_once", order_id=order_id)

    world.note, world.mail, world.charge, world.pay, world.note_once = note, mail, charge, pay, note_once
    return world


VALUES = {
    "yes": True,
    "nothing": None,
    "nested": {"a": [1, {"b": [None, False, 0.1]}], "empty": {}},
    "text": 'quotes " \\ ünïcode \u2028 ' + "x" * 2048,
    "at": datetime(2025, 3, 1, 12, 30, 5, 123456, tzinfo=UTC),
    "id": uuid.UUID("5c1f8a3e-0000-4000-8000-000000000001"),
    "amount": Decimal("10.10"),
    "raw": b"\x00\xff",
}


def queued(app, queue=None):
    """Return how many messages wait."""
    name = queue or app.conf.task_default_queue
    with app.connection_for_read() as connection:
        return connection.default_channel.client.llen(name)


def held(app):
    """Return how many messages are taken and not acknowledged."""
    with app.connection_for_read() as connection:
        return connection.default_channel.client.hlen("unacked")


def take(app):
    """Take one message from the queue; None: there is none."""
    with app.connection_for_read() as connection:
        queue = app.amqp.queues[app.conf.task_default_queue]
        return queue(connection.default_channel).get(no_ack=True, accept=app.conf.accept_content)


def run(app, message=None):
    """Run one message as a pool child does, and return what the task returned or how it failed."""
    message = take(app) if message is None else message
    request = SafeRequest(message, app=app, task=app.tasks[message.headers["task"]], hostname="w1")
    return request.execute()


def run_failing(app):
    """Run one message that fails, and return with what."""
    message = take(app)
    failed = run(app, message)
    return failed.exception if hasattr(failed, "exception") else failed


def die(shop, task, error=None, options=None, **arguments):
    """Publish a task, let it die, and return its letter."""
    shop.error = error or ValueError("no such order")
    sent = task.apply_async(kwargs=arguments, **(options or {}))
    run(shop.app)
    shop.error = None
    shop.ran.clear()
    page = Wiring.of(shop.app).letters.list(state="open", limit=100)
    return next(letter for letter in page.letters if letter.task_id == sent.id)


def copied(shop, **changes):
    """Return the letter of another message, which came by another way."""
    letter = die(shop, shop.note, a=1)
    fields = {name: getattr(letter, name) for name in Letter.__dataclass_fields__}
    other = Letter(**{**fields, "id": f"{letter.id}-2", "wire": replace(letter.wire, **changes)})
    Wiring.of(shop.app).letters.bury(other)
    return other


def forget_record(client, namespace, letter):
    """Lose a letter's record, as a store that is restored from an old copy does."""
    assert client.delete(Keys(namespace).record(letter.scope, letter.key)) == 1


def stored(shop, letter):
    return Wiring.of(shop.app).letters.get(letter.id)


def unmark(shop, letter):
    """Put the letter back to where it stood between the publish and the mark."""
    Wiring.of(shop.app).letters._apply(letter.id, lambda kept: replace(kept, state="replaying"))
