"""
What an atomic body publishes: sent after its COMMIT, all of it, or none of it is.
"""

import pytest
from celery import chain, current_app, group, signature
from django.db import transaction
from kombu import Exchange, Queue

from celery_safeguards import Safeguards
from celery_safeguards.ledger.record import State
from django_celery_safeguards import SafeTask, publish_on_commit


def test_children_are_sent_after_the_commit(bench, child):
    """Sent before it, they run ahead of what they need, or after a rollback of what never was."""

    def body(self, number):
        bench.has_effect(number)
        child.delay(1)
        child.delay(2)
        assert 0 == bench.waiting()

    task = bench.atomic(body)
    task.delay(7)
    bench.deliver()

    assert 2 == bench.waiting()
    bench.drain()
    assert [1, 2] == child.got
    assert () == bench.record(task, 7).publishes


def test_children_of_a_failed_attempt_are_never_sent(bench, child):
    """The retry sends them once more."""
    starts = []

    def body(self, number):
        starts.append(number)
        child.delay(len(starts))
        if len(starts) == 1:
            raise ConnectionError("down")

    bench.atomic(body).delay(7)
    bench.drain()

    assert [2] == child.got


def test_child_of_a_savepoint_that_was_rolled_back_is_not_sent(bench, child):
    """It would act on rows that are not there."""

    def body(self, number):
        child.delay("before")
        with transaction.atomic(using=bench.alias):
            child.delay("inside")
            transaction.set_rollback(True, using=bench.alias)
        child.delay("after")

    bench.atomic(body).delay(7)
    bench.drain()

    assert ["before", "after"] == child.got


def test_what_is_published_on_commit_is_kept_as_well(bench, killed_before_it_sends):
    """A hook after the COMMIT dies with its process."""
    got = []

    @bench.app.task(base=SafeTask, shared=False, safeguards=Safeguards(repeatable=True))
    def child(number):
        got.append(number)

    def body(self, number):
        assert child.apply_async_on_commit((1,), using=bench.alias).id
        publish_on_commit(child.s(2), using=bench.alias)
        with transaction.atomic(using=bench.alias):
            child.apply_async_on_commit((3,), using=bench.alias)
            transaction.set_rollback(True, using=bench.alias)

    bench.atomic(body).delay(7)
    bench.deliver()
    assert 1 == bench.waiting()

    bench.drain()

    assert [1, 2] == got


def test_what_is_published_on_commit_by_its_name_is_kept_as_well(bench, child, killed_before_it_sends):
    """A signature by name knows its app by Celery's proxy: it was sent by a hook, which dies with its process."""

    def body(self, number):
        publish_on_commit(signature(child.name, (1,)), using=bench.alias)
        publish_on_commit(group(signature(child.name, (2,))), using=bench.alias)

    before = current_app._get_current_object()
    bench.app.set_current()
    try:
        bench.atomic(body).delay(7)
        bench.deliver()
        assert 1 == bench.waiting()
        assert [] == child.got
        bench.drain()
    finally:
        before.set_current()

    assert [1, 2] == child.got


def test_the_result_of_a_publish_knows_its_task(bench, child):
    """The body could not note whom it has asked."""
    ids = []

    def body(self, number):
        ids.append(child.delay(1).id)

    bench.atomic(body).delay(7)
    bench.deliver()

    assert ids == [bench.receive().headers["id"]]


def test_every_way_to_publish_is_kept(bench, child):
    """One that is not would be sent by a body that is rolled back."""

    def body(self, number):
        child.apply_async(("task",), countdown=0.01, priority=3, headers={"mine": "yes"})
        child.s("signature").apply_async()
        bench.app.send_task(child.name, ("by name",))
        group(child.s("first"), child.s("second")).apply_async()
        chain(child.si("head"), child.si("tail")).apply_async()
        assert 0 == bench.waiting()

    bench.atomic(body).delay(7)
    bench.deliver()

    message = bench.receive()
    assert ("yes", 3) == (message.headers["mine"], message.properties["priority"])
    message.requeue()
    bench.drain()
    assert {"task", "signature", "by name", "first", "second", "head", "tail"} == set(child.got)


def test_keyed_child_is_published_with_its_key(bench):
    """A child that is sent twice, killed in between, could not be told from another."""
    runs = []

    def keyed_body(self, number):
        runs.append(number)

    keyed = bench.keyed(keyed_body)

    def body(self, number):
        keyed.delay(8)

    bench.atomic(body).delay(7)
    bench.drain()

    assert ([8], State.DONE) == (runs, bench.record(keyed, 8).state)


def test_what_the_body_changes_later_is_not_in_the_message(bench, child):
    """The child would get what its parent had at the end, not what it was given."""

    def body(self, number):
        given = {"lines": [1]}
        child.delay(given)
        given["lines"].append(2)

    bench.atomic(body).delay(7)
    bench.drain()

    assert [{"lines": [1]}] == child.got


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_message_is_what_it_would_have_been(bench, child, serializer):
    """A body in another encoding would be undecodable to its worker."""

    def body(self, number):
        child.apply_async((number,), {"text": "ünï", "none": None}, serializer=serializer)

    bench.atomic(body).delay(7)
    child.apply_async((7,), {"text": "ünï", "none": None}, serializer=serializer)
    direct = bench._queue.get(accept=["json", "pickle"])
    if direct.headers["task"] != child.name:
        direct.requeue()
        direct = bench._queue.get(accept=["json", "pickle"])
    bench.deliver()
    kept = bench._queue.get(accept=["json", "pickle"])

    assert direct.payload == kept.payload
    assert (direct.content_type, direct.content_encoding) == (kept.content_type, kept.content_encoding)
    differing = {"id", "root_id", "parent_id", "origin", "sg_marks"}
    assert {name: value for name, value in direct.headers.items() if name not in differing} == {
        name: value for name, value in kept.headers.items() if name not in differing
    }


def test_queue_that_the_app_does_not_know_fails_the_body(bench, child):
    """After the COMMIT nobody could answer for it."""
    bench.app.conf.task_create_missing_queues = False
    bench.app.amqp.__dict__.pop("queues", None)

    def body(self, number):
        bench.has_effect(number)
        child.apply_async((1,), queue=Queue("elsewhere", Exchange("elsewhere")))

    bench.atomic(body, retry=None).delay(7)

    assert ("FAILURE", []) == (bench.deliver().state, bench.effects())
