"""
One message from a broker's dead-letter queue becomes a letter, or is found to be in one.

    taken ──▶ its letter is known? ── no ──▶ letter written ──▶ acknowledged
                     └─ yes: noted there ─────────────────────────▲

    t0 letter written   t1 killed before the acknowledgement   t2 taken again: the same id, so nothing is written

The id is made of the message and of this very death of it, so a message that comes back after a kill meets its own
letter, and one that has died anew gets another. A replay that died in the broker reopens the letter that it is from.

A worker may have written the letter already: it keeps what it cannot read before it rejects it, and what a body rejects
before Celery tells the broker. Such a letter has the id of the task or of the bytes, or is named by the record of the
key; it gets a line of history instead of a double.

Nothing goes to the spool: the queue that the message is in keeps it just as well. So does it keep what is larger than
letters may be, which would lose its body here.

Not covered: two messages byte for byte alike, under one task id, that died of one reason within a second share a
letter. What has expired on a classic queue may have been with a worker before: RabbitMQ keeps no mark of that.
"""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kombu.serialization import prepare_accept_content

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.deadletter.history import MAX_DETAIL_CHARS, HistoryEntry
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.deadletter.text import ErrorText, clean_text
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import KeyRefused
from celery_safeguards.headers import Lineage
from celery_safeguards.ingest.deaths import Death, Past
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.burial import write_letter
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.malformed import fault_of
from celery_safeguards.worker.unread import as_text, digest_of, fields_of, unread_id, wire_of_message

_JSON = "application/json"
_ALSO_THERE = "also in a dead-letter queue"
_RESTING = frozenset({State.DYING, State.DEAD, State.QUARANTINED})


class Fate(StrEnum):
    """What became of one message."""

    INGESTED = "ingested"
    KNOWN = "known"
    """A letter of it was there."""
    LEFT = "left"
    """It stays in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One message of a dead-letter queue; it may be acknowledged unless it is left."""

    queue: str
    fate: Fate
    letter_id: str
    task: str
    kind: FailureKind
    reason: str


def keep(app: Any, message: Any, queue: str) -> Ingested:
    """
    Make a message's letter durable, unless there is one.

    Args:
        app: whose letters they are; it need not know the task.
        message: kombu's, or one that kombu could not make whole.
        queue: that it was taken from.

    Raises:
        StoreUnavailable: nothing is durable; the message must not be acknowledged.

    """
    wiring = Wiring.of(app)
    letter = _letter_of(app, wiring, message, queue)
    if letter.wire.truncated:
        return _told(queue, Fate.LEFT, letter, "larger than safeguards_max_letter_bytes: it would lose its body")
    try:
        known = _known(wiring, letter, queue)
        if known is not None:
            return _told(queue, Fate.KNOWN, known, known.reason)
        wiring = replace(wiring, spool=None)
        is_new = write_letter(wiring, letter, tasks=app.tasks)
        if not is_new and _is_nameless(message, letter):
            letter = replace(letter, id=f"{letter.id}-{uuid.uuid4().hex[:8]}")
            is_new = write_letter(wiring, letter, tasks=app.tasks)
    except LetterUnreadable as error:
        return _told(queue, Fate.LEFT, letter, str(error))
    return _told(queue, Fate.INGESTED if is_new else Fate.KNOWN, letter, letter.reason)


def _letter_of(app: Any, wiring: Wiring, message: Any, queue: str) -> Letter:
    now, past = wiring.clock.wall_seconds(), Past.of(message, queue)
    wire = _with_way(wire_of_message(message), past.first)
    _let_it_be_read(message)
    fields = fields_of(message)
    lineage, retries = Lineage.from_headers(wire.headers), fields.get("retries")
    task, task_id = as_text(fields.get("task")), as_text(fields.get("id"))
    last = past.deaths[0] if past.deaths else None
    fault = _fault(app, message)
    kind, why = _explained(app, message, task, last, fault)
    # Another app may know the task, and accept its content type: only what nobody can read was never started.
    may_have_begun = fault is None and (not past.deaths or any(death.may_follow_a_start for death in past.deaths))
    times = [death.at_seconds for death in past.deaths if death.at_seconds is not None] or [now]
    key, scope = _key_of(app, message, task, lineage)
    return Letter.capture(
        wire=wire,
        error=ErrorText(type="", message=why),
        id=lineage.letter_id or f"dlx-{digest_of(wire, task_id + past.name)}",
        task=task,
        task_id=task_id,
        kind=kind,
        reason=why,
        effect_possible=may_have_begun or bool(lineage.seen or lineage.began or retries),
        attempts=retries if isinstance(retries, int) else 0,
        first_seen_seconds=min(*times, now),
        last_failed_seconds=min(last.at_seconds if last and last.at_seconds is not None else now, now),
        key=key,
        scope=scope,
        history=(
            *(death.entry(now) for death in reversed(past.deaths)),
            HistoryEntry(at_seconds=now, what="ingested", detail=f"from queue {queue}"),
        ),
    ).capped(wiring.settings.max_letter_bytes)


