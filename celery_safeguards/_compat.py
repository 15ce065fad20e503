"""
The places where Celery and kombu are touched beneath their documented surface, each with what it rests on.

Read in celery 5.5.3, 5.6.3, 5.7.0 and kombu 5.5 to 5.7; a test for each notices when a new version changes it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty
from typing import Any

import celery
import celery.app.task
from billiard.einfo import ExceptionInfo
from celery import _state
from celery.app.task import Context
from celery.utils.quorum_queues import detect_quorum_queues
from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.transport.virtual.base import Message as VirtualMessage

_NO_CONTEXT = Context()
REJECT_IS_A_FAILURE = celery.VERSION >= (5, 7)
"""
Whether a body that rejects its message for good has failed: its id is stored as FAILURE, its errbacks and its chord are
told. Before, the id stayed PENDING for ever (celery 5.5 to 5.7, `worker/request.py`).
"""


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


def ignores_result(task: Any, request: Any) -> bool:
    """Return whether Celery stores no result: the publisher's word goes before the task's from celery 5.7 on."""
    actual = getattr(celery.app.task, "get_actual_ignore_result", None)
    return bool(task.ignore_result if actual is None else actual(task, request))


def raised_in_child(exc_info: ExceptionInfo) -> BaseException:
    """Return the exception a child reported; billiard wraps it with its traceback (billiard 4, `einfo.py`)."""
    exception = exc_info.exception
    inner = getattr(exception, "exc", None)
    wrapped = type(exception).__name__ == "ExceptionWithTraceback" and isinstance(inner, BaseException)
    found = inner if wrapped else exception
    if not isinstance(found, BaseException):
        raise TypeError(f"a child reported {found!r}, which is no exception")
    return found


def drop_locally(request: Any) -> bool:
    """
    Free a delivery's slot in this worker and send nothing; returns whether it comes back by a visibility timeout.

    On virtual transports a tag in `qos._dirty` no longer counts against the prefetch limit and is not restored by a
    warm shutdown (kombu 5.7, `transport/virtual/base.py`). On AMQP the message stays unacknowledged, and counts, until
    the channel closes.
    """
    task_ready(request)
    comes_back = leave_unacknowledged(request.message)
    request.acknowledged = True
    return comes_back


def leave_unacknowledged(message: Any) -> bool:
    """Do the same with a message of which there is no request."""
    qos = getattr(message.channel, "qos", None)
    forget, dirty = getattr(qos, "forget", None), getattr(qos, "_dirty", None)
    if forget is not None:
        forget(message.delivery_tag)
    elif dirty is not None:
        dirty.add(message.delivery_tag)
    return forget is not None or dirty is not None


def has_native_delay(app: Any) -> bool:
    """Whether Celery may leave a countdown to RabbitMQ: with a quorum queue (celery 5.5 to 5.7, `app/base.py`)."""
    return bool(detect_quorum_queues(app, app.producer_pool.connections.connection.transport.driver_type)[0])


INTAKE_HOOKS = ("on_unknown_message", "on_unknown_task", "on_invalid_task", "on_decode_error", "create_task_handler")
"""
The methods by which a consumer takes messages and gives them up (celery 5.5 to 5.7, `worker/consumer/consumer.py`).

`Tasks.start` and the loops look them up on the consumer with each connection, so attributes of it take their place.
"""


def is_raised_by_building_a_request(error: BaseException) -> bool:
    """
    Whether an error of a consumer's handler is about its message: no broker is spoken to while a request is built.

    By its traceback, not by its class: kombu takes `KeyError` for a lost Redis connection (5.7, `transport/redis.py`).
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), Request):
            return True
        trace = trace.tb_next
    return False


class _UndecodableBody:
    """A message of a virtual transport whose body need not be what its envelope says; goes before kombu's class."""

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        try:
            super().__init__(payload, channel=channel, **options)  # type: ignore[call-arg]
        except (ValueError, TypeError, AttributeError):
            problem = sys.exc_info()
            bare = {name: each for name, each in payload.items() if name not in {"body", "headers"}}
            super().__init__(bare, channel=channel, **options)  # type: ignore[call-arg]
            self._raw = payload
            self.body = _decoded_if_it_can_be(payload.get("body"), channel, payload["properties"])
            self.headers = payload.get("headers") or {}
            self.errors = [problem]


def _decoded_if_it_can_be(body: Any, channel: Any, properties: Mapping[str, Any]) -> Any:
    try:
        return channel.decode_body(body, properties.get("body_encoding"))
    except (ValueError, TypeError, AttributeError):
        return body


def keep_undecodable_bodies(channel: Any) -> None:
    """
    Have a channel of a virtual transport hand over a message whose body it cannot decode, as one with an error.

    Kombu makes the message before it notes that it was taken, so an error there ends the loop and loses the message
    (kombu 5.7, `transport/virtual/base.py`, `Message` and `Channel.basic_consume`). Handed over, `Consumer` gives it to
    `on_decode_error` (kombu 5.7, `messaging.py`).
    """
    found = getattr(channel, "Message", None)
    if isinstance(found, type) and issubclass(found, VirtualMessage) and not issubclass(found, _UndecodableBody):
        channel.Message = type(found.__name__, (_UndecodableBody, found), {})


