"""
An edited copy, checked and ready: how it is sent, what will happen to it, and why it cannot be sent.

| of the original's message | in the copy |
|---|---|
| arguments, queue, eta | as edited |
| task name; priority, time limits, expiry that is ahead, shadow, stamps, the producer's own headers | as they were |
| task id, attempts, traces, all of ours | anew |
| parent, root | the task that died; its root |
| key | made anew: `own_key.py` |
| canvas | `following.py` |

Everything that can be refused is refused here, before anything is begun: `send_edited` and every preview ask it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kombu import compression
from kombu.serialization import dumps as serialize

from celery_safeguards import headers as h
from celery_safeguards._compat import custom_headers
from celery_safeguards._publishing import Publishing
from celery_safeguards.deadletter.changes import EDITABLE, require_state
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.errors import KeyRefused, MessageTooLarge, nearest
from celery_safeguards.ledger.canonical import bound_arguments
from celery_safeguards.ledger.key import body_signature
from celery_safeguards.replay.copies.edit import (
    Edit,
    EditRefused,
    Opened,
    as_sent,
    changed_fields,
    in_words,
    opened,
    require_no_marks,
)
from celery_safeguards.replay.copies.edit_history import copies_in_words
from celery_safeguards.replay.copies.following import Following, following
from celery_safeguards.replay.copies.masked import without_values
from celery_safeguards.replay.copies.own_key import OwnKey, own_key
from celery_safeguards.replay.plan import OutgoingMessage, ReplayRefused, replay_message
from celery_safeguards.replay.publishing import route_of
from celery_safeguards.wiring import Wiring

_SERIALIZER = "json"
"""As the original came, whatever its task sends by now: what is in it was JSON's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """
    A copy that may be sent.

    Attributes:
        letter: of which it is one.
        task: its own `apply_async` sends it.
        edit: what its arguments are.
        options: of `apply_async`.
        changed: names of what differs from the letter.
        key: of the copy; None: its task has none.
        notes: what will happen, and what it leaves behind, for people.
        consent: why a person must consent; "": he need not.

    """

    letter: Letter
    task: Any
    edit: Edit
    options: Mapping[str, Any]
    changed: tuple[str, ...]
    key: str | None
    notes: tuple[str, ...]
    consent: str


def opened_at(letter: Letter, at_seconds: float) -> Opened:
    """Open a letter's message for an edit, with the eta that is still ahead; raises as `opened` does."""
    return opened(letter, _eta_of(_message_of(letter, at_seconds)))


def known_queues(app: Any) -> list[str]:
    """Return the queues that a copy may go to."""
    return sorted(str(name) for name in app.amqp.queues)


def with_argument(app: Any, letter: Letter, edit: Edit, name: str, value: Any) -> Edit:
    """
    Return an edit in which one argument has another value, whether it was given by position or by name.

    Raises:
        EditRefused: the app does not know the task, or its arguments do not fit.

    """
    signature = body_signature(_task_of(app, letter).run)
    try:
        bound = signature.bind_partial(*edit.args)
    except TypeError as error:
        raise EditRefused(f"the arguments do not fit the task's signature: {error}") from error
    parameter = signature.parameters.get(name)
    if name not in bound.arguments or parameter is None or parameter.kind is parameter.VAR_POSITIONAL:
        return replace(edit, kwargs={**edit.kwargs, name: value})
    args = list(edit.args)
    args[list(signature.parameters).index(name)] = value
    return replace(edit, args=args)


def prepare(app: Any, letter: Letter, edit: Edit) -> Prepared:
    """
    Check an edited copy of a letter, and say what would happen to it; changes and sends nothing.

    Args:
        app: one that knows the task.
        letter: an open or a discarded one.
        edit: the whole of what the copy is to have: change what `opened_at` returns.

    Raises:
        EditRefused: it cannot be sent as asked, or would not run; nothing that is hidden is quoted.
        LetterNotOpen: something is under way with the letter, or it is closed.
        LetterTruncated: the message is not whole.
        StoreUnavailable: the record of the copy's key cannot be asked.

    """
    try:
        return _prepared(app, letter, edit)
    except EditRefused as error:
        if error.__cause__ is None:
            raise
        # What was raised from another's error may quote what that one could not bear.
        raise EditRefused(without_values(app, letter, edit, str(error))) from error


def _prepared(app: Any, letter: Letter, edit: Edit) -> Prepared:
    require_state(letter, *EDITABLE)
    now = Wiring.of(app).clock.wall_seconds()
    message, before = _message_of(letter, now), opened_at(letter, now)
    edit = as_sent(edit)
    require_no_marks(before.edit, edit)
    changed = changed_fields(before.edit, edit)
    if not changed:
        raise EditRefused("nothing is changed: replay it instead")
    task = _task_of(app, letter)
    _require_fitting(task, edit)
    follows = following(before.embed)
    timing = _timing(edit)
    queue, way = _way(app, message, edit.queue)
    found = own_key(app, task, letter, edit)
    headers = {**_headers(message), **found.headers, h.EDITED_FROM: letter.id}
    options = {**_kept(message), **timing, **way, **follows.options, "headers": headers}
    _require_carried(app, task, edit, follows)
    return Prepared(
        letter=letter,
        task=task,
        edit=edit,
        options={
            **options,
            "serializer": _SERIALIZER,
            "root_id": letter.root_id or letter.task_id,
            "parent_id": letter.task_id,
            # Whoever sends it from inside a task is not its parent.
            "add_to_parent": False,
        },
        changed=changed,
        key=found.key,
        notes=(f"changes {in_words(changed)}", f"goes to queue {queue}", *_said(message, found, follows, letter)),
        consent=found.consent,
    )