def _let_it_be_read(message: Any) -> None:
    """Have a message read as a worker has it, but by no serializer that may do more than read."""
    message.accept = {_JSON}
    # py-amqp decodes bodies for a worker (5.3, `abstract_channel.py`); here that waits until the bytes are kept.
    with suppress(Exception):
        message.body = message.body.decode(message.content_encoding)


def _with_way(wire: WireMessage, first: Death | None) -> WireMessage:
    """Return a message with the way it first came instead of the one into the dead-letter queue; none: its task's."""
    way = {} if first is None else {"exchange": first.exchange, "routing_key": first.routing_key}
    return replace(wire, delivery_info=way)


def _explained(app: Any, message: Any, task: str, last: Death | None, fault: str | None) -> tuple[FailureKind, str]:
    """Return the kind of a letter and its reason: what is wrong with the message, where it came to be read at all."""
    said = str(last) if last else "it does not say how it came into the dead-letter queue: published or moved there"
    if last is not None and not last.may_follow_a_start:
        return last.kind, said
    accepted = prepare_accept_content(app.conf.accept_content)  # type: ignore[no-untyped-call]
    # None: all that kombu can read. On SQS a content type is whatever its producer has written.
    if fault is None and accepted is not None and message.content_type not in tuple(accepted):
        fault = f"its content type {message.content_type!r:.100} is not accepted by this app"
    if fault is not None:
        return FailureKind.UNDECODABLE, clean_text(f"{said}; {fault}", MAX_DETAIL_CHARS)
    if task not in app.tasks:
        return FailureKind.UNKNOWN_TASK, f"{said}; no task {task:.300} is registered in this app"
    return (last.kind if last else FailureKind.UNKNOWN_OUTCOME), said


def _fault(app: Any, message: Any) -> str | None:
    """Return why no worker could have read a message; None: one could, as far as can be told by reading JSON."""
    if message.errors:
        return f"it cannot be read: {message.errors[0][1]}"
    if message.content_type != _JSON:
        return None
    try:
        payload = message.payload
    except Exception as error:  # noqa: BLE001 - decoders, and encodings that nobody knows, raise what they like
        return f"its body cannot be read: {type(error).__name__}: {error}"
    fields = message.headers if "task" in message.headers else payload
    if not isinstance(fields, Mapping) or "task" not in fields:
        return "it names no task"
    return fault_of(message, app.tasks)


def _key_of(app: Any, message: Any, task: str, lineage: Lineage) -> tuple[str | None, str | None]:
    """Return key and scope: by the header, else made of the arguments as admission does."""
    plan = getattr(app.tasks.get(task), "plan", None)
    key = lineage.key
    if plan is None:
        return key, None
    if key is None:
        try:
            args, kwargs, _embed = message.payload
            key = plan.key(args, kwargs)
        except KeyRefused:
            return None, None
        except Exception:  # noqa: BLE001 - a body that cannot be read, or is none; the letter's reason says so
            return None, None
    return key, plan.record_key(key).scope


def _known(wiring: Wiring, letter: Letter, queue: str) -> Letter | None:
    """Return the letter that a worker has written of this message or of its operation, noted; None: there is none."""
    if Lineage.from_headers(letter.wire.headers).letter_id is not None:
        return None  # a replay: it is for the store to say whether it reopens its letter
    found = _by_record(wiring, letter) or _by_message(wiring, letter)
    if found is None:
        return None
    detail = f"queue {queue}, task {letter.task_id}: {letter.reason}"
    if all((entry.what, entry.detail) != (_ALSO_THERE, detail) for entry in found.history):
        wiring.letters.add_note(found.id, _ALSO_THERE, None, detail)
    return found


def _by_record(wiring: Wiring, letter: Letter) -> Letter | None:
    if letter.key is None or letter.scope is None:
        return None
    record = wiring.admission.read(RecordKey(letter.scope, letter.key))
    if record is None or record.state not in _RESTING or not record.letter_id:
        return None
    mine = Lineage.from_headers(letter.wire.headers).fingerprint
    if mine and record.fingerprint and mine != record.fingerprint:
        return None  # other arguments under the same key: another piece of work
    found = wiring.letters.get(record.letter_id)
    # What a person has given up, or what succeeded, does not stand for another publication.
    is_over = found is not None and found.work_state in {"closed", "discarded"} and found.task_id != letter.task_id
    return None if is_over else found


def _by_message(wiring: Wiring, letter: Letter) -> Letter | None:
    task_id = letter.task_id
    named = [task_id, f"expired-{task_id}", f"keyless-{task_id}"] if task_id else []
    for name in (*named, unread_id(letter.wire, task_id)):
        found = wiring.letters.get(name)
        # Without an id of its own a message is the one of a letter only while that waits.
        if found is not None and found.task_id == task_id and (task_id or found.work_state in {"open", "replaying"}):
            return found
    return None


def _is_nameless(message: Any, letter: Letter) -> bool:
    """Whether a message that looks like one that was ingested is another one: neither id nor broker says the same."""
    info = message.delivery_info
    return not letter.task_id and "sqs_message" not in info and not info.get("redelivered")


def _told(queue: str, fate: Fate, letter: Letter, reason: str) -> Ingested:
    return Ingested(queue=queue, fate=fate, letter_id=letter.id, task=letter.task, kind=letter.kind, reason=reason)
