"""
Intake: a message that no task reads becomes a dead letter before it is given up.

Celery rejects or acknowledges such a message first, and tells afterwards, if at all; some end the worker, or stop it
for ever, with the message back in the queue. This step stands before the consumer's own ways of giving a message up,
for every queue it consumes and for plain tasks as well:

    taken ──▶ cannot be read, or its task is unknown ──▶ letter, off the loop ──▶ Celery's own: log, reject, signal
                                                              │
                                                              └─ no store and no spool: neither; it comes back

| message | plain Celery 5.7 | letter |
|---|---|---|
| of a task that this worker does not know | rejected, then told | `unknown_task` |
| not decodable; of a content type that is not accepted | acknowledged; rejected | `undecodable` |
| no headers; eta or expiry that is no date | rejected | `undecodable` |
| body is no list of three | the worker ends, and the next one | `undecodable` |
| no id | connects again, for ever | `undecodable` |
| kwargs are no mapping; eta beyond every clock | acknowledged; rejected | `undecodable` |
| stamps that are none; headers nested hundreds of levels deep | the worker ends | `undecodable` |
| a shadow that no counter takes | the worker ends in pool `solo`; else never acknowledged | `undecodable` |
| body that is not the base64 it is said to be | the worker ends | `undecodable` |

A letter that was written before a crash is found by the redelivery, see `unread`. Celery's result for an unknown task
is a failure as ever; its letter can be replayed once the task is there.

Not covered: what the transport cannot make a message of at all, such as an entry of the list that is no JSON; of the
hardened transport, `aside` keeps that too.
"""

import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.exceptions import InvalidTaskError

from celery_safeguards._compat import (
    INTAKE_HOOKS,
    is_raised_by_building_a_request,
    keep_undecodable_bodies,
)
from celery_safeguards.outcome import FailureKind
from celery_safeguards.worker.errands import run_errand
from celery_safeguards.worker.malformed import fault_of
from celery_safeguards.worker.putting_back import leave_unacknowledged
from celery_safeguards.worker.unread import keep_unread

logger = logging.getLogger(__name__)
_Handler = Callable[[Any], Any]


class IntakeStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Stand before the ways in which a consumer gives messages up."""

    requires = (
        "celery.worker.consumer.connection:Connection",
        # It runs the errands.
        "celery_safeguards.worker.steps:LeaseStep",
    )

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        missing = [name for name in INTAKE_HOOKS if not callable(getattr(parent, name, None))]
        if missing:
            logger.error("messages that cannot be read are lost: this Celery's consumer has no %s", ", ".join(missing))
        else:
            _Intake(parent).stand_before()

    def start(self, parent: Any) -> None:
        """Have the new channel hand over what it cannot decode."""
        keep_undecodable_bodies(parent.connection.default_channel)


class _Intake:
    """The consumer's own endings, each with a letter before it."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._give_up_unknown_message = consumer.on_unknown_message
        self._give_up_unknown_task = consumer.on_unknown_task
        self._give_up_invalid_task = consumer.on_invalid_task
        self._give_up_undecodable = consumer.on_decode_error
        self._make_handler = consumer.create_task_handler

    def stand_before(self) -> None:
        """Put itself in the place of the consumer's methods; Celery reads them anew with each connection."""
        consumer = self._consumer
        consumer.on_unknown_message = self.on_unknown_message
        consumer.on_unknown_task = self.on_unknown_task
        consumer.on_invalid_task = self.on_invalid_task
        consumer.on_decode_error = self.on_decode_error
        consumer.create_task_handler = self.create_task_handler

    def create_task_handler(self, *args: Any, **options: Any) -> _Handler:
        """Return the consumer's handler of messages, with a look at each before it."""
        handle, tasks = self._make_handler(*args, **options), self._consumer.app.tasks

        def on_task_received(message: Any) -> Any:
            fault = fault_of(message, tasks)
            if fault is not None:
                return self.on_invalid_task(None, message, InvalidTaskError(fault))
            try:
                return handle(message)
            except Exception as error:
                if not is_raised_by_building_a_request(error):
                    raise
                told = InvalidTaskError(f"no request can be built of it: {type(error).__name__}: {error}")
                return self.on_invalid_task(None, message, told)

        return on_task_received

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Keep a message that is none of Celery's."""
        error = InvalidTaskError("it names no task")
        self._keep(message, FailureKind.UNDECODABLE, error, lambda: self._give_up_unknown_message(body, message))

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """Keep a message whose task is not registered here."""
        error = InvalidTaskError(f"no task {exc} is registered in this worker")
        self._keep(message, FailureKind.UNKNOWN_TASK, error, lambda: self._give_up_unknown_task(body, message, exc))

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """Keep a message that is not formed as a task's, or of a content type that is not accepted."""
        self._keep(message, FailureKind.UNDECODABLE, exc, lambda: self._give_up_invalid_task(body, message, exc))

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        """Keep a message whose body cannot be decoded."""
        self._keep(message, FailureKind.UNDECODABLE, exc, lambda: self._give_up_undecodable(message, exc))

    def _keep(self, message: Any, kind: FailureKind, error: BaseException, give_up: Callable[[], Any]) -> None:
        app, reason = self._consumer.app, str(error) or type(error).__name__

        def then(is_kept: bool) -> None:
            if is_kept:
                self._end(message, give_up)
            else:
                leave_unacknowledged(app, message)

        run_errand(
            app,
            lambda: keep_unread(app, message, kind, reason, error),
            then,
            lambda: leave_unacknowledged(app, message),
        )

    def _end(self, message: Any, give_up: Callable[[], Any]) -> None:
        try:
            give_up()
        except Exception:
            # Celery's own ending reads the message again, which may be what it cannot do.
            logger.exception("Celery could not tell of a message that is kept as a letter")
        if not message.acknowledged:
            message.reject_log_error(logger, self._consumer.connection_errors)
