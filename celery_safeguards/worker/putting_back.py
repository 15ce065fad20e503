"""
Local drops where nothing lapses.

    dropped ── one lease ──▶ put back by the consumer's loop ──▶ delivered again
       └ the channel closes before: the broker has put it back, and there is nothing left to say

On Redis and SQS a dropped message comes back by its visibility timeout. RabbitMQ has none: under a living worker it
would wait until the channel closes, perhaps for weeks, and keep one of the worker's prefetch slots all that time; after
as many drops as slots the worker takes nothing any more. By the end of a lease its claim is free, or another's to hold.
"""

import logging
import weakref
from typing import Any

from celery_safeguards import _compat
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)
_CONSUMERS: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


def put_back_for(consumer: Any) -> None:
    """Let a consumer's loop put back what is dropped in this process; called again after a reconnect."""
    _CONSUMERS[consumer.app] = consumer


def drop_locally(request: Any) -> None:
    """
    Free a delivery's slot in this worker and acknowledge nothing; where nothing lapses, put it back one lease later.

    Safe when: called in the main process, by whichever thread Celery reports a result from.
    """
    if not _compat.drop_locally(request):
        _put_back_later(request.app, request.message)


def leave_unacknowledged(app: Any, message: Any) -> None:
    """Do the same with a message of which there is no request."""
    if not _compat.leave_unacknowledged(message):
        _put_back_later(app, message)


def _put_back_later(app: Any, message: Any) -> None:
    consumer = _CONSUMERS.get(app)
    if consumer is None:
        return
    after_seconds = Wiring.of(app).settings.lease_seconds
    # In the loop's thread, both times: the timer's heap and an AMQP channel are nobody else's to write to.
    put_back = (_put_back, message, consumer.connection_errors)
    consumer.call_soon(consumer.timer.call_after, after_seconds, consumer.call_soon, put_back)


def _put_back(message: Any, connection_errors: tuple[type[BaseException], ...]) -> None:
    # On a channel that was closed meanwhile this is an error of the connection, and is logged.
    message.reject_log_error(logger, connection_errors, requeue=True)
