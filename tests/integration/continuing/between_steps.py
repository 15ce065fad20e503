"""
A kill or an outage exactly between two steps: after the outcome is recorded, before the mark, at the broker.
"""

import contextlib

from celery.exceptions import OperationalError

from celery_safeguards import Outcome
from celery_safeguards.signals import delivery_ended
from tests.support.bench import Killed


def returning(bench, value, **options):
    """Register a keyed task that returns a value."""
    return bench.keyed(lambda self, number: value, **options)


def die():
    raise Killed


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
