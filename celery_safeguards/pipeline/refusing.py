"""
A publish that is refused while Celery dispatches: the refused task becomes a letter.

Refused for its key or its size: in user code that raises, where it can be seen and mended. Raised while Celery sends
a link, the next of a chain, a chord's body or an errback, it would turn the parent's success into a failure and lose
the rest of the chain. So the parent stays succeeded.

Refused by the broker: a chord's body only. Links and chains are sent by this package (`continuing.py`), but a body is
sent by Celery's result back end, which forgets it once it is refused. Celery still fails its id and calls its errbacks.
"""

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from celery.signals import after_task_publish, before_task_publish
from kombu.serialization import dumps as serialize

from celery_safeguards import headers as h
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import DeadLettered, KeyRefused, MessageTooLarge
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline.burial import compose_letter, write_letter
from celery_safeguards.pipeline.failing import error_text
from celery_safeguards.retry.classify import classify
from celery_safeguards.signals import end_delivery
from celery_safeguards.wiring import Wiring

PASSING = frozenset({FailureKind.TRANSIENT, FailureKind.INFRASTRUCTURE, FailureKind.DEPENDENCY_TIMEOUT})
"""Kinds of a refusal that is the broker's, not the message's."""
_PASSED_THROUGH = ("celery.canvas", "celery.app.task", "celery.app.amqp", "celery.local", "kombu", "vine")
_DISPATCHES = ("celery.app.trace", "celery.app.builtins", "celery.backends", "celery_safeguards.pipeline.continuing")
# The functions of Celery's own that send a chord's body (celery 5.5 to 5.7: `backends/`, `app/builtins.py`).
_SENDS_BODIES = ("on_chord_part_return", "unlock_chord")


@dataclass(frozen=True, slots=True)
class Unsent:
    """A message on its way to the broker, as `before_task_publish` shows it."""

    body: Any
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: Any
    routing_key: str | None


_UNSENT: ContextVar[list[Unsent] | None] = ContextVar("sg_unsent", default=None)


@contextmanager
def unsent_messages() -> Iterator[list[Unsent]]:
    """Collect what is published inside and not taken by the broker; nested ones share one list."""
    shared = _UNSENT.get()
    if shared is not None:
        yield shared
        return
    unsent: list[Unsent] = []
    token = _UNSENT.set(unsent)
    try:
        yield unsent
    finally:
        _UNSENT.reset(token)


def is_dispatched_by_celery(frame: FrameType | None) -> bool:
    """
    Whether a publish was made by Celery for a continuation, and not by user code.

    Args:
        frame: of the publishing method; from there outwards, the first frame that is no mere passage decides. A team's
            own `apply_async`, which passes on to ours, is one.

    """
    return _dispatching(frame) is not None


def refuse_publish(
    task: Any,
    error: KeyRefused | MessageTooLarge,
    args: Any,
    kwargs: Any,
    task_id: str | None,
    options: Mapping[str, Any],
) -> Any:
    """
    Raise the refusal in user code; in a dispatch write the letter and return the result of a task that never runs.

    Raises:
        KeyRefused | MessageTooLarge: the publish came from user code.

    """
    caller = sys._getframe(1)  # noqa: SLF001 - who publishes is told by the stack alone
    if not is_dispatched_by_celery(caller.f_back):
        raise error
    wiring, task_id = Wiring.of(task.app), task_id or uuid.uuid4().hex
    now = wiring.clock.wall_seconds()
    embed = {name: options.get(name) for name in ("link", "link_error", "chain", "chord")}
    body = (args or (), kwargs or {}, {"callbacks": embed.pop("link"), "errbacks": embed.pop("link_error"), **embed})
    # As the message would have been: its arguments may be refused for being what its own serializer alone carries.
    serializer = options.get("serializer") or task.serializer or task.app.conf.task_serializer
    content_type, content_encoding, encoded = serialize(body, serializer)  # type: ignore[no-untyped-call]
    letter = Letter.capture(
        wire=WireMessage(
            body=encoded,
            content_type=content_type,
            content_encoding=content_encoding,
            headers={
                **(options.get("headers") or {}),
                "id": task_id,
                "task": task.name,
                "lang": "py",
                "parent_id": options.get("parent_id"),
                "root_id": options.get("root_id"),
                "group": options.get("group_id"),
                "group_index": options.get("group_index"),
            },
            delivery_info={"exchange": "", "routing_key": options.get("queue") or task.app.conf.task_default_queue},
        ),
        error=error_text(wiring, error),
        id=f"refused-{task_id}",
        kind=FailureKind.DATA,
        effect_possible=False,
        reason=str(error),
        first_seen_seconds=now,
        last_failed_seconds=now,
        release=wiring.settings.release,
    ).capped(wiring.settings.max_letter_bytes)
    write_letter(wiring, letter, tasks=task.app.tasks)
    return task.AsyncResult(task_id)