def run_what_waits(hub: Any) -> None:
    """
    Do what a loop that has ended was still to do, above all acknowledge.

    `Request.acknowledge` leaves it to the hub, which is closed before the consumer is shut down, and does on closing
    only what it knew by then (celery 5.7, `worker/consumer/consumer.py`; kombu 5.5 to 5.7, `asynchronous/hub.py`).
    """
    pop = getattr(hub, "_pop_ready", None)
    for step in pop() if pop is not None else ():
        step()


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


def note_polls(connection: Any, note: Callable[[], None]) -> bool:
    """
    Call `note` whenever a Redis broker has answered the poll for messages; False: this transport cannot tell.

    Its poller reads a socket when an answer is there, in a worker with a hub and in one without (kombu 5.5 to 5.7,
    `transport/redis.py`, `MultiChannelPoller.on_readable`). Answers to `LISTEN`, of remote control, prove nothing.
    """
    poller: Any = getattr(connection.transport, "cycle", None)
    read = getattr(poller, "on_readable", None)
    if read is None or not hasattr(poller, "_fd_to_chan"):
        return False

    def read_and_note(fileno: int) -> Any:
        _channel, kind = poller._fd_to_chan.get(fileno) or (None, "LISTEN")  # noqa: SLF001
        try:
            answer = read(fileno)
        except Empty:
            # The answer was that there is no message.
            if kind != "LISTEN":
                note()
            raise
        if kind != "LISTEN":
            note()
        return answer

    poller.on_readable = read_and_note
    return True


def polls_for_messages(consumer: Any) -> bool:
    """
    Whether a worker asks for messages now.

    Not while its prefetch is used up (kombu, `virtual/base.py`, `QoS`), nor while it consumes no queue but broadcasts,
    which come unasked (kombu 5.5 to 5.7, `transport/redis.py`, `MultiChannelPoller.on_poll_start`).
    """
    channel = getattr(consumer.task_consumer, "channel", None)
    qos = getattr(channel, "qos", None)
    return qos is None or (bool(getattr(channel, "active_queues", True)) and bool(qos.can_consume()))


def driver_type_of(channel: Any) -> str:
    """
    Return which broker an open channel speaks to, as kombu's transports name it: `"redis"`, `"amqp"`, `"memory"`.

    A virtual channel's connection is its transport, another's is the library's; both lead back to kombu's own
    connection (kombu 5.5 to 5.7, `transport/virtual/base.py`, `transport/pyamqp.py`). Empty where it does not.
    """
    client = getattr(channel.connection, "client", None)
    return "" if client is None else str(client.transport.driver_type)


@contextmanager
def broker_client(channel: Any) -> Iterator[tuple[Any, str]]:
    """
    Yield the redis-py client of an open Redis channel, and what stands before all its keys.

    Kombu adds that prefix itself to the commands that it uses, and not to the keys of `EVAL` (kombu 5.5 to 5.7,
    `transport/redis.py`, `GlobalKeyPrefixMixin`).
    """
    with channel.conn_or_acquire() as client:
        yield client, str(channel.global_keyprefix)


def worker_shape(consumer: Any) -> tuple[Any, int, int]:
    """Return a worker's pool, its size and its prefetch multiplier (celery 5.7, `worker/consumer/consumer.py`)."""
    return consumer.pool, int(getattr(consumer.controller, "concurrency", 0) or 1), int(consumer.prefetch_multiplier)


def sqs_timeout_seconds(channel: Any, queue: str) -> float:
    """
    Return the visibility timeout that a queue of SQS has; blocks, and raises what kombu and boto do.

    Kombu gives its own option to queues that it makes, and asks none for what it has (kombu 5.5 `transport/SQS.py`, 5.7
    `transport/SQS/__init__.py`: `Channel.sqs` and `Channel._resolve_queue_url`).
    """
    client = channel.sqs(queue=channel.canonical_queue_name(queue))
    url = channel._resolve_queue_url(queue)  # noqa: SLF001
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    return float(answer["Attributes"]["VisibilityTimeout"])


def has_sqs_queue(channel: Any, queue: str) -> bool:
    """
    Whether SQS has a queue; blocks.

    Whatever else kombu does with a queue makes it first (kombu 5.5 `transport/SQS.py`, 5.7 `transport/SQS/__init__.py`:
    `Channel._new_queue`).
    """
    try:
        channel._resolve_queue_url(queue)  # noqa: SLF001
    except Exception as error:
        # By name: their module is there only where boto3 is.
        if type(error).__name__ in {"DoesNotExistQueueException", "UndefinedQueueException"}:
            return False
        raise
    return True
