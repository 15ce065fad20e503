"""
Burying work: the letter first, then the record's final state.

    settle or admit: record *dying*, holding the whole letter  →  write the letter  →  record *dead* or *quarantined*

Whoever meets a dying record finishes its burial from what it holds. Every step is compared with the burial's fence, so
a slow first burier cannot write *dead* over a replay that has started since:

    t0 A: dying, letter written, frozen   t1 a person replays   t2 B finishes the burial, starts the replay (new fence)
    t3 A wakes and writes dead → refused: the fence is B's
"""

import logging
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kombu.utils.json import dumps

from celery_safeguards import headers as h
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.spool import bury_somewhere
from celery_safeguards.deadletter.text import ErrorText
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.ledger.record import Record
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.indexing import indexed
from celery_safeguards.signals import message_dead_lettered
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)
MAX_MESSAGE_CHARS = 4_000


def wire_of(request: Any) -> WireMessage:
    """Return the wire message of a running request; in eager mode, which has none, one that would say the same."""
    wire: Mapping[str, Any] | None = getattr(request, h.WIRE, None)
    if wire is not None:
        return WireMessage(**wire)
    embed = {"callbacks": request.callbacks, "errbacks": request.errbacks, "chain": request.chain}
    return WireMessage(
        body=str(dumps((request.args, request.kwargs, {**embed, "chord": request.chord}))).encode(),  # type: ignore[no-untyped-call]
        content_type="application/json",
        content_encoding="utf-8",
        headers={**(request.headers or {}), "id": request.id, "task": request.task, "root_id": request.root_id},
    )


def write_letter(wiring: Wiring, letter: Letter, *, tasks: Mapping[str, Any], store_is_away: bool = False) -> bool:
    """
    Make a letter durable, to be found by its arguments, and announce it once.

    Args:
        wiring: the app's.
        letter: to be written.
        tasks: the app's, which give its arguments their names.
        store_is_away: it is known to be, and not asked.

    Returns:
        Whether it is new; False: the store had this burial already.

    Raises:
        StoreUnavailable: neither the store nor a spool took it; the message must not be acknowledged.

    """
    letter = indexed(wiring, letter, tasks)
    if letter.terms_note:
        logger.warning("letter %s is not found by all of its arguments: %s", letter.id, letter.terms_note)
    is_new = bury_somewhere(letter, None if store_is_away else wiring.letters, wiring.spool) != "known"
    if is_new:
        message_dead_lettered.send(letter.task, letter=letter)
    return is_new


def compose_letter(
    wiring: Wiring,
    request: Any,
    *,
    letter_id: str,
    kind: FailureKind,
    reason: str,
    effect_possible: bool,
    error: ErrorText,
    attempts: int,
    **given: Any,
) -> Letter:
    """Return the letter of the running message."""
    now = wiring.clock.wall_seconds()
    return Letter.capture(
        wire=wire_of(request),
        error=error,
        id=letter_id,
        kind=kind,
        reason=reason,
        effect_possible=effect_possible,
        attempts=attempts,
        first_seen_seconds=now,
        last_failed_seconds=now,
        host=socket.gethostname(),
        pid=os.getpid(),
        release=wiring.settings.release,
        **given,
    ).capped(wiring.settings.max_letter_bytes)


def failure_of(letter: Letter) -> dict[str, Any]:
    """Return what the record keeps of a failure, to raise it again to whoever asks."""
    error = f"{letter.error_type}: {letter.error_message}" if letter.error_type else letter.reason
    return {"kind": letter.kind.value, "error": error[:MAX_MESSAGE_CHARS], "reason": letter.reason}


def burial_fields(letter: Letter) -> dict[str, Any]:
    """Return the fields of a dying record."""
    # The letter has the history of its attempts; a replay begins a new one.
    written = {"letter_id": letter.id, "letter": letter.to_json(), "attempt_history": ()}
    return {"failure": failure_of(letter), **written}


def letter_of(dying: Record) -> Letter:
    """Return the letter that a dying record holds, under the fence of its burial, which only the store could name."""
    return replace(Letter.from_json(dying.letter), burial=dying.fence)


def new_letter_id() -> str:
    """Return an id for a letter that nobody else can have chosen."""
    return uuid.uuid4().hex
