"""
What an atomic body publishes: kept with its record, sent after its COMMIT.

Every publish of an app passes its `amqp.send_task_message` (celery 5.5 to 5.7, `app/base.py`, `app/amqp.py`): `delay`,
`apply_async`, canvas, `send_task`. There it is turned aside while an atomic body runs in this thread; its task id is
allocated by then. So a broker that is down fails no body, and a body that is rolled back has published nothing.

Not covered, and sent at once: publishes by another app, by kombu alone, to another broker, and from other threads.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any, NamedTuple

from celery.app.amqp import task_message
from kombu.serialization import dumps as serialize
from kombu.utils.json import dumps, loads

from celery_safeguards._publishing import current_publish
from celery_safeguards.pipeline.guarding import guarded_publish

_JSON = "application/json"
_HOOKED = "sg_hooked"
_KEEPING: ContextVar["_Keeping | None"] = ContextVar("sg_keeping", default=None)


class _Keeping(NamedTuple):
    """Who keeps what is published."""

    app: Any
    alias: str
    keep: Callable[[str], None]
    thread_id: int
    """A thread may be given its starter's context, but never its connection."""


@contextmanager
def kept(app: Any, alias: str, keep: Callable[[str], None]) -> Iterator[None]:
    """Give what is published inside to `keep`, as text, in place of the broker; `alias`: of the body's database."""
    _hook(app)
    token = _KEEPING.set(_Keeping(app, alias, keep, get_ident()))
    try:
        yield
    finally:
        _KEEPING.reset(token)


def keeper(app: Any, alias: str | None = None) -> Callable[[str], None] | None:
    """Return what keeps an app's publishes here and now, if it does with that database; None: they are sent at once."""
    keeping = _KEEPING.get()
    if keeping is None or keeping.app is not app or keeping.thread_id != get_ident():
        return None
    return keeping.keep if alias in {None, keeping.alias} else None


def send_kept(app: Any, messages: Sequence[str]) -> None:
    """
    Send messages that were kept, in their order.

    Raises whatever the broker does; those before it are out. Safe when: sent again, they have the same task ids.
    """
    for text in messages:
        given = loads(text)  # type: ignore[no-untyped-call]
        message = task_message(given["headers"], given["properties"], _body_of(given), given["sent_event"])
        # A deadline for each: a body may have published thousands.
        with (
            guarded_publish(app, given["name"]),
            app.producer_or_acquire() as producer,
            producer.connection._reraise_as_library_errors(),  # noqa: SLF001
        ):
            app.amqp.send_task_message(producer, given["name"], message, **given["options"])


def _hook(app: Any) -> None:
    send = app.amqp.send_task_message
    if hasattr(send, _HOOKED):
        return

    def send_or_keep(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
        keep = keeper(app)
        if keep is None or _goes_elsewhere(app, producer):
            return send(producer, name, message, *args, **options)
        return keep(_text_of(app, name, message, options))

    # Two threads that are first at once hook twice: the outer one keeps, and the inner one sees nothing.
    setattr(send_or_keep, _HOOKED, True)
    app.amqp.send_task_message = send_or_keep


def _goes_elsewhere(app: Any, producer: Any) -> bool:
    """Whether a publish has a connection of its own to another broker, which only its caller can open again."""
    given, own = producer.connection, app.connection_for_write()
    # With alternatives, the broker of the moment says nothing.
    return bool((given.alt or given.as_uri()) != (own.alt or own.as_uri()))


def _text_of(app: Any, name: str, message: Any, options: dict[str, Any]) -> str:
    """
    Return a message as text, encoded as it would be on the wire: what the body changes later is not in it.

    Raises:
        TypeError: an option is none that JSON can carry.

    """
    options = {name: value for name, value in options.items() if value is not None}
    serializer = options.pop("serializer", None) or app.conf.task_serializer
    content_type, content_encoding, body = serialize(message.body, serializer)  # type: ignore[no-untyped-call]
    publishing = current_publish()
    if publishing is not None:
        publishing.measure(body)
    for made_anew in ("declare", "event_dispatcher"):
        options.pop(made_anew, None)
    if "queue" in options:
        queue = options["queue"]
        options["queue"] = queue if isinstance(queue, str) else queue.name
        # A queue that this app does not know raises where the developer is, and not after the COMMIT.
        app.amqp.queues[options["queue"]]
    if hasattr(options.get("exchange"), "name"):
        exchange = options["exchange"]
        options |= {"exchange": exchange.name, "exchange_type": options.get("exchange_type") or exchange.type}
    if content_type == _JSON:
        options["serializer"] = serializer
    else:
        # Decoded by nobody but its worker.
        options |= {"content_type": content_type, "content_encoding": content_encoding}
    given = {"name": name, "headers": message.headers, "properties": message.properties, "body": body}
    whole = {**given, "is_json": content_type == _JSON, "sent_event": message.sent_event, "options": options}
    return str(dumps(whole))  # type: ignore[no-untyped-call]


def _body_of(given: dict[str, Any]) -> Any:
    """Return the body as receivers of `before_task_publish` know it, where it can be read without trust in it."""
    return loads(given["body"]) if given["is_json"] else given["body"]  # type: ignore[no-untyped-call]
