"""
What follows a keyed success, step by step: sent at least once, by whoever is first, and with the right value or none.

Real messages on a bench: a kill or an outage comes exactly between two steps. Canvases on real workers, with chords
and killed processes, are elsewhere (`tests/acceptance/test_canvas.py`).
"""

import contextlib
import os

import pytest
from celery import chain, chord
from celery.exceptions import Ignore, OperationalError

from celery_safeguards import Happened, Outcome, Safeguards, Verify
from celery_safeguards.errors import DeadLettered, StoreUnavailable
from celery_safeguards.ledger.record import ResultForm, State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.signals import delivery_ended
from celery_safeguards.worker.keeper import Keeper
from tests.integration.test_pipeline_memory import LEASE_SECONDS, Bench, Killed

MAX_RESULT_BYTES = 100
LARGE = "x" * (MAX_RESULT_BYTES + 1)


@pytest.fixture
def bench(namespace):
    """A bench of its own queue."""
    with contextlib.closing(Bench(namespace, safeguards_max_result_bytes=MAX_RESULT_BYTES)) as bench:
        yield bench


@pytest.fixture
def seen():
    """What the last tasks of the canvases were given."""
    return []


@pytest.fixture
def last(bench, seen):
    """A task without a key at the end of a canvas."""

    def note(self, value):
        seen.append(value)
        return "noted"

    return bench.task(note, Safeguards(repeatable=True))


def returning(bench, value, **options):
    """Register a keyed task that returns a value."""
    return bench.keyed(lambda self, number: value, **options)


@contextlib.contextmanager
def at_success(act):
    """Act once, directly after the outcome is recorded and before anything that follows is sent."""
    left = [act]

    def listen(outcome, **_):
        if outcome is Outcome.SUCCEEDED and left:
            left.pop()()

    delivery_ended.connect(listen, weak=False)
    try:
        yield
    finally:
        delivery_ended.disconnect(listen)


@contextlib.contextmanager
def at_mark(bench, error):
    """Raise once, directly after what follows is sent and before it is marked."""
    mark, left = bench.store.end_continuing, [error]

    def mark_unless_killed(*args):
        if left:
            raise left.pop()
        return mark(*args)

    bench.store.end_continuing = mark_unless_killed
    try:
        yield
    finally:
        del bench.store.end_continuing


@contextlib.contextmanager
def refusing_broker(bench, *, after=0):
    """Let the broker take this many messages more, and refuse the next ones."""
    send, taken = bench.app.amqp.send_task_message, []

    def refuse(*args, **kwargs):
        if len(taken) >= after:
            raise OperationalError("nobody listens")
        taken.append(args)
        return send(*args, **kwargs)

    bench.app.amqp.send_task_message = refuse
    try:
        yield
    finally:
        bench.app.amqp.send_task_message = send


def die():
    raise Killed


# --- killed, refused, away


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


# --- what is passed on

FORMS = {
    ResultForm.WITHHELD: ("secret", {"store_result": False}),
    ResultForm.TOO_LARGE: (LARGE, {}),
}


@pytest.fixture(params=FORMS)
def unstored(request, bench):
    """A task whose result is not stored, and that result."""
    value, idempotent = FORMS[request.param]
    task = returning(bench, value, idempotent=idempotent)
    task.value, task.form = value, request.param
    return task


def canvas_of(how, task, last):
    """Publish a task with something that waits for its result."""
    match how:
        case "link":
            return task.apply_async((1,), link=last.s())
        case "chain":
            return chain(task.s(1), last.s()).apply_async()
        case _:
            return chord([task.s(1)], last.s()).apply_async()


@pytest.mark.parametrize("how", ["link", "chain", "chord"])
def test_first_run_passes_on_a_result_that_is_not_stored(bench, unstored, last, seen, how):
    """A secret or a large result would stop every chain it stands in."""
    canvas_of(how, unstored, last)

    bench.drain()

    assert [[unstored.value] if how == "chord" else unstored.value] == seen