def _message_of(letter: Letter, at_seconds: float) -> OutgoingMessage:
    try:
        return replay_message(letter, "(a new id)", at_seconds=at_seconds)
    except ReplayRefused as error:
        raise EditRefused(str(error)) from error


def _eta_of(message: OutgoingMessage) -> datetime | None:
    eta = message.headers.get("eta")
    moment = datetime.fromisoformat(str(eta)) if eta else None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _task_of(app: Any, letter: Letter) -> Any:
    task = app.tasks.get(letter.task)
    if task is None:
        hint = nearest(letter.task, app.tasks)
        raise EditRefused(f"task {letter.task} is not known to this app, so nothing can check its arguments{hint}")
    return task


def _require_fitting(task: Any, edit: Edit) -> None:
    try:
        bound_arguments(body_signature(task.run), edit.args, edit.kwargs)
    except KeyRefused as error:
        raise EditRefused(str(error)) from error


def _timing(edit: Edit) -> dict[str, Any]:
    if edit.eta is not None and edit.countdown_seconds is not None:
        raise EditRefused("give an eta or a countdown, not both")
    if edit.eta is not None:
        if edit.eta.tzinfo is None:
            raise EditRefused(f"eta {edit.eta.isoformat()}: say of which zone, such as {edit.eta.isoformat()}+00:00")
        return {"eta": edit.eta}
    if edit.countdown_seconds is not None:
        if not 0 <= edit.countdown_seconds < float("inf"):
            raise EditRefused(f"countdown {edit.countdown_seconds}: give seconds, 0 or more")
        try:
            datetime.now(UTC) + timedelta(seconds=edit.countdown_seconds)
        except OverflowError:
            raise EditRefused(f"countdown {edit.countdown_seconds}: no calendar goes so far") from None
        return {"countdown": edit.countdown_seconds}
    return {}


def _way(app: Any, message: OutgoingMessage, name: str | None) -> tuple[str, dict[str, Any]]:
    """Return a queue, and options that lead to it and nowhere else, whatever routes the app has for the task."""
    if name is None:
        try:
            exchange, _key, (queue, *others) = route_of(app, message)
        except ReplayRefused as error:
            raise EditRefused(f"{error}; or name a queue that this app knows") from error
        if others:
            raise EditRefused(f"more than one queue lies on its way, by exchange {exchange}: name one of them")
    elif name in app.amqp.queues:
        queue = app.amqp.queues[name]
    else:
        raise EditRefused(f"queue {name!r} is none that this app knows{nearest(name, known_queues(app))}")
    # Celery takes empty ones of a direct exchange for the queue's own name (5.5 to 5.7, `app/amqp.py`).
    is_direct = queue.exchange.type == "direct"
    way = {"exchange": "", "routing_key": ""} if is_direct else {"exchange": queue.exchange.name}
    return str(queue.name), {"queue": queue, "routing_key": queue.routing_key, **way}


def _headers(message: OutgoingMessage) -> dict[str, Any]:
    """Return the producer's own headers, and the stamps; none of ours: they are of another operation."""
    own = {name: value for name, value in custom_headers(message.headers).items() if not name.startswith("sg_")}
    return own | {name: message.headers[name] for name in ("stamped_headers", "stamps") if message.headers.get(name)}


def _kept(message: OutgoingMessage) -> dict[str, Any]:
    """Return what the copy has as the original had it."""
    limits = message.headers.get("timelimit")
    hard, soft = limits if isinstance(limits, list | tuple) and len(limits) == 2 else (None, None)
    found = {"time_limit": hard, "soft_time_limit": soft, "priority": message.properties.get("priority")}
    found |= {name: message.headers.get(name) for name in ("expires", "shadow", "ignore_result")}
    return {name: value for name, value in found.items() if value is not None}


def _require_carried(app: Any, task: Any, edit: Edit, follows: Following) -> None:
    """Refuse what could not be written, or is larger than is allowed, before anything is begun."""
    settings, clock = Wiring.of(app).settings, Wiring.of(app).clock
    whole = (edit.args, edit.kwargs, follows.options)
    try:
        _type, _encoding, body = serialize(whole, _SERIALIZER)  # type: ignore[no-untyped-call]
        packed = getattr(task, "compression", None) or app.conf.task_compression
        if packed:
            body, _ = compression.compress(body, packed)  # type: ignore[no-untyped-call]
        denies = settings.large_messages == "deny"
        Publishing(clock, 0.0, 0.0, task.name, settings.max_message_bytes if denies else None, denies).measure(body)
    except MessageTooLarge as error:
        raise EditRefused(str(error)) from error
    except Exception as error:
        # kombu wraps whatever an encoder raises, and some of it not.
        raise EditRefused(f"its message cannot be written as JSON: {error}") from error


def _said(message: OutgoingMessage, found: OwnKey, follows: Following, letter: Letter) -> list[str]:
    left = [each for each in message.left_behind if not each.startswith("group ")]
    if follows.leaves_chord or letter.wire.headers.get("group") or letter.group_id:
        left.append("leaves its group or chord, which has counted the original as failed: that is not repaired")
    return [*found.notes, *follows.words, *left, *copies_in_words(letter)]
