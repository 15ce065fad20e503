"""
What a replay sends and whether it may: pure decisions on a letter, the record of its key, and its task's policy.

The promise: the message goes out as it came, body byte for byte, under a new task id and the old idempotency key; and
no effect is doubled by a click. What a replay may cost is asked for before anything is changed:

| the letter's work | a replay needs |
|---|---|
| no effect possible | nothing |
| keyed, `on_unknown` is `"rerun"` or `Verify` | nothing: admission reruns it, or asks first |
| keyed, quarantined | the person's verdict: it happened, with this result; or it did not happen |
| without a key, effect possible, not `repeatable` | consent to run it twice, or the word that it did not happen |

`sg_seen` stays in the headers: it proves an earlier start to a store that has lost the record, and admission reads it
in that case only. A letter with a possible effect is stamped with its burial's fence too, since a first delivery has
no `sg_seen` yet. An older verdict is dropped: it spoke of an older doubt.

Not covered: the canvas. A replay leaves its group, for the chord has counted this member as failed already; a finished
chord is not repaired, and cannot be counted twice (celery 5.7, `backends/redis.py`, does nothing without a group). What
follows the task itself (chain, links) is in the body and goes on after a success.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from celery_safeguards import headers as h
from celery_safeguards._store_view import StoreView
from celery_safeguards.clock import to_seconds, to_us
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.ledger.decide import OnDead, OnUnknown
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.policy import Declared, DidNotHappen, Happened, Policy

PersonsVerdict = Happened | DidNotHappen

# Of one delivery, of the sender's trace, or undone by kombu before the letter was written.
_DROPPED = {"redelivered", "compression", "baggage", "traceparent", "tracestate", "b3", "uber-trace-id", "elasticapm"}
_DROPPED |= {h.DEFERRALS, h.DEFERRED_SINCE, h.BEGAN, h.ATTEMPTS, h.VERDICT}
_DROPPED_PREFIXES = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "sentry-", "x-b3-", "x-datadog-")
_DROPPED_PROPERTIES = {
    *("content_type", "content_encoding", "application_headers", "headers", "body_encoding"),
    *("delivery_info", "delivery_tag", "correlation_id", "message_id", "MessageDeduplicationId"),
    *("expiration", "timestamp", "user_id", "cluster_id"),
}
_NOTHING_TO_RECORD = "without an idempotency key nothing can be recorded as done: discard the letter instead"


class Need(StrEnum):
    """What a person must add to a replay."""

    NOTHING = "nothing"
    VERDICT = "verdict"
    CONSENT = "consent"


class ReplayRefused(SafeguardsError):
    """Raised when a letter cannot be replayed as asked, `lacks` telling what a person must add; nothing was sent."""

    def __init__(self, reason: str, lacks: Need = Need.NOTHING) -> None:
        super().__init__(reason, lacks)
        self.lacks = lacks

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is known of a letter's work at the click, and of its store; no policy: the task is unknown here."""

    store: StoreView
    record: Record | None = None
    policy: Policy | None = None

    @property
    def now_us(self) -> int:
        """By the store's time."""
        return self.store.now_us


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message ready for the broker."""

    task_id: str
    task: str
    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    exchange: str
    routing_key: str | None
    """None: the letter names no route, so the task's own is taken."""
    left_behind: tuple[str, ...]
    """What of the old message is not in the new one, for people."""