@pytest.mark.parametrize("how", ["link", "chain", "chord"])
def test_duplicate_whose_result_is_not_stored_becomes_a_letter_where_something_waits_for_it(
    bench, unstored, last, seen, how
):
    """The next task would be given None, or a marker, and take it for the result."""
    unstored.delay(1)
    bench.drain()

    canvas_of(how, unstored, last)
    duplicate = bench.deliver()
    bench.drain()

    assert [] == seen
    (letter,) = bench.all_letters()
    assert (f"unstored-{duplicate.task_id}", FailureKind.DATA) == (letter.id, letter.kind)
    assert ("FAILURE", DeadLettered, letter.id) == (
        duplicate.state,
        type(duplicate.result),
        duplicate.result.letter_id,
    )
    assert State.DONE is bench.record(unstored, 1).state


def test_duplicate_whose_result_is_not_stored_gets_a_marker_where_nothing_waits_for_it(bench, unstored):
    """A caller who only wants the work done would be told that it failed."""
    unstored.delay(1)
    unstored.delay(1)

    _first, duplicate = bench.drain()

    assert ("SUCCESS", {"sg_result": unstored.form, "key": "op:1"}) == (duplicate.state, duplicate.result)
    assert not bench.all_letters()


def test_kill_before_an_unstored_result_is_sent_becomes_a_letter(bench, unstored, last, seen):
    """The value died with its process: to send None in its place would be a lie."""
    chain(unstored.s(1), last.s()).apply_async()

    with at_success(die):
        *_lost, second = bench.drain()

    (letter,) = bench.all_letters()
    assert ([], "FAILURE", letter.id) == (seen, second.state, second.result.letter_id)


class Receipt:
    """A result that JSON cannot carry, and pickle can."""

    def __eq__(self, other):
        return isinstance(other, Receipt)

    __hash__ = object.__hash__


def test_result_that_only_the_tasks_own_serializer_carries_is_passed_on_by_the_first_run(bench, last):
    """A team that uses pickle would lose its chains by adding a key."""
    task = returning(bench, Receipt())
    task.ignore_result = True
    task.apply_async((1,), link=last.s().set(serializer="pickle"))

    bench.deliver()

    message = bench._queue.get(accept=["pickle"])
    message.ack()
    assert (Receipt(),) == tuple(message.payload[0])
    assert ResultForm.NOT_ENCODABLE is bench.record(task, 1).result_form