def bury_nameless(task: Any, request: Any, lineage: h.Lineage, error: KeyRefused) -> NoReturn:
    """
    Bury a message whose arguments name no operation or no entity to lock: its producer is not ours.

    Raises:
        DeadLettered: always.
        StoreUnavailable: its letter is not durable.

    """
    wiring = Wiring.of(task.app)
    letter = compose_letter(
        wiring,
        request,
        letter_id=lineage.letter_id or f"keyless-{request.id}",
        kind=FailureKind.DATA,
        reason=str(error),
        effect_possible=False,
        error=error_text(wiring, error),
        attempts=0,
    )
    write_letter(wiring, letter, tasks=task.app.tasks)
    end_delivery(task, request.id, Outcome.DEAD_LETTERED, None, str(error))
    raise DeadLettered(letter.id, FailureKind.DATA.value, str(error)) from error


def keep_refused_body(app: Any, unsent: Sequence[Unsent], error: Exception, serializer: str | None) -> None:
    """
    Write the letter of a task that a result back end sends as a chord's body; of any other publish, do nothing.

    Raises:
        DeadLettered: it is written; what Celery stores as the failure of the body names it.
        StoreUnavailable: it is not.

    """
    caller = sys._getframe(1)  # noqa: SLF001 - who publishes is told by the stack alone
    frame = _dispatching(caller.f_back)
    if frame is not None and frame.f_code.co_name in _SENDS_BODIES and classify(error).kind in PASSING:
        keep_refused(app, unsent, error, serializer)


def keep_refused(
    app: Any,
    unsent: Sequence[Unsent],
    error: Exception,
    serializer: str | None,
    reason: str = "the broker did not take it, and its chord is over",
) -> None:
    """
    Write the letter of a message that the broker did not take, if one was on its way.

    A publish that failed may have arrived, at its last try or at an earlier one. Where no key holds two messages apart,
    an effect is possible, and a person must say that it may run twice.

    Raises:
        DeadLettered: it is written.
        StoreUnavailable: it is not.

    """
    if not unsent:
        return
    wiring, message = Wiring.of(app), unsent[-1]
    task = app.tasks.get(message.headers.get("task"))
    plan, key = getattr(task, "plan", None), message.headers.get(h.KEY)
    serializer = serializer or getattr(task, "serializer", None) or app.conf.task_serializer
    content_type, content_encoding, body = serialize(message.body, serializer)  # type: ignore[no-untyped-call]
    now, text = wiring.clock.wall_seconds(), error_text(wiring, error)
    letter = Letter.capture(
        wire=WireMessage(
            body=body,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=message.headers,
            properties=message.properties,
            delivery_info={
                "exchange": getattr(message.exchange, "name", message.exchange) or "",
                "routing_key": message.routing_key,
            },
        ),
        error=text,
        id=f"refused-{message.headers.get('id')}",
        kind=classify(error).kind,
        effect_possible=plan is None,
        reason=reason,
        first_seen_seconds=now,
        last_failed_seconds=now,
        release=wiring.settings.release,
        key=key,
        scope=plan.record_key(key).scope if plan is not None and key else None,
    ).capped(wiring.settings.max_letter_bytes)
    write_letter(wiring, letter, tasks=app.tasks)
    raise DeadLettered(letter.id, letter.kind.value, f"{text.type}: {text.message}") from error


def _dispatching(frame: FrameType | None) -> FrameType | None:
    """Return the frame of Celery, or of this package, that dispatches; None: it is user code."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if _belongs(module, _DISPATCHES):
            return frame
        if not _belongs(module, _PASSED_THROUGH) and frame.f_code.co_name != "apply_async":
            return None
        frame = frame.f_back
    return None


def _note_begun(
    body: Any = None,
    headers: Any = None,
    properties: Any = None,
    exchange: Any = None,
    routing_key: str | None = None,
    **_: Any,
) -> None:
    unsent = _UNSENT.get()
    if unsent is not None:
        # Not copied: receivers that are called later change them in place.
        unsent.append(Unsent(body, headers, properties, exchange, routing_key))


def _note_taken(headers: Any = None, **_: Any) -> None:
    unsent = _UNSENT.get()
    if unsent is not None:
        unsent[:] = [each for each in unsent if each.headers is not headers]


before_task_publish.connect(_note_begun, weak=False)
after_task_publish.connect(_note_taken, weak=False)


def _belongs(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
