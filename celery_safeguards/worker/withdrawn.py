"""
Messages that are withdrawn before their body starts: expired, or revoked by a person.

Celery acknowledges them, stores REVOKED and calls no hook of the task: whoever counts failures sees nothing, and a lock
or a claim that is kept by `on_failure` is kept for ever (celery/celery#980, celery/celery#5278,
steinitzu/celery-singleton#29). Here each leaves a trace before it is acknowledged:

| message | trace |
|---|---|
| expired, never started | outcome `expired`; a dead letter with `safeguards_bury_expired="always"` |
| expired, started before (a retry, a redelivery) | outcome `expired` and a dead letter, unless that is `"never"` |
| revoked | outcome `cancelled`: a person has decided |
| the replay of a letter, either way | its letter is open again: else it would say that it was replayed, for ever |
| terminated while its body runs | outcome `cancelled`; its claim is marked lost and its lock free, once it is dead |

Before its start a message holds nothing that had to be freed: claim and lock are taken by the body's process. A retry
or a deferral has given back both. Its record says *retry due*, and the next publication of the key is admitted by it,
when due: it starts, or `on_unknown` answers where an effect is possible.

A letter that neither store nor spool takes keeps its message: it is not acknowledged, and is withdrawn again when it
comes back.

Not covered: RabbitMQ drops a message whose time to live is over by itself, without a worker; a dead letter exchange
keeps those.
"""

import logging
from types import SimpleNamespace
from typing import Any

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.attempts import FailedAttempt, read_attempts
from celery_safeguards.deadletter.letter import LetterUnreadable
from celery_safeguards.deadletter.text import ErrorText
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.headers import Lineage
from celery_safeguards.ledger.past import past_of
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline.burial import compose_letter, write_letter
from celery_safeguards.pipeline.counting import is_redelivered
from celery_safeguards.signals import end_delivery
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.keeper import keeper_of

logger = logging.getLogger(__name__)
TERMINATED = "terminated while it ran: whether it had an effect is not known"


def leave_letter(app: Any, context: SimpleNamespace, key: RecordKey | None, *, has_expired: bool) -> bool:
    """
    Write the letter of a withdrawn message, if it is to have one, and return whether the message may be acknowledged.

    Args:
        app: of the worker.
        context: the request as the child would have got it.
        key: of its record, if its task has one.
        has_expired: else it was revoked.

    """
    wiring, lineage = Wiring.of(app), Lineage.from_headers(context.headers)
    started = _was_started(context, lineage)
    if lineage.letter_id is None and not (has_expired and _buries(wiring.settings.bury_expired, started=started)):
        return True
    keeper = keeper_of(app)
    if keeper is not None and keeper.is_store_away and wiring.spool is None:
        # Nobody else of this process waits for the store either.
        return False
    reason = _reason(context, started=started, has_expired=has_expired)
    try:
        letter = compose_letter(
            wiring,
            context,
            letter_id=lineage.letter_id or f"expired-{context.id}",
            kind=FailureKind.EXPIRED if has_expired else _kind_before(wiring, lineage),
            reason=reason,
            effect_possible=started,
            error=ErrorText(type="", message=reason),
            attempts=int(getattr(context, "retries", 0) or 0),
            key=key.key if key else None,
            scope=key.scope if key else None,
            past=_past(wiring, key, context.id),
        )
        write_letter(wiring, letter, tasks=app.tasks)
    except StoreUnavailable as away:
        logger.warning("%s[%s]: %s, but its letter could not be written: %s", context.task, context.id, reason, away)
        return False
    return True


def tell_withdrawn(task: Any, task_id: str, key: RecordKey | None, *, has_expired: bool, terminated: bool) -> None:
    """Tell the outcome of a withdrawn delivery."""
    outcome = Outcome.EXPIRED if has_expired else Outcome.CANCELLED
    reason = TERMINATED if terminated else None
    end_delivery(task, task_id, outcome, key.key if key else None, reason)


def _buries(policy: str, *, started: bool) -> bool:
    return policy == "always" or (policy == "started" and started)


def _was_started(context: SimpleNamespace, lineage: Lineage) -> bool:
    """Whether the body may have run before under this message or one that it is a copy of."""
    return bool(lineage.seen or lineage.began or getattr(context, "retries", 0)) or is_redelivered(context)


def _past(wiring: Wiring, key: RecordKey | None, task_id: str) -> tuple[FailedAttempt, ...]:
    """Return what the record of a withdrawn message knows of its attempts; the letter is written without it as well."""
    try:
        record = wiring.admission.read(key) if key else None
    except StoreUnavailable as away:
        logger.warning("the letter of %s tells no attempts before it: %s", task_id, away)
        return ()
    if record is None or record.task_id != task_id:
        return ()
    # Another delivery of it may run now: only what was seen to die was lost.
    return read_attempts(past_of(record) if record.lost_us else record.attempt_history)


def _reason(context: SimpleNamespace, *, started: bool, has_expired: bool) -> str:
    before = "after an earlier start" if started else "before its first start"
    return f"expired at {context.expires}, {before}" if has_expired else f"revoked {before}"


def _kind_before(wiring: Wiring, lineage: Lineage) -> FailureKind:
    """Return as what the letter of a replay lay there before it was replayed: a revoke tells nothing new."""
    try:
        letter = wiring.letters.get(lineage.letter_id or "")
    except LetterUnreadable:
        letter = None
    return letter.kind if letter else FailureKind.UNKNOWN_OUTCOME
