"""
What admit answers: one pure function of the record, the arriving message, the task's policy and the store's time.

| record | answer |
|---|---|
| none | go; if the message proves an earlier start, as unknown; within one lease of a new epoch, defer |
| in progress, lease live | defer |
| in progress, lapsed or marked lost | unknown; lapsed right after a store outage, defer |
| retry due later | defer until then |
| retry due | go; effect possible, as unknown |
| dying | finish the burial, then ask again |
| dead or quarantined, a replay of its letter | a new series, by the person's verdict or as unknown |
| dead or quarantined, an id that had its series | fail with the stored failure |
| dead or quarantined, its letter discarded, another id | a new series; effect possible, as unknown |
| dead, another id | by `on_dead`: refuse, run, attach |
| quarantined, another id | attach |
| done | return the stored result |
| dead without an effect, its letter discarded, other arguments | a new series: nothing was done under the old ones |
| any else, same key with other arguments | conflict |

*Unknown* means that the body may have had an outside effect whose end nobody recorded. It is answered by `on_unknown`:
run again, ask the outside first, or wait for a person. Whoever asks takes the claim first:

    t0 A is frozen past its lease          t2 B asks `verify`: did not happen
    t1 C has lapsed A's claim too, and asks  t3 C runs the body      t4 B would start it a second time

With the claim taken at t1, B's answer counts only under B's own fence, and it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_safeguards._store_view import StoreView
from celery_safeguards.clock import to_us
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.outcome import FailureKind


class OnUnknown(StrEnum):
    """What to do when nobody knows whether the effect happened."""

    RERUN = "rerun"
    VERIFY = "verify"
    QUARANTINE = "quarantine"


class OnDead(StrEnum):
    """What a new publication of dead work gets."""

    REFUSE = "refuse"
    RUN = "run"
    ATTACH = "attach"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPolicy:
    """The part of a task's policy that admission rests on."""

    on_unknown: OnUnknown
    on_dead: OnDead = OnDead.REFUSE
    quiet_seconds: float = 0.0
    """How long a request of a lost start may still be in flight: neither `verify` nor a person is asked before."""
    attempts: int | None = None
    """Starts of the body in one series; None: only lost starts are bounded."""
    max_lost_starts: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What the message says of itself."""

    task_id: str
    owner: str
    fingerprint: str = ""
    seen: int = 0
    epoch: str | None = None
    letter_id: str | None = None
    verdict: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Go:
    """Start the body under a new claim."""

    reason: str
    new_series: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """The claim is this delivery's own already: the answer to it was lost on the way."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Take the claim without a start, and ask `verify`."""

    reason: str
    doubt_us: int
    new_series: bool = False


@dataclass(frozen=True, slots=True)
class Accept:
    """A person said that it happened: record it as done, without a start."""

    result: Any


@dataclass(frozen=True, slots=True)
class Defer:
    """Put the message off until `until_us`; 0: by the usual backoff."""

    reason: str
    until_us: int = 0


@dataclass(frozen=True, slots=True)
class Bury:
    """Take the claim to bury the work: letter first, then `final`."""

    kind: FailureKind
    final: State
    reason: str
    effect_possible: bool
    new_series: bool = False


@dataclass(frozen=True, slots=True)
class FinishBurial:
    """Write the letter that the record holds, then ask again."""


@dataclass(frozen=True, slots=True)
class Return:
    """The work is done: hand out what is stored."""


