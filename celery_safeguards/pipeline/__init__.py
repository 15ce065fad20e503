"""
The way of one delivery through its safeguards, in one visible order:

    admit → run the body → ensure → settle → publish what follows → acknowledge

A keyed delivery asks the store before its body and writes the outcome after it. An unkeyed one runs at once. Whatever
raises here tells Celery what the delivery may do: return or fail (acknowledge, the outcome is durable), `Retry` or
`Deferred` (acknowledge, a copy is published), `DroppedLocally` (nothing is durable: the message comes back by itself).
"""

import logging
import pickle
from typing import Any

from celery.exceptions import TaskPredicate

from celery_safeguards.errors import Deferred, DroppedLocally, LetteredError
from celery_safeguards.outcome import Outcome
from celery_safeguards.pipeline.atomic import run_atomic
from celery_safeguards.pipeline.failing import FailedForGood
from celery_safeguards.pipeline.keyed import run_keyed
from celery_safeguards.pipeline.parking import call_who_waits
from celery_safeguards.pipeline.unkeyed import run_unkeyed
from celery_safeguards.signals import end_delivery
from celery_safeguards.wiring import Wiring

__all__ = ["execute"]

logger = logging.getLogger(__name__)


def execute(task: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one delivery of a guarded task."""
    run = run_unkeyed if task.plan is None else run_keyed if task.plan.idempotent.atomic is None else run_atomic
    has_ended, clock = True, Wiring.of(task.app).clock
    began = clock.monotonic_seconds()
    try:
        return run(task, request, args, kwargs)
    except LetteredError:
        raise
    except TaskPredicate as order:
        # One that waits calls nobody: the next would find the same busy, and call the next.
        has_ended = not isinstance(order, Deferred | DroppedLocally)
        if not request.is_eager:
            make_sendable(order)
        raise
    except FailedForGood as failed:
        own = failed.error
    except Exception as error:
        # A letter that could not be written, at the end of any path, or what nobody has foreseen: the body's own errors
        # are all decided on by now. Acknowledged, the message would be gone and its record in progress for nobody.
        if request.is_eager:
            raise
        logger.exception("%s[%s] could not be carried through", task.name, request.id)
        if not task.acks_late:
            # Acknowledged before it ran: nothing brings it back, and its caller is to be told.
            raise
        has_ended = False
        end_delivery(task, request.id, Outcome.FENCED, None, repr(error))
        raise DroppedLocally(repr(error)) from error
    finally:
        if has_ended:
            call_who_waits(task, request, args, kwargs, clock.monotonic_seconds() - began)
    # Not in the handler: its chain is the body's, and nothing of ours is added.
    raise own


def make_sendable(order: TaskPredicate) -> None:
    """
    Cut off what an order to Celery came from, where that keeps the worker's main process from reading it.

    Exceptions go to the main process by pickle. By itself that leaves out what they came from; with tblib's pickling
    support it does not, and an error of the body whose class cannot be called again then ends the whole worker. Of
    failures Celery sees to that itself, of orders it does not (celery 5.7, `app/trace.py`).
    """
    try:
        pickle.loads(pickle.dumps(order))  # noqa: S301 - what was dumped here
    except Exception as error:  # noqa: BLE001 - pickle runs the code of any class
        logger.debug("what %r came from cannot be sent: %r", order, error)
        order.__cause__ = order.__context__ = None
