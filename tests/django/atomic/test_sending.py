"""
Sending what an atomic body has published, after a broker that was down, a process that was killed, or another end.
"""

import contextvars
import threading

from celery import Celery, chord
from celery.exceptions import Ignore
from kombu import Connection
from kombu.exceptions import OperationalError

from celery_safeguards import Idempotent, Safeguards
from celery_safeguards.cli.keys import shown
from celery_safeguards.ledger.record import State


def test_broker_that_is_down_does_not_fail_the_body(bench, child, monkeypatch):
    """Its effect would be rolled back for what a redelivery can mend."""
    send, down = bench.app.amqp.send_task_message, []

    def send_if_up(producer, name, message, **options):
        if down:
            raise OperationalError("the broker is down")
        return send(producer, name, message, **options)

    monkeypatch.setitem(bench.app.amqp.__dict__, "send_task_message", send_if_up)

    def body(self, number):
        bench.has_effect(number)
        down.append(True)
        child.delay(1)

    task = bench.atomic(body)
    task.delay(7)
    first = bench.deliver(worker_dies=True)
    assert (["kept", [7]], 1) == ([first.fate, bench.effects()], len(bench.record(task, 7).publishes))

    down.clear()
    bench.store.mark_lost(task.plan.record_key("op:7"), bench.record(task, 7).owner, {})
    bench.drain()

    assert ([1], [7]) == (child.got, bench.effects())
    assert () == bench.record(task, 7).publishes


def test_children_that_a_killed_worker_has_not_sent_are_sent_by_its_redelivery(bench, child, killed_before_it_sends):
    """Between COMMIT and `on_commit` they would be lost, and nobody would know."""

    def body(self, number):
        bench.has_effect(number)
        child.delay(1)

    task = bench.atomic(body)
    task.delay(7)
    bench.deliver()
    assert (State.DONE, [], [7]) == (bench.record(task, 7).state, child.got, bench.effects())
    assert 1 == shown(bench.record(task, 7), 0)["unsent_publishes"]

    bench.drain()

    assert ([1], [7]) == (child.got, bench.effects())


def test_children_of_a_body_that_ends_by_ignore_are_sent_by_its_redelivery(bench, child, killed_before_it_sends):
    """`replace` publishes, and ends so: the work that took its place would be lost."""

    def body(self, number):
        child.delay(1)
        raise Ignore("handed on")

    bench.atomic(body).delay(7)
    bench.deliver()
    bench.drain()

    assert [1] == child.got


def test_children_are_sent_also_where_the_result_is_not_stored(bench, child, killed_before_it_sends):
    """A task that waits for the result gets a letter in its place; the children wait for nothing."""

    def body(self, number):
        child.delay(1)
        return number

    key = Idempotent("op:{number}", atomic=bench.alias, store_result=False)
    task = bench.task(body, Safeguards(idempotent=key))
    task.apply_async((7,), link=child.s())
    bench.deliver()
    bench.drain()

    (letter,) = bench.all_letters()
    assert ([1], (), "unstored") == (child.got, bench.record(task, 7).publishes, letter.id.partition("-")[0])


def test_member_of_a_chord_that_replaces_itself_is_replaced_once(bench, child):
    """Each later duplicate would send the replacement again: Celery reports no end that could be marked."""

    def body(self, number):
        raise self.replace(child.si(number))

    task = bench.atomic(body)
    chord([task.s(7)])(child.si("the chord's body"))
    bench.drain()
    task.delay(7)
    bench.drain()

    assert ([7, "the chord's body"], ()) == (child.got, bench.record(task, 7).publishes)


def test_task_that_replaces_itself_is_replaced_once(bench, child):
    """The commit belongs to the replacement as well."""

    def body(self, number):
        bench.has_effect(number)
        raise self.replace(child.si(number))

    bench.atomic(body).delay(7)
    bench.drain()

    assert ([7], [7]) == (child.got, bench.effects())


def test_link_follows_an_atomic_task(bench, child):
    """What waits for its result would wait for ever."""

    def body(self, number):
        bench.has_effect(number)
        child.delay("published")
        return number + 1

    task = bench.atomic(body)
    task.apply_async((7,), link=child.s())
    bench.drain()

    assert ["published", 8] == child.got


def test_another_apps_publish_is_not_kept(bench):
    """README says so: it cannot be sent by this app's worker."""
    with Celery("other", broker="memory://", set_as_current=False) as other:
        other.conf.task_default_queue = f"{bench.namespace}-other"

        def body(self, number):
            other.send_task("elsewhere", (number,))
            with other.connection_for_read() as connection:
                queue = other.amqp.queues[other.conf.task_default_queue](connection.default_channel)
                assert queue.get(no_ack=True) is not None

        bench.atomic(body, retry=None).delay(7)

        assert "SUCCESS" == bench.deliver().state


def test_publish_to_another_broker_is_sent_at_once(bench, child):
    """Kept, it would be sent to the app's own."""
    with Connection("memory://elsewhere") as elsewhere:

        def body(self, number):
            child.apply_async((number,), connection=elsewhere)
            # In memory all brokers are one.
            assert 1 == bench.waiting()

        bench.atomic(body, retry=None).delay(7)

        assert "SUCCESS" == bench.deliver().state


def test_another_threads_publish_is_sent_at_once(bench, child):
    """Such a thread has the body's context, but not its transaction: the message would be nowhere."""

    def body(self, number):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(child.delay, number))
        thread.start()
        thread.join()
        assert 1 == bench.waiting()

    bench.atomic(body).delay(7)
    bench.drain()

    assert [7] == child.got


def test_body_that_ends_by_ignore_keeps_no_right_and_marks_nothing(bench, child):
    """What waits for it went on with what it handed on: marked, a duplicate would take that for sent."""

    def body(self, number):
        raise Ignore("handed on")

    task = bench.atomic(body)
    task.apply_async((7,), link=child.s())
    bench.drain()

    record = bench.record(task, 7)
    assert ((), "", []) == (record.continued_by, record.continuing, child.got)