def replay_message(
    letter: Letter, new_task_id: str, verdict: PersonsVerdict | None = None, *, at_seconds: float
) -> OutgoingMessage:
    """
    Return a letter's message as a replay sends it.

    Args:
        letter: a whole one.
        new_task_id: replaces the old id, also where the message is its own root.
        verdict: what a person says of the last attempt.
        at_seconds: wall clock; an eta or expiry before it is dropped, a later one holds.

    Raises:
        LetterTruncated: the message is not whole.
        ReplayRefused: its id is not in the headers (task protocol 1, or none of Celery's): it would run under the old.

    """
    letter.require_whole()
    wire = letter.wire
    if not wire.headers.get("task"):
        raise ReplayRefused("its headers name no task, so its id cannot be replaced: publish it anew")
    headers, left_behind = _kept_headers(letter, at_seconds)
    old_id = headers.get("id")
    headers |= {"id": new_task_id, "retries": 0, h.LETTER: letter.id}
    if headers.get("root_id") in {None, old_id}:
        headers["root_id"] = new_task_id
    if letter.key is not None:
        # A foreign producer sends none: admission made it, and must not make another after a deploy.
        headers.setdefault(h.KEY, letter.key)
    seen = max(h.Lineage.from_headers(headers).seen, letter.burial if letter.effect_possible else 0)
    if seen:
        headers[h.SEEN] = seen
    if verdict is not None:
        headers[h.VERDICT] = verdict_header(verdict)
    properties = {name: value for name, value in wire.properties.items() if name not in _DROPPED_PROPERTIES}
    return OutgoingMessage(
        task_id=new_task_id,
        task=letter.task,
        body=wire.body,
        # What kombu assumes of a message without them (5.7, `serialization.py`).
        content_type=wire.content_type or "application/data",
        content_encoding=wire.content_encoding or "utf-8",
        headers=headers,
        properties={**_undegraded(letter, "properties", properties), "correlation_id": new_task_id},
        exchange=str(wire.delivery_info.get("exchange") or ""),
        routing_key=wire.delivery_info.get("routing_key") or None,
        left_behind=tuple(left_behind),
    )


def verdict_header(verdict: PersonsVerdict) -> dict[str, Any]:
    """Return a verdict as the header carries it."""
    return {"happened": True, "result": verdict.result} if isinstance(verdict, Happened) else {"happened": False}


def need(letter: Letter, work: Work) -> Need:
    """Return what a person must add to a replay of this letter."""
    if not is_keyed(letter, work.policy):
        return Need.CONSENT if letter.effect_possible and not _is_repeatable(work.policy) else Need.NOTHING
    quarantines = work.policy is None or work.policy.ledger().on_unknown is OnUnknown.QUARANTINE
    return Need.VERDICT if quarantines and _is_in_doubt(letter, work) else Need.NOTHING


def lacking(letter: Letter, work: Work, verdict: PersonsVerdict | None, *, may_run_twice: bool) -> Need:
    """Return what of that has not been said yet."""
    needed = need(letter, work)
    is_said = verdict is not None or (needed is Need.CONSENT and may_run_twice)
    return Need.NOTHING if is_said else needed


def refusal(
    letter: Letter, work: Work, verdict: PersonsVerdict | None = None, *, may_run_twice: bool = False
) -> str | None:
    """Return why a replay is refused at the click, or None. Admission has the last word on everything else."""
    lacks = lacking(letter, work, verdict, may_run_twice=may_run_twice)
    if not is_keyed(letter, work.policy):
        if isinstance(verdict, Happened):
            return _NOTHING_TO_RECORD
        if lacks is Need.CONSENT:
            return "it has no key and may have had an effect: say that it did not happen, or that it may run twice"
        return None
    if lacks is Need.VERDICT:
        return "nobody knows whether it happened: find out, and say that it happened or that it did not"
    return _refused_by_record(letter, work) or _refused_as_early(letter, work, verdict)


def is_keyed(letter: Letter, policy: Policy | None) -> bool:
    """Whether a record stands between a second start and its effect; an unknown task is taken as it was."""
    return letter.key is not None and (policy is None or policy.idempotent is not None)


def resend_refusal(
    letter: Letter, work: Work, verdict: PersonsVerdict | None = None, *, may_run_twice: bool = False
) -> str | None:
    """Return why a replay that was cut short may not be sent again, or None: its first message may be out."""
    if is_keyed(letter, work.policy):
        missing = need(letter, work) is Need.VERDICT and verdict is None
        return "its verdict is not in its history whole: give it again" if missing else None
    if isinstance(verdict, Happened):
        return _NOTHING_TO_RECORD
    if may_be_resent(letter, work.policy, may_run_twice=may_run_twice):
        return None
    return "it has no key, and its message may be out already: look for the task first, or say that it may run twice"


