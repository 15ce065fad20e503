"""
The places where Celery and kombu are touched beneath their documented surface, each with what it rests on.

Read in celery 5.5.3, 5.6.3, 5.7.0 and kombu 5.5 to 5.7; a test for each notices when a new version changes it.
"""

from collections.abc import Mapping
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import _state
from celery.app.task import Context
from celery.worker.state import active_requests, reserved_requests, task_ready

_NO_CONTEXT = Context()


def made_app() -> Any:
    """
    Return the app that the project has made current; None if it has made none.

    `celery.current_app` would make one, for good, and read a `celeryconfig` (celery 5.7, `_state.py`).
    """
    return _state._tls.current_app or _state.default_app  # noqa: SLF001


def custom_headers(message_headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    Return the headers of a message that are not Celery's own.

    `Context` collects them itself unless `headers` is given; a worker gives it, so that what travels only between its
    main process and its children is not taken for a header (celery `app/task.py`, `Context._get_custom_headers`).
    """
    return _NO_CONTEXT._get_custom_headers(dict(message_headers or {})) or {}  # noqa: SLF001


def raised_in_child(exc_info: ExceptionInfo) -> BaseException:
    """Return the exception a child reported; billiard wraps it with its traceback (billiard 4, `einfo.py`)."""
    exception = exc_info.exception
    inner = getattr(exception, "exc", None)
    wrapped = type(exception).__name__ == "ExceptionWithTraceback" and isinstance(inner, BaseException)
    found = inner if wrapped else exception
    if not isinstance(found, BaseException):
        raise TypeError(f"a child reported {found!r}, which is no exception")
    return found


def drop_locally(request: Any) -> None:
    """
    Free a delivery's slot in this worker and send nothing: the message comes back by the visibility timeout.

    On virtual transports a tag in `qos._dirty` no longer counts against the prefetch limit and is not restored by a
    warm shutdown (kombu 5.7, `transport/virtual/base.py`). On AMQP the message stays unacknowledged until the channel
    closes.
    """
    task_ready(request)
    message = request.message
    qos = getattr(message.channel, "qos", None)
    forget = getattr(qos, "forget", None)
    dirty = getattr(qos, "_dirty", None)
    if forget is not None:
        forget(message.delivery_tag)
    elif dirty is not None:
        dirty.add(message.delivery_tag)
    request.acknowledged = True


def running_tags(pool: Any) -> set[str]:
    """
    Return the delivery tags whose bodies run, or will without being asked again, in this worker.

    A prefork pool forgets on a cut what no child has accepted (`flush`); others run all that they were handed (celery
    5.5 to 5.7, `concurrency/asynpool.py`, `worker/consumer/consumer.py`).
    """
    forgets = pool is not None and bool(pool.flush)
    handed = [] if forgets else [each for each in tuple(reserved_requests) if each._apply_result is not None]  # noqa: SLF001
    return {each.message.delivery_tag for each in (*tuple(active_requests), *handed) if not each.acknowledged}


def close_to_the_end(channel: Any) -> None:
    """
    Let a worker that holds unacknowledged messages outlive a Redis broker that is down.

    Celery closes a lost connection twice. The first time the Redis channel fails to read an outstanding answer and
    stays open, and its transport forgets the server's address. The second time the channel wants to put its messages
    back, has no address, and the worker ends by `'NoneType' object has no attribute 'hostname'` (celery 5.7,
    `worker/consumer/consumer.py`; kombu 5.7, `transport/redis.py`). Closed to the end the first time, it keeps the
    address, and what still runs acknowledges through it once the server is back.
    """
    close = channel.close

    def close_again_if_it_failed() -> None:
        try:
            close()
        except Exception:  # noqa: BLE001 - whatever broke, the second time it is not read from any more
            close()

    if hasattr(channel, "_in_poll"):
        channel.close = close_again_if_it_failed