class Refusal(StrEnum):
    """Why a message is failed without a start."""

    STORED = "stored"
    REFUSED = "refused"
    ATTACHED = "attached"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the message, naming the letter; only a conflict writes one of its own."""

    refusal: Refusal


Decision = Go | Resume | Ask | Accept | Defer | Bury | FinishBurial | Return | Fail


def decide(  # noqa: PLR0911 - the table, a row a return
    record: Record | None, arrival: Arrival, policy: LedgerPolicy, store: StoreView
) -> Decision:
    """Return what to do with a message that asks to be admitted. See the table at the top."""
    if record is None:
        return _without_record(arrival, policy, store)
    has_other_arguments = record.fingerprint and arrival.fingerprint and record.fingerprint != arrival.fingerprint
    if has_other_arguments and not (record.released and is_without_effect(record)):
        return Fail(Refusal.CONFLICT)
    match record.state:
        case State.IN_PROGRESS:
            return _in_progress(record, arrival, policy, store)
        case State.RETRY_DUE:
            if store.now_us < record.not_before_us:
                return Defer("retry not due", record.not_before_us)
            if record.effect_possible:
                return _unknown("the last attempt may have had an effect", record.doubt_us, record, policy, store)
            return start("retry due", record, policy)
        case State.DYING:
            return FinishBurial()
        case State.DONE:
            return Return()
        case State.DEAD | State.QUARANTINED:
            return _buried(record, arrival, policy, store)


def start(
    reason: str, record: Record | None, policy: LedgerPolicy, *, new_series: bool = False, verified: bool = False
) -> Go | Bury:
    """
    Return whether one more start is allowed: poison and the attempts cap end here, whoever brings the message.

    Used for a retry that is due, for an unknown outcome by `rerun`, and after `verify` said that nothing happened
    (`verified`: then the burial leaves no doubt either).
    """
    if record is None or new_series:
        return Go(reason, new_series)
    if record.lost_starts >= policy.max_lost_starts:
        lost = f"started {record.lost_starts} times without an outcome"
        killed = FailureKind(record.failure.get("kind", FailureKind.WORKER_LOST))
        poison = killed if killed in _PROCESS_ENDED else FailureKind.WORKER_LOST
        return Bury(poison, State.DEAD, lost, effect_possible=not verified)
    if policy.attempts is not None and record.attempt >= policy.attempts:
        used = f"attempt {record.attempt} of {policy.attempts}"
        in_doubt = not verified and (record.state is State.IN_PROGRESS or record.effect_possible)
        known = FailureKind(record.failure.get("kind", FailureKind.WORKER_LOST))
        kind = FailureKind.UNKNOWN_OUTCOME if in_doubt else known
        return Bury(kind, State.DEAD, used, effect_possible=in_doubt)
    return Go(reason)


_PROCESS_ENDED = frozenset({FailureKind.WORKER_LOST, FailureKind.WORKER_TIMEOUT})


def _without_record(arrival: Arrival, policy: LedgerPolicy, store: StoreView) -> Decision:
    if store.now_us < store.admit_from_us:
        return Defer("the store is new or was wiped", store.admit_from_us)
    if arrival.verdict is not None:
        return _by_verdict(arrival.verdict)
    if arrival.seen:
        # The fence is the server's time when that start began. It may have run on until the store was wiped.
        doubt_us = max(arrival.seen, store.admit_from_us)
        return _unknown("no record, but the message was started before", doubt_us, None, policy, store)
    if arrival.epoch is not None and arrival.epoch != store.epoch:
        return _unknown("no record, but the store has lost its data", store.admit_from_us, None, policy, store)
    return Go("no record")


def _in_progress(record: Record, arrival: Arrival, policy: LedgerPolicy, store: StoreView) -> Decision:
    if record.owner == arrival.owner and not record.asking:
        return Resume()
    if record.is_live(store.now_us):
        return Defer("in progress elsewhere")
    if not record.lost_us and store.now_us < store.takeover_from_us:
        return Defer("its lease lapsed while the store was away", store.takeover_from_us)
    reason = "its owner was lost" if record.lost_us else "its lease lapsed"
    return _unknown(reason, doubt_of(record), record, policy, store)


def is_without_effect(record: Record) -> bool:
    """Whether work is dead, and certainly did nothing outside: no step of its body was begun."""
    return record.state is State.DEAD and not record.effect_possible and not record.steps


def doubt_of(record: Record) -> int:
    """Return since when nobody knows how the record's last attempt ended, in the store's microseconds."""
    if record.state is State.IN_PROGRESS and not record.asking:
        return record.lost_us or record.lease_until_us
    # A claim that was taken only to ask had no start of its own: the older doubt counts.
    return record.doubt_us


def _buried(record: Record, arrival: Arrival, policy: LedgerPolicy, store: StoreView) -> Decision:
    if arrival.task_id in record.series:
        return Fail(Refusal.STORED)
    if arrival.letter_id and arrival.letter_id == record.letter_id:
        return _replayed(record, arrival, policy, store)
    if record.released:
        return _new_series("its letter was discarded", record, policy, store)
    if record.state is State.QUARANTINED or policy.on_dead is OnDead.ATTACH:
        return Fail(Refusal.ATTACHED)
    if policy.on_dead is OnDead.REFUSE:
        return Fail(Refusal.REFUSED)
    return _new_series("a new publication of dead work", record, policy, store)


def _replayed(record: Record, arrival: Arrival, policy: LedgerPolicy, store: StoreView) -> Decision:
    if arrival.verdict is not None:
        # A request that the lost attempt sent may still land: no person's word is final before that.
        due_us = record.doubt_us + to_us(policy.quiet_seconds)
        if not arrival.verdict.get("happened") and store.now_us < due_us:
            return Defer("the verdict is not due", due_us)
        return _by_verdict(arrival.verdict, new_series=True)
    in_doubt = record.state is State.QUARANTINED or record.effect_possible
    if in_doubt and policy.on_unknown is OnUnknown.QUARANTINE:
        return Fail(Refusal.STORED)
    return _new_series("replay", record, policy, store)


def _new_series(reason: str, record: Record, policy: LedgerPolicy, store: StoreView) -> Decision:
    if record.state is State.QUARANTINED or record.effect_possible:
        return _unknown(reason, record.doubt_us, record, policy, store, new_series=True)
    return Go(reason, new_series=True)


def _by_verdict(verdict: Mapping[str, Any], *, new_series: bool = False) -> Decision:
    if verdict.get("happened"):
        return Accept(verdict.get("result"))
    return Go("a person said that it did not happen", new_series)


def _unknown(
    reason: str,
    doubt_us: int,
    record: Record | None,
    policy: LedgerPolicy,
    store: StoreView,
    *,
    new_series: bool = False,
) -> Decision:
    if policy.on_unknown is OnUnknown.RERUN:
        return start(reason, record, policy, new_series=new_series)
    if policy.on_unknown is OnUnknown.QUARANTINE:
        return Bury(FailureKind.UNKNOWN_OUTCOME, State.QUARANTINED, reason, effect_possible=True, new_series=new_series)
    due_us = doubt_us + to_us(policy.quiet_seconds)
    if store.now_us < due_us:
        return Defer("verify is not due", due_us)
    return Ask(reason, doubt_us, new_series)