def may_be_resent(letter: Letter, policy: Policy | None, *, may_run_twice: bool) -> bool:
    """Whether two messages of one task id do no harm."""
    return is_keyed(letter, policy) or may_run_twice or _is_repeatable(policy)


def _kept_headers(letter: Letter, at_seconds: float) -> tuple[dict[str, Any], list[str]]:
    left_behind = [f"{place}: not kept whole in the letter" for place in letter.wire.degraded]
    headers = _without_artefacts(_undegraded(letter, "headers", letter.wire.headers))
    for name in ("eta", "expires"):
        if headers.get(name) and not _is_ahead(headers[name], at_seconds):
            left_behind.append(f"{name} {headers[name]}: past")
            headers[name] = None
    if headers.get("group"):
        left_behind.append(f"group {headers['group']}: a finished group or chord is not repaired by a replay")
    headers |= {name: None for name in ("group", "group_index") if name in headers}
    return headers, left_behind


def _without_artefacts(headers: Mapping[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in headers.items():
        plain = name.lower()
        if plain in _DROPPED or plain.startswith(_DROPPED_PREFIXES):
            continue
        # Tracers put a second copy here, since Celery merges this one into the headers of a task's own request.
        kept[name] = _without_artefacts(value) if name == "headers" and isinstance(value, Mapping) else value
    return kept


def _undegraded(letter: Letter, place: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the letter holds as repr only: a wrong value is worse than none."""
    return {name: value for name, value in entries.items() if f"{place}.{name}" not in letter.wire.degraded}


def _is_ahead(deadline: object, at_seconds: float) -> bool:
    try:
        moment = datetime.fromisoformat(str(deadline))
    except ValueError:
        return False
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() > at_seconds


def _is_repeatable(policy: Policy | None) -> bool:
    return policy is not None and policy.declared is Declared.REPEATABLE


def _is_in_doubt(letter: Letter, work: Work) -> bool:
    """Whether admission would have to ask somebody; of an unknown task the record tells, in its state alone."""
    record = work.record
    if record is None:
        return letter.effect_possible
    state = _resting_state(record) if record.letter_id == letter.id else None
    return state is State.QUARANTINED or (state is State.DEAD and record.effect_possible and work.policy is not None)


def _resting_state(record: Record) -> State | None:
    """Return dead or quarantined, also for a burial that is not finished; None: the work has gone on since."""
    state = State(record.final) if record.state is State.DYING else record.state
    return state if state in {State.DEAD, State.QUARANTINED} else None


def _refused_by_record(letter: Letter, work: Work) -> str | None:
    record = work.record
    if record is None or record.letter_id == letter.id:
        return None
    mine = h.Lineage.from_headers(letter.wire.headers).fingerprint
    if mine and record.fingerprint and mine != record.fingerprint:
        return f"key {letter.key} is in use with other arguments, by task {record.task_id}"
    runs_anew = work.policy is not None and work.policy.ledger().on_dead is OnDead.RUN
    state = _resting_state(record)
    if state is State.QUARANTINED or (state is State.DEAD and not runs_anew):
        return f"key {letter.key} is {state} under letter {record.letter_id}: replay that one"
    return None


def _refused_as_early(letter: Letter, work: Work, verdict: PersonsVerdict | None) -> str | None:
    """A request that the lost attempt sent may still land: "it did not happen" is not final before that."""
    if not isinstance(verdict, DidNotHappen) or work.policy is None or not _is_in_doubt(letter, work):
        return None
    doubt_us = work.record.doubt_us if work.record else to_us(letter.last_failed_seconds)
    left_us = doubt_us + to_us(work.policy.ledger().quiet_seconds) - work.now_us
    return f"its request may still land: ask again in {to_seconds(left_us):.0f} s" if left_us > 0 else None
