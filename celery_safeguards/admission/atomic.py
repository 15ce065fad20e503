"""
Records that are written in the body's own transaction: all of it happens, or nothing does.

    BEGIN → try-lock on the key, read the record → body → write *done*, with what the body published → COMMIT
    → send what it published → mark → acknowledge

There is no claim to renew and nothing to be unknown: while the transaction is open the try-lock tells everybody else
that the work is in progress, and whatever ends it, a kill as well, frees the lock and leaves no trace. So a body may
have effects in that database alone.

    A and B have one key:               t0 A locks   t1 B's try-lock fails: B is put off, it does not wait for A's body
    A dies anywhere before its COMMIT:  the server rolls back; the next delivery finds no record
    A dies after it:                    the next delivery finds *done*, and sends what A has not sent

The try-lock spares work, it proves nothing: a record is written only if it has not moved since it was read. Who finds
that it has rolls back, and asks again. So is the end of a failed attempt, which is written after its rollback:

    t0 A's body fails, A rolls back   t1 B locks, and runs   t2 A writes *retry due*   t3 B's write is refused

A COMMIT whose answer is lost has happened or has not: the record says so, once the try-lock is free.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from celery_safeguards._store_view import StoreView
from celery_safeguards.admission.changes import attempt_fields, done_fields, past_fields, settled_fields
from celery_safeguards.admission.gate import Gate
from celery_safeguards.admission.hold import Ending, Hold, Question
from celery_safeguards.admission.plan import Plan
from celery_safeguards.admission.store import AdmissionStore, Change, RecordKey, changed
from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.clock import Clock, to_us
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.ledger.decide import Arrival, Bury, Decision, Defer, Go, decide
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.outcome import FailureKind


class RecordMoved(SafeguardsError):
    """Raised when somebody else has written the record since it was read: nothing of this start counts; ask again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as it stood when its try-lock was taken, and the database's time then."""

    record: Record | None
    now_us: int


class Transaction(Protocol):
    """
    One transaction of a body's, used once.

    `begin` raises `StoreUnavailable`; the rest raises whatever the database does, as the body itself would see it.
    """

    @property
    def is_joined(self) -> bool:
        """Whether it is part of one that was open before: nothing is durable before that one's COMMIT."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it has begun and is not over."""
        ...

    def begin(self, key: RecordKey) -> Seen | None:
        """Begin, lock the key and read its record; None: somebody else has the lock, and nothing was begun."""
        ...

    def keep(self, message: str) -> None:
        """Keep a message that the body publishes, unless the savepoint it is published in is rolled back."""
        ...

    def kept(self) -> tuple[str, ...]:
        """Return the messages that were kept."""
        ...

    def write(self, key: RecordKey, record: Record, expires_us: int) -> bool:
        """Write the record in place of the one that was seen; False: it has moved since."""
        ...

    def commit(self) -> None:
        """Commit. What it raises may come from before the COMMIT, from itself, or from a hook that follows it."""
        ...

    def roll_back(self) -> None:
        """Leave no trace, and a connection that works or is closed; nothing if it is over already."""
        ...

    def when_durable(self, act: Callable[[], None]) -> None:
        """Call `act` once all is durable: now, or after the COMMIT of what this transaction has joined."""
        ...


class AtomicStore(AdmissionStore, Protocol):
    """A store of records in a database that bodies work with, too."""

    @property
    def alias(self) -> str:
        """Name of the database."""
        ...

    def joined(self) -> "AtomicStore":
        """Return the same records by the caller's own connection: part of whatever transaction is open there."""
        ...

    def transaction(self) -> Transaction:
        """Return a transaction of this thread's own connection, not begun."""
        ...

    def standing(self, key: RecordKey) -> Seen | None:
        """Return how a record stands while nobody works on it; None: somebody does. Raises `StoreUnavailable`."""
        ...

    def unbounded(self) -> list[str]:
        """
        Return what lets a transaction outlive its client: a text for each, with the remedy.

        Raises `ConfigurationError` where the database cannot carry atomic bodies at all.
        """
        ...