def test_result_that_cannot_be_sent_on_becomes_a_letter_and_the_work_stays_done(bench, last, seen):
    """The failure of the send would read as a failure of the payment, and somebody would make it again."""
    task = returning(bench, Receipt())
    task.apply_async((1,), link=last.s())

    (only,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (f"continuation-{only.task_id}", False) == (letter.id, letter.effect_possible)
    assert ("acknowledged", "FAILURE", letter.id) == (only.fate, only.state, only.result.letter_id)
    assert State.DONE is bench.record(task, 1).state
    assert [] == seen


def test_message_whose_continuation_letter_cannot_be_written_is_kept(bench, last):
    """Acknowledged, neither the continuation nor its letter would exist."""
    returning(bench, Receipt()).apply_async((1,), link=last.s())

    with at_success(lambda: bench.letters.pull(60)):
        delivered = bench.deliver()

    assert ("kept", "PENDING") == (delivered.fate, delivered.state)


def test_none_is_a_result_like_any_other(bench, last, seen):
    """A body that returns nothing would end its chain at the first duplicate."""
    task = returning(bench, None)
    for _ in range(2):
        chain(task.s(1), last.s()).apply_async()

    bench.drain()

    assert [None, None] == seen


# --- handed on by the body


def replacing(bench, with_signature):
    """Register a keyed task that replaces itself."""
    return bench.keyed(lambda self, number: self.replace(with_signature))


def test_task_that_replaces_a_keyed_one_continues_its_canvas_once(bench, last, seen):
    """The rest of the chain would be sent twice, or by the wrong one."""
    other = bench.keyed(lambda self, value, number: value + number)
    chain(replacing(bench, other.s(40, 2)).s(1), last.s()).apply_async()

    bench.drain()

    assert [42] == seen


def test_second_delivery_of_a_replaced_task_neither_replaces_nor_reports_again(bench, last, seen):
    """The result of the task that has replaced it would be overwritten by a marker."""
    other = bench.keyed(lambda self, value, number: value + number)
    task = replacing(bench, other.s(40, 2))
    sent = task.apply_async((1,), link=last.s())
    task.apply_async((1,), link=last.s(), task_id=sent.id)

    bench.drain()

    assert [42] == seen
    assert 42 == bench.app.AsyncResult(sent.id).result
    assert not bench.all_letters()


def test_late_second_delivery_of_a_replaced_task_leaves_the_result_alone(bench):
    """The caller would read a marker where the result was."""
    other = bench.keyed(lambda self, value, number: value + number)
    task = replacing(bench, other.s(40, 2))
    sent = task.apply_async((1,))
    bench.drain()

    task.apply_async((1,), task_id=sent.id)
    bench.drain()

    assert 42 == bench.app.AsyncResult(sent.id).result


def test_replacement_in_a_chord_reports_its_part_once(bench, last, seen):
    """The chord would wait for a part that nobody reports, or count one twice."""
    other = bench.keyed(lambda self, value, number: value + number)
    chord([replacing(bench, other.s(40, 2)).s(1), returning(bench, 1).s(2)], last.s()).apply_async()

    bench.drain()

    assert [[42, 1]] == seen


def test_kill_after_a_replacement_is_sent_and_before_it_is_recorded_runs_the_other_once(bench, last, seen):
    """The other task would have two effects."""
    runs = []
    other = bench.keyed(lambda self, value, number: runs.append(number) or value + number)

    def body(self, number):
        try:
            self.replace(other.s(40, 2))
        except Ignore:
            if self.safe.attempt == 1:
                raise Killed from None
            raise

    chain(bench.keyed(body).s(1), last.s()).apply_async()

    bench.drain()

    assert [2] == runs
    assert {42} == set(seen)


def test_ignore_ends_the_canvas_and_no_duplicate_revives_it(bench, last, seen):
    """A body that has said that nothing is to follow would be overruled by a redelivery."""

    def body(self, number):
        raise Ignore

    task = bench.keyed(body)
    sent = task.apply_async((1,), link=last.s())
    task.apply_async((1,), link=last.s(), task_id=sent.id)

    first, second = bench.drain()

    assert ("acknowledged", "acknowledged") == (first.fate, second.fate)
    assert [] == seen
    assert not bench.all_letters()


def test_ignore_whose_mark_cannot_be_written_is_acknowledged_all_the_same(bench, last, seen):
    """The redelivery would find a canvas without a result, and make a letter of work that has been handed on."""
    other = bench.keyed(lambda self, value, number: value + number)
    chain(replacing(bench, other.s(40, 2)).s(1), last.s()).apply_async()

    with at_mark(bench, StoreUnavailable("away")):
        first, *_others = bench.drain()

    assert ("acknowledged", [42]) == (first.fate, seen)
    assert not bench.all_letters()


# --- what goes wrong around the body


@contextlib.contextmanager
def broken(owner, name, error):
    """Let a method raise."""
    found = getattr(owner, name)

    def fail(*args, **kwargs):
        raise error

    setattr(owner, name, fail)
    try:
        yield
    finally:
        setattr(owner, name, found)


def test_success_that_the_result_back_end_did_not_take_is_kept_and_stored_later(bench):
    """Acknowledged, whoever waits for the result of a finished payment would wait for ever."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number) or "paid")
    task.delay(1)

    refused = ConnectionRefusedError("no result back end")
    with broken(bench.app.backend, "mark_as_done", refused), pytest.warns(RuntimeWarning, match="outside body"):
        first = bench.deliver()

    assert ("kept", State.DONE) == (first.fate, bench.record(task, 1).state)
    first.message.requeue()
    (second,) = bench.drain()
    assert ("SUCCESS", "paid", [1]) == (second.state, second.result, runs)


def test_error_of_the_pipeline_itself_keeps_the_message(bench):
    """Acknowledged, the order would be held by nobody, and no letter would tell of it."""
    task = bench.keyed(lambda self, number: "paid")
    task.delay(1)

    with broken(bench.store, "settle", RuntimeError("nobody has foreseen this")):
        first = bench.deliver()

    assert "kept" == first.fate
    assert not bench.all_letters()
