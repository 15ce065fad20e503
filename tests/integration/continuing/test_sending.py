"""
What follows a keyed success is sent at least once, by whoever is first: killed, refused or away between two steps.

Canvases on real workers, with chords and killed processes, are elsewhere (`tests/acceptance/test_canvas.py`).
"""

import os

from celery import chain

from celery_safeguards import Happened, Safeguards, Verify
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.ledger.record import State
from celery_safeguards.worker.keeper import Keeper
from tests.integration.continuing.between_steps import at_mark, at_success, die, refusing_broker, returning
from tests.support.bench import LEASE_SECONDS, Killed


def test_kill_before_the_send_is_followed_by_the_send(bench, last, seen):
    """The rest of the chain would be lost between the record and the broker."""
    chain(returning(bench, "paid").s(1), last.s()).apply_async()

    with at_success(die):
        bench.drain()

    assert ["paid"] == seen


def test_kill_before_the_mark_sends_once_more_under_the_same_parent(bench, last, seen):
    """The stated limit; whoever looks must see that the two are one."""
    returning(bench, "paid").apply_async((1,), link=last.s())

    with at_mark(bench, Killed()):
        sent = [each.message for each in bench.drain()]

    assert ["paid", "paid"] == seen
    first, second = (each for each in sent if each.headers["task"] == last.name)
    assert first.headers["parent_id"] == second.headers["parent_id"]


def test_keyed_link_that_is_sent_twice_runs_once(bench):
    """Killed between send and mark, a link that takes money would take it twice."""
    runs = []
    linked = bench.keyed(lambda self, value, number: runs.append(number))
    returning(bench, "paid").apply_async((1,), link=linked.s(7))

    with at_mark(bench, Killed()):
        bench.drain()

    assert [7] == runs


def test_mark_that_cannot_be_written_changes_nothing_of_the_success(bench, last, seen):
    """An outage after the send would put the message back and send again, although this process knows better."""
    returning(bench, "paid").apply_async((1,), link=last.s())

    with at_mark(bench, StoreUnavailable("away")):
        first, _link = bench.drain()

    assert ("acknowledged", "SUCCESS") == (first.fate, first.state)
    assert ["paid"] == seen


def test_second_delivery_after_the_mark_sends_nothing(bench, last, seen):
    """A broker that delivers twice would do the rest of the chain twice."""
    task = returning(bench, "paid")
    sent = task.apply_async((1,), link=last.s())
    task.apply_async((1,), link=last.s(), task_id=sent.id)

    bench.drain()

    assert ["paid"] == seen


def test_second_delivery_between_the_success_and_its_mark_sends_nothing(bench, last, seen):
    """A copy that comes while the first one sends would send too, although no process has died."""
    task = returning(bench, "paid")
    sent = task.apply_async((1,), link=last.s())
    task.apply_async((1,), link=last.s(), task_id=sent.id)

    with at_success(bench.deliver):
        bench.drain()

    assert ["paid"] == seen


def test_marks_of_two_publications_do_not_overwrite_each_other(bench, last, seen):
    """The second delivery of one of them would find no mark, and do the rest of its chain again."""
    task = returning(bench, "paid")
    task.apply_async((1,), link=last.s())
    other = task.apply_async((1,), link=last.s())

    with at_success(bench.deliver):
        bench.drain()
    task.apply_async((1,), link=last.s(), task_id=other.id)
    bench.drain()

    assert ["paid"] * 2 == seen


def test_other_publication_of_the_same_work_continues_its_own_canvas(bench, last, seen):
    """Its chain would wait for ever for a task that ran under another id."""
    task = returning(bench, "paid")
    for _ in range(3):
        chain(task.s(1), last.s()).apply_async()

    bench.drain()

    assert ["paid"] * 3 == seen


def test_refused_continuation_keeps_the_message(bench, last, seen):
    """The finished payment would be shown as failed, and the rest of its chain be gone."""
    task = returning(bench, "paid")
    chain(task.s(1), last.s()).apply_async()

    with refusing_broker(bench):
        delivered = bench.deliver()

    assert ("kept", "PENDING", State.DONE) == (delivered.fate, delivered.state, bench.record(task, 1).state)
    assert not bench.all_letters()
    delivered.message.requeue()
    bench.drain()
    assert ["paid"] == seen


def test_continuation_that_was_refused_half_way_is_sent_as_a_whole(bench, last, seen):
    """The links before the refusal would be the only ones, or the chain after it be lost."""
    linked = bench.keyed(lambda self, value, number: seen.append((number, value)))
    task = returning(bench, "paid")
    signature = task.s(1)
    signature.link(linked.s(1))
    signature.link(linked.s(2))
    chain(signature, last.s()).apply_async()

    with refusing_broker(bench, after=1):
        delivered = bench.deliver()
    delivered.message.requeue()
    bench.drain()

    assert ["paid", (1, "paid"), (2, "paid")] == sorted(seen, key=repr)


def test_unkeyed_task_whose_continuation_is_refused_is_kept_too(bench, last, seen):
    """Late acknowledgement would acknowledge, and the chain be gone."""
    task = bench.task(lambda self, number: number, Safeguards(repeatable=True))
    chain(task.s(1), last.s()).apply_async()

    with refusing_broker(bench):
        delivered = bench.deliver()

    assert ("kept", "PENDING") == (delivered.fate, delivered.state)
    delivered.message.requeue()
    bench.drain()
    assert [1] == seen


def test_refused_continuation_of_an_acknowledged_message_becomes_a_letter(bench, last, seen):
    """Acknowledged before its body ran, it does not come back: the rest of its chain would be gone without a trace."""
    task = bench.task(lambda self, number: number, Safeguards(at_most_once=True))
    chain(task.s(1), last.s()).apply_async()

    with refusing_broker(bench):
        bench.deliver()

    (letter,) = bench.all_letters()
    assert letter.id.startswith("continuation-")
    assert [] == seen


def test_result_that_verify_reports_is_passed_on(bench, last, seen):
    """A payment that is found at the other side would end its chain there."""

    def body(self, number):
        raise Killed

    task = bench.keyed(body, Verify(lambda number: Happened("found"), after_seconds=0))
    chain(task.s(1), last.s()).apply_async()

    bench.drain()

    assert ["found"] == seen


def test_mark_costs_one_round_trip_and_only_where_something_follows(bench, last):
    """The stated price; every task without a canvas would pay it."""
    task = returning(bench, "paid")
    task.apply_async((1,))
    task.apply_async((2,), link=last.s())
    bench.store.calls.clear()

    bench.deliver()
    alone = list(bench.store.calls)
    bench.store.calls.clear()
    bench.deliver()

    assert ["admit", "settle"] == alone
    assert ["admit", "settle", "end_continuing"] == bench.store.calls


def test_child_that_still_sends_what_follows_is_not_ended_with_its_lease(bench):
    """A broker that answers slowly would cost a child, and whatever task that child runs by then."""
    ended = []
    keeper = Keeper(bench.wiring, ended.append)

    def body(self, number):
        owner, key = bench.record(self, number).owner, self.plan.record_key("op:1")
        keeper.keep(owner, key, self.request.id, os.getpid(), budget_seconds=3600.0)
        keeper.tick()

    bench.keyed(body).delay(1)

    bench.deliver()
    for _ in range(5):
        bench.clock.sleep(LEASE_SECONDS / 3)
        keeper.tick()

    assert [] == ended