class AtomicGate(Gate):
    """
    The dialogue of one delivery about a record that its body's transaction writes.

    Args:
        store: of the records.
        plan: of the task.
        key: rendered.
        arrival: what the message says of itself.
        clock: of this process.

    """

    def __init__(self, store: AtomicStore, plan: Plan, key: str, arrival: Arrival, clock: Clock) -> None:
        # Where no record is, nothing was committed: what the message has seen, or the store forgotten, proves no more.
        super().__init__(store, plan, key, replace(arrival, seen=0, epoch=None), clock)
        self.records = store
        self.transaction = store.transaction()
        self.lost_starts = 0
        """Starts of this message without an outcome, if they were counted; at the policy's limit it is poison."""
        self._seen = Seen(None, 0)
        self._seen_at = 0.0
        self._start_fields: Mapping[str, Any] = {}

    def ask(self) -> Question:
        """Begin, and decide on the record as it stands; the transaction stays open only where the body is to run."""
        self.transaction = self.records.transaction()
        self._seen_at = self._clock.monotonic_seconds()
        seen = self.transaction.begin(self.key)
        if seen is None:
            return Question(Defer("in progress elsewhere"), None, StoreView(now_us=0, epoch=""))
        self._seen, view = seen, StoreView(now_us=seen.now_us, epoch="")
        decision = self._decided(seen.record, view)
        if isinstance(decision, Go):
            return Question(decision, seen.record, view, self._begun(decision))
        self.transaction.roll_back()
        return Question(decision, seen.record, view)

    def write_done(
        self, hold: Hold, ending: Ending, *, continues_seconds: float, publishes: tuple[str, ...] = ()
    ) -> Record:
        """
        Write success in the transaction, and keep the right to send what follows and what was published.

        Raises:
            RecordMoved: the transaction is to be rolled back.

        """
        now_us = self._now_us()
        right_seconds = max(continues_seconds, self.lease_seconds) if publishes else continues_seconds
        fields = {**done_fields(ending), **settled_fields(hold), **past_fields(hold.record, new_series=True)}
        fields |= {"publishes": publishes, "lease_until_us": now_us}
        if right_seconds:
            fields |= {"continuing": self.arrival.task_id, "lease_until_us": now_us + to_us(right_seconds)}
        record = hold.record.having(**fields)
        if not self.transaction.write(self.key, record, now_us + to_us(self._plan.idempotent.retention_seconds)):
            raise RecordMoved(str(self.key))
        return record

    def lost_starts_of(self, record: Record | None) -> int:
        """Return how many starts had no outcome: those of this message, and what the record has of another policy."""
        return max(self.lost_starts, super().lost_starts_of(record))

    def is_committed(self, hold: Hold) -> bool | None:
        """Return whether this delivery's COMMIT has happened; None: not over yet. Raises `StoreUnavailable`."""
        seen = self.records.standing(self.key)
        if seen is None:
            return None
        ours = (hold.record.owner, hold.record.fence, State.DONE)
        return seen.record is not None and (seen.record.owner, seen.record.fence, seen.record.state) == ours

    def settle_retry(
        self,
        hold: Hold,
        delay_seconds: float,
        failure: Mapping[str, Any],
        *,
        effect_possible: bool,  # noqa: ARG002 - rolled back
        ambiguous: bool,  # noqa: ARG002
        attempt: FailedAttempt | None = None,
    ) -> Record:
        """Write, after the rollback, that the body is to be started again. Raises `RecordMoved`, `StoreUnavailable`."""
        retention = self._plan.idempotent.retention_seconds + delay_seconds
        fields = {"state": State.RETRY_DUE, "failure": dict(failure), **attempt_fields(hold, attempt)}
        return self._write_failed(hold, fields, {"not_before_us": delay_seconds}, retention)

    def settle_dying(
        self,
        hold: Hold,
        final: State,
        burial: Mapping[str, Any],
        *,
        effect_possible: bool,  # noqa: ARG002
    ) -> Record:
        """Write, after the rollback, that the work is to be buried. Raises `RecordMoved`, `StoreUnavailable`."""
        return self._write_failed(hold, {"state": State.DYING, "final": final, **burial}, {}, None)

    def _write_failed(
        self, hold: Hold, fields: Mapping[str, Any], after_seconds: Mapping[str, float], retention: float | None
    ) -> Record:
        own = {**self._start_fields, "series_began_us": hold.record.series_began_us, **settled_fields(hold)}
        own |= {"asking": False, "released": False, "effect_possible": False, "doubt_us": 0, **fields}
        change = Change(fields=own, after_seconds=after_seconds, retention_seconds=retention)
        written = self._take(self._seen.record, change)
        if written is None:
            raise RecordMoved(str(self.key))
        return written.record

    def _decided(self, record: Record | None, view: StoreView) -> Decision:
        decision = decide(record, self.arrival, self._plan.ledger, view)
        if isinstance(decision, Go) and self.lost_starts >= self._plan.ledger.max_lost_starts:
            reason = f"started {self.lost_starts} times without an outcome"
            return Bury(FailureKind.WORKER_LOST, State.DEAD, reason, effect_possible=False)
        return decision

    def _begun(self, go: Go) -> Hold:
        record, now_us = self._seen.record, self._seen.now_us
        change = self._changes.start(record, new_series=go.new_series or record is None)
        self._start_fields = {name: value for name, value in change.fields.items() if name != "state"}
        last = record or Record(state=State.IN_PROGRESS)
        claim = {"owner": self.arrival.owner, "fence": max(last.fence + 1, now_us), "lost_us": 0, "rev": last.rev + 1}
        claim["lease_until_us"] = now_us + to_us(self.lease_seconds)
        begun = changed(last, change, now_us).having(**claim)
        # Nothing is leased: a store that is away is waited for as long as if it had just been asked.
        return Hold(self.key, begun, self._seen_at, "")

    def _now_us(self) -> int:
        return self._seen.now_us + to_us(self._clock.monotonic_seconds() - self._seen_at)
