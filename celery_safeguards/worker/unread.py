"""
The letter of a message that no task of this worker has read.

It holds the wire's bytes, so that a replay sends them once the task is there, or shows them to whoever has to mend the
producer. Its id is made of the message, so that a redelivery finds the letter that was written before a crash:

    t0 letter written   t1 killed before the message is rejected   t2 redelivered: the letter is known, nothing is new

The same bytes may as well be published twice. A message that is no redelivery, or whose letter is over, gets a letter
of its own: given up without one, it would be lost.

Not covered: the mark of a redelivery is the broker's. A message that was published twice, byte for byte under one id,
and whose second copy comes back before its own letter is written, shares the first one's letter while that is open.
"""

import hashlib
import logging
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage, dumps
from celery_safeguards.delivery.connections import is_hardened
from celery_safeguards.delivery.lease import receive_count, wire_properties
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.headers import Lineage
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.burial import write_letter
from celery_safeguards.pipeline.failing import error_text
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.keeper import keeper_of

logger = logging.getLogger(__name__)
_ROUTE = ("exchange", "routing_key")


def keep_unread(
    app: Any, message: Any, kind: FailureKind, reason: str, error: BaseException, seen_seconds: float | None = None
) -> bool:
    """
    Write the letter of a message; may wait for the store.

    Args:
        app: the worker's.
        message: kombu's, or one that kombu could not make whole.
        kind: `UNKNOWN_TASK` or `UNDECODABLE`.
        reason: what is wrong with it.
        error: that told so.
        seen_seconds: when it was first seen, wall clock; None: now.

    Returns:
        Whether a letter is durable. False: the message must not be acknowledged.

    """
    wiring, keeper = Wiring.of(app), keeper_of(app)
    is_away = keeper is not None and keeper.is_store_away
    letter = letter_of_unread(wiring, message, kind, reason, error, seen_seconds)
    try:
        if not write_letter(wiring, letter, tasks=app.tasks, store_is_away=is_away) and _is_of_another(wiring, letter):
            letter = replace(letter, id=f"{letter.id}-{uuid.uuid4().hex[:8]}")
            write_letter(wiring, letter, tasks=app.tasks, store_is_away=is_away)
    except StoreUnavailable as away:
        logger.error("a message that is not read (%s) cannot be kept as a letter, and comes back: %s", reason, away)  # noqa: TRY400
        return False
    logger.error(
        "a message is not read (%s) and kept as letter %s: see `safeguards dead show`. Celery may call it discarded",
        reason,
        letter.id,
    )
    return True


def letter_of_unread(
    wiring: Wiring,
    message: Any,
    kind: FailureKind,
    reason: str,
    error: BaseException,
    seen_seconds: float | None = None,
) -> Letter:
    """Return the letter of a message as it came; see `keep_unread`."""
    wire, fields = wire_of_message(message), fields_of(message)
    lineage = Lineage.from_headers(wire.headers)
    now = wiring.clock.wall_seconds() if seen_seconds is None else seen_seconds
    task_id, retries = fields.get("id"), fields.get("retries")
    attempts = retries if isinstance(retries, int) else 0
    return Letter.capture(
        wire=wire,
        error=error_text(wiring, error),
        id=lineage.letter_id or unread_id(wire, task_id or _lasting_tag(message)),
        task=as_text(fields.get("task")),
        task_id=as_text(task_id),
        kind=kind,
        reason=reason,
        # Nobody here has started it. Another worker may have, which knew the task.
        effect_possible=bool(wire.delivery_info.get("redelivered") or lineage.seen or lineage.began or attempts > 0),
        attempts=attempts,
        first_seen_seconds=now,
        last_failed_seconds=now,
        key=lineage.key,
        host=socket.gethostname(),
        pid=os.getpid(),
        release=wiring.settings.release,
    ).capped(wiring.settings.max_letter_bytes)


def wire_of_message(message: Any) -> WireMessage:
    """Return a message of kombu's as it came, whole or not."""
    info = _info_of(message)
    # SQS marks no redelivery, it counts receipts.
    is_again = info.get("redelivered") or ("sqs_message" in info and receive_count(message) > 1)
    return WireMessage(
        body=_body_of(message.body),
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=_mapping(message.headers, "headers"),
        properties=_mapping(wire_properties(message), "properties"),
        delivery_info={**{name: info.get(name) for name in _ROUTE}, "redelivered": is_again},
    )


def fields_of(message: Any) -> Mapping[str, Any]:
    """Return where the message says what it is: its headers, or the body of protocol 1."""
    headers = message.headers
    if isinstance(headers, Mapping) and ("task" in headers or "id" in headers):
        return headers
    try:
        payload = message.payload
    except Exception:  # noqa: BLE001 - that it cannot be read is what the letter is about
        return {}
    return payload if isinstance(payload, Mapping) else {}


def _is_of_another(wiring: Wiring, letter: Letter) -> bool:
    """Whether the letter that is there is that of an earlier publication of the same bytes."""
    stored = wiring.letters.get(letter.id)
    if stored is None or stored.first_seen_seconds == letter.first_seen_seconds:
        return False  # our own: its first answer was lost
    return not letter.wire.delivery_info.get("redelivered") or stored.work_state not in {"open", "replaying"}


def _lasting_tag(message: Any) -> Any:
    """Return a message's tag; None where each delivery has another one: of the hardened transport, and of SQS."""
    return None if is_hardened(message.channel) or "sqs_message" in _info_of(message) else message.delivery_tag


def _info_of(message: Any) -> Mapping[str, Any]:
    return message.delivery_info if isinstance(message.delivery_info, Mapping) else {}


def unread_id(wire: WireMessage, name: Any) -> str:
    """Return the id of the letter of a message that is not read; `name` is its task's id, or whatever names it."""
    # A tag of AMQP is a number of its channel, and names nothing after a redelivery.
    return f"unread-{digest_of(wire, name if isinstance(name, str) else '')}"


def digest_of(wire: WireMessage, name: str) -> str:
    """Return a digest of a message's bytes and of what names it, the same at each delivery."""
    parts = (name.encode("utf-8", "surrogatepass"), str(wire.content_type).encode("utf-8", "surrogatepass"), wire.body)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {name: value} if value else {}


def _body_of(body: Any) -> bytes:
    """Return a body's bytes; one that is neither text nor bytes as the envelope had it: as JSON."""
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return b"" if body is None else dumps(body).encode()


def as_text(value: Any) -> str:
    """Return what should be text as text."""
    return value if isinstance(value, str) else "" if value is None else f"{value!r:.200}"
