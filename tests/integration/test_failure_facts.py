"""
What Celery does with the failures and orders of a plain task's body: the end of a delivery in `pipeline/` rests on it.
"""

import copyreg
import pickle

import pytest
from celery import Task
from celery.exceptions import Reject, Retry
from celery.signals import task_failure, task_retry

from celery_safeguards._compat import REJECT_IS_A_FAILURE, raised_in_child


class OfTwoWords(Exception):
    """Its class cannot be called with its arguments again."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


@pytest.fixture
def plain(bench):
    """Register a body as a plain task."""
    return lambda body: bench.task(body, base=Task, acks_late=True)


def test_rejected_message_is_a_failure_from_celery_5_7_on(bench, plain):
    """Handed on to a Celery that stores nothing of it, errbacks and chord would wait for ever."""

    def body(self, number):
        raise Reject("malformed", requeue=False)

    plain(body).delay(1)

    (delivered,) = bench.drain()

    assert ("given up", "FAILURE" if REJECT_IS_A_FAILURE else "PENDING") == (delivered.fate, delivered.state)


def test_stored_traceback_holds_the_notes_of_an_error(bench, plain):
    """The note that names the letter would be read by nobody."""

    def body(self, number):
        error = ValueError("bad data")
        error.add_note("dead letter 7")
        raise error

    plain(body).delay(1)

    (delivered,) = bench.drain()

    assert "dead letter 7" in delivered.traceback


def test_retry_is_rebuilt_from_three_arguments():
    """`RetryAsked` says of itself that it is a `Retry` of these."""
    kind, arguments = Retry("message", ValueError("bad data"), 7).__reduce__()

    assert (Retry, "message", ValueError, 7) == (kind, arguments[0], type(arguments[1]), arguments[2])


def reduced(error):
    """Be tblib's pickling support, as far as it matters: what an error came from travels with it."""
    make, arguments, *_ = error.__reduce__()
    return _rebuilt, (make, arguments, error.__cause__)


def _rebuilt(make, arguments, cause):
    error = make(*arguments)
    error.__cause__ = cause
    return error


def test_failures_are_made_fit_for_pickle_and_orders_are_not(bench, plain, monkeypatch):
    """Orders are looked at in this package because Celery does not; a Celery that does needs that no more."""
    for kind in (OfTwoWords, ValueError, Retry):
        monkeypatch.setitem(copyreg.dispatch_table, kind, reduced)
    sent = []

    def body(self, number):
        raise (ValueError("bad data") if number == 1 else Retry(when=1)) from OfTwoWords(402, "no cover")

    def told(einfo, **_):
        sent.append(pickle.dumps(raised_in_child(einfo)))

    task = plain(body)
    task_failure.connect(told, sender=task)
    task_retry.connect(told, sender=task)
    task.delay(1)
    task.delay(2)

    bench.drain()

    failure, order = sent
    assert "bad data" in str(pickle.loads(failure))
    with pytest.raises(TypeError, match="OfTwoWords"):
        pickle.loads(order)
