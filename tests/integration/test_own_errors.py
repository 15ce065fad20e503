"""
What Celery stores of a task without a key that is buried: the body's own error, as without safeguards.

Callers catch it by its class, errbacks and chords tell it by that. Where it would not arrive, or would mean something
else to the worker's main process, it is an error of ours that names the letter; so it is for every keyed task.
"""

import copyreg
import pickle

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import MaxRetriesExceededError, Reject, Retry, SoftTimeLimitExceeded
from celery.signals import task_retry

from celery_safeguards import RetryPolicy, Safeguards
from celery_safeguards._compat import REJECT_IS_A_FAILURE, raised_in_child
from celery_safeguards.errors import DeadLettered
from celery_safeguards.pipeline import make_sendable
from celery_safeguards.pipeline.failing import RetryAsked


class CardDeclined(Exception):
    """As a team's own errors are."""


class OfTwoWords(CardDeclined):
    """Its class cannot be called with its arguments again."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


class Sealed(CardDeclined):
    """Takes no attribute."""

    def __setattr__(self, name, value):
        raise AttributeError(name)


def raises(error):
    """Return a body that raises it."""

    def body(self, number):
        raise error

    return body


@pytest.mark.parametrize(
    "error",
    [CardDeclined("no cover", 402), ValueError("bad data"), SoftTimeLimitExceeded("soft"), Sealed("sealed")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("safeguards", [Safeguards(), Safeguards(repeatable=True, retry=RetryPolicy(attempts=2))])
def test_callers_of_an_unkeyed_task_catch_its_own_error(bench, error, safeguards):
    """`except CardDeclined` around `.get()` would not fire any more once a task is built on `SafeTask`."""
    task = bench.task(raises(error), safeguards)
    task.delay(1)

    last = bench.drain()[-1]

    (letter,) = bench.all_letters()
    assert (last.state, last.fate, type(last.result), last.result.args) == (
        "FAILURE",
        "acknowledged",
        type(error),
        error.args,
    )
    assert (letter.task_id, letter.error_type.rpartition(".")[2]) == (last.task_id, type(error).__name__)


def test_its_traceback_names_the_letter(bench):
    """Who finds the failure in Celery's result must find the letter, too."""
    task = bench.task(raises(CardDeclined("no cover")))
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert f"dead letter {letter.id} (bug): no retry policy" in delivered.traceback
    assert "safeguards" not in letter.traceback.rpartition("CardDeclined")[2]


def test_an_error_that_is_raised_again_and_again_names_the_last_letter_only(bench):
    """An error made once, at import, would grow with every failure of the process."""
    error = CardDeclined("always the same")
    task = bench.task(raises(error))
    task.delay(1)
    task.delay(2)

    _, last = bench.drain()

    assert [f"dead letter {last.task_id} (bug): no retry policy"] == error.__notes__


def test_errbacks_are_told_the_bodys_own_error(bench):
    """An errback that asks for the class would take the way of an unknown error (celery/celery#5061)."""
    told = []
    errback = bench.task(lambda request, error, _: told.append((request.id, repr(error))), bind=False)
    task = bench.task(raises(CardDeclined("no cover")))
    task.apply_async((1,), link_error=errback.s())

    (delivered,) = bench.drain()

    assert [(delivered.task_id, "CardDeclined('no cover')")] == told


def test_used_up_retries_without_an_error_are_celerys_own_error(bench):
    """A caller that waits for `MaxRetriesExceededError` waits for that."""

    def body(self, number):
        raise self.retry(countdown=1, max_retries=1)

    task = bench.task(body)
    task.delay(1)

    _, last = bench.drain()

    assert MaxRetriesExceededError is type(last.result)


@pytest.mark.skipif(not REJECT_IS_A_FAILURE, reason="this Celery stores nothing of a rejected message")
def test_a_rejected_message_is_rejected_at_the_broker_too(bench):
    """A queue with a dead-letter exchange would not get it any more; its letter is written first."""
    task = bench.task(raises(Reject("malformed", requeue=False)))
    task.delay(1)

    (delivered,) = bench.drain()

    assert ("given up", "FAILURE", Reject, 1) == (
        delivered.fate,
        delivered.state,
        type(delivered.result),
        len(bench.all_letters()),
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        WorkerLostError("raised by a body that awaited another task's result"),
        TimeLimitExceeded(7),
        DeadLettered("of another task", "data", "its error"),
        OfTwoWords(402, "no cover"),
        CardDeclined("NUL \x00"),
        CardDeclined("long " * 10_000),
    ],
    ids=["memory", "lost", "limit", "letter", "constructor", "nul", "long"],
)
def test_an_error_that_would_not_arrive_or_mean_something_else_is_ours(bench, error):
    """
    The main process would end, put the message back or hang: celery/celery#6990, celery/django-celery-results#82.
    """
    runs = []

    def body(self, number):
        runs.append(number)
        raise error

    task = bench.task(body)
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (delivered.state, delivered.fate, type(delivered.result), runs) == (
        "FAILURE",
        "acknowledged",
        DeadLettered,
        [1],
    )
    assert delivered.result.letter_id == letter.id


def test_keyed_work_fails_with_our_error_first_and_later_alike(bench):
    """The record holds text: a later copy could not raise the class, and callers would have to catch two."""
    task = bench.keyed(raises(CardDeclined("no cover")), retry=None)
    task.delay(1)
    first = bench.deliver()
    task.apply_async((1,), task_id=first.task_id)

    again = bench.deliver()

    assert isinstance(first.result, DeadLettered)
    assert isinstance(again.result, DeadLettered)
    assert "CardDeclined: no cover" in first.result.error == again.result.error


# --- what travels with it


def rebuilt(make, arguments, cause, context):
    """Be the other side of `chains_travel`."""
    error = make(*arguments)
    error.__cause__, error.__context__ = cause, context
    return error


@pytest.fixture
def chains_travel(monkeypatch):
    """Let pickle take along what an exception came from, as tblib's `pickling_support.install()` does."""

    def reduced(error):
        make, arguments, *_ = error.__reduce__()
        return rebuilt, (make, arguments, error.__cause__, error.__context__)

    for kind in (Retry, RetryAsked, OfTwoWords, CardDeclined):
        monkeypatch.setitem(copyreg.dispatch_table, kind, reduced)


def test_a_retry_that_was_asked_for_can_be_read_in_the_main_process(bench, chains_travel):
    """
    celery/celery#6990, #2294: an exception that cannot be rebuilt ends the worker's main process.

    The order to Celery comes from ours, and with tblib's pickling support it takes that along.
    """
    found = []

    def body(self, number):
        self.retry(exc=CardDeclined("no cover"), countdown=1)

    task = bench.task(body)
    task.delay(1)

    def told(sender, einfo, **_):
        found.append(pickle.loads(pickle.dumps(raised_in_child(einfo))))

    task_retry.connect(told, sender=task)

    bench.deliver()

    (order,) = found
    assert (type(order), type(order.exc), type(order.__cause__)) == (Retry, CardDeclined, CardDeclined)


def test_what_an_order_came_from_is_cut_off_where_it_cannot_be_read(chains_travel):
    """As above, for an error of the body whose class cannot be called again."""
    orders = []
    for error in (OfTwoWords(402, "no cover"), CardDeclined("no cover")):
        order = Retry(exc=error, when=1)
        order.__cause__ = error
        make_sendable(order)
        orders.append(pickle.loads(pickle.dumps(order)))

    assert [None, CardDeclined] == [each.__cause__ and type(each.__cause__) for each in orders]
