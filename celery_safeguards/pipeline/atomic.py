"""
One delivery of a task whose record is written in its body's transaction; see `admission/atomic.py`.

    lock, if it has one → begin → body → ensure → write *done* → COMMIT → send what was published → acknowledge

A failed attempt is rolled back first; then what follows is recorded, published and acknowledged as with any keyed task.
Lost starts leave no trace in the record, so they are counted as those of unkeyed work are.
"""

from typing import Any

from celery.exceptions import Ignore

from celery_safeguards.admission.atomic import AtomicGate, RecordMoved
from celery_safeguards.admission.hold import Hold
from celery_safeguards.errors import (
    DeferralRefused,
    Deferred,
    DroppedLocally,
    LetteredError,
    StoreUnavailable,
)
from celery_safeguards.ledger.decide import Arrival
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.outcome import Outcome
from celery_safeguards.pipeline.admitting import Admission, Finished
from celery_safeguards.pipeline.atomic_body import AtomicRun, gate_of_atomic, is_running
from celery_safeguards.pipeline.continuing import continue_canvas, hand_on
from celery_safeguards.pipeline.counting import CountedStart
from celery_safeguards.pipeline.delivery import Delivery
from celery_safeguards.pipeline.locking import HeldByDelivery, Skipped, take_lock
from celery_safeguards.pipeline.receiving import received
from celery_safeguards.wiring import Wiring


def run_atomic(task: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one delivery of a task with `Idempotent(atomic=...)`."""

    def gate_of(wiring: Wiring, key: str, arrival: Arrival, _: LockAsk | None) -> AtomicGate:
        # An eager task belongs to its caller, whose transaction it may be part of.
        store = wiring.atomic_store(task.plan.idempotent.atomic, joined=bool(request.is_eager))
        return AtomicGate(store, task.plan, key, arrival, wiring.clock)

    delivery = received(task, request, args, kwargs, gate_of)
    if request.is_eager and is_running(delivery):
        # A session gets its own try-lock again; then each of the two would undo the other.
        raise DeferralRefused(f"{delivery.key}: in progress, in the very body that calls this task")
    lock = _locked(delivery, delivery.lock) if delivery.lock is not None else None
    if isinstance(lock, Skipped):
        delivery.end(Outcome.SKIPPED, lock.reason)
        return hand_on(task, request, lock.result)
    try:
        return _run(delivery, lock)
    finally:
        # A time limit's exception may come between any two lines: the next task would find the transaction open.
        gate_of_atomic(delivery).transaction.roll_back()
        if lock is not None:
            lock.give_up()


def _run(delivery: Delivery, lock: HeldByDelivery | None) -> Any:
    gate = gate_of_atomic(delivery)
    start = CountedStart.of(delivery)
    if start is not None:
        gate.lost_starts = start.lost
    while True:
        admitted = _admitted(delivery, start)
        if isinstance(admitted, Finished):
            continue_canvas(delivery, admitted.record, admitted.result)
            return admitted.result
        if not isinstance(admitted, Hold):
            raise TypeError("a lock that is taken before cannot bar")
        try:
            return AtomicRun(delivery, admitted, lock, start).run()
        except RecordMoved as moved:
            delivery.log(f"rolled back, and asks again: somebody else has written its record ({moved})")
        finally:
            gate.transaction.roll_back()


def _admitted(delivery: Delivery, start: CountedStart | None) -> Hold | Finished | Skipped:
    """Admit; where the body does not begin, the counted start is over: with an outcome, or as if it had not been."""
    gate, has_outcome = gate_of_atomic(delivery), False
    try:
        admitted = Admission(delivery).admit()
        has_outcome = True
    except StoreUnavailable as error:
        if delivery.request.is_eager:
            raise
        return delivery.put_off(f"the store is down ({error})", None)
    except (LetteredError, Ignore) as error:
        has_outcome = not isinstance(error, Deferred | DroppedLocally)
        raise
    finally:
        if start is not None and not gate.transaction.is_open:
            if has_outcome:
                start.end()
            else:
                start.undo()
    return admitted


def _locked(delivery: Delivery, ask: LockAsk) -> HeldByDelivery | Skipped:
    """Take the lock before the transaction: nobody waits for a lock with a transaction open."""
    try:
        answer = take_lock(delivery.task, delivery.request, ask)
    except StoreUnavailable as error:
        if delivery.request.is_eager:
            raise
        return delivery.put_off(f"its lock cannot be asked for, the store is down ({error})", None)
    if isinstance(answer, str):
        return Admission(delivery).put_off(answer)
    return answer
