"""
The body of an atomic task in the transaction of its record, what it may ask there, and what its end means.

An error is rolled back first and then decided on as with any keyed task. `Ignore` is an end, and commits.
"""

import logging
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from celery.exceptions import Ignore

from celery_safeguards.admission.atomic import AtomicGate, RecordMoved
from celery_safeguards.admission.hold import Ending, Hold
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.errors import ConfigurationError, DeadlineExceeded, StoreUnavailable
from celery_safeguards.ledger.record import Record, ResultForm
from celery_safeguards.pipeline.continuing import seconds_to_send
from celery_safeguards.pipeline.counting import CountedStart
from celery_safeguards.pipeline.delivery import Delivery
from celery_safeguards.pipeline.failing import RETRY_ASKED, NextStep
from celery_safeguards.pipeline.keyed import KeyedRun
from celery_safeguards.pipeline.locking import HeldByDelivery
from celery_safeguards.pipeline.publishes import keeper, kept, send_kept
from celery_safeguards.pipeline.safe import KeyedSafe, LockView

logger = logging.getLogger(__name__)

_RUNNING: ContextVar[frozenset[tuple[str, RecordKey]]] = ContextVar("sg_running_atomic", default=frozenset())
"""The databases and keys of the bodies that run here, one inside the other."""


def gate_of_atomic(delivery: Delivery) -> AtomicGate:
    """Return the gate of an atomic task's delivery, which holds its transaction."""
    if not isinstance(delivery.gate, AtomicGate):
        raise TypeError("only an atomic task has a transaction")
    return delivery.gate


def is_running(delivery: Delivery) -> bool:
    """Whether a body of this very key is what this delivery is called from."""
    return _name_of(delivery) in _RUNNING.get()


def _name_of(delivery: Delivery) -> tuple[str, RecordKey]:
    gate = gate_of_atomic(delivery)
    return gate.records.alias, gate.key


class AtomicSafe(KeyedSafe):
    """The view of a body that runs in the transaction of its record."""

    def __init__(self, delivery: Delivery, hold: Hold, lock: HeldByDelivery | None) -> None:
        super().__init__(delivery, hold)
        self._lock = lock

    @property
    def lock(self) -> LockView | None:
        """The lock that this body runs under; None for a task without one."""
        return LockView(self._lock.held.name, self._lock.held.fence) if self._lock else None

    @property
    def is_lost(self) -> bool:
        """Whether the body was told that its lock is gone; its claim is its transaction."""
        return self._lock is not None and self._lock.is_lost

    def checkpoint(self) -> None:
        """Return if there is time left, and the lock is held; the transaction itself needs no renewal."""
        if self._left_seconds() <= 0:
            raise DeadlineExceeded(f"{self.idempotency_key}: its time budget is used up")
        if self._lock is not None:
            self._lock.check()

    def once(self, step: str, call: Any, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """
        Refuse: what is noted of an outside call would be rolled back with the body.

        Raises:
            ConfigurationError: always; no retry would change it.

        """
        raise ConfigurationError(
            f"{self.idempotency_key}: once({step!r}) in an atomic body: an outside call cannot be rolled back; make it "
            "in a task of its own, published from here"
        )


class AtomicRun(KeyedRun):
    """The body in the transaction of its record, and what its end means."""

    def __init__(self, delivery: Delivery, hold: Hold, lock: HeldByDelivery | None, start: CountedStart | None) -> None:
        super().__init__(delivery, hold)
        self._safe = AtomicSafe(delivery, hold, lock)
        self._gate = gate_of_atomic(delivery)
        self._lock = lock
        self._start = start

    def run(self) -> Any:
        """
        Run the body, commit, and settle what came of it.

        Raises:
            RecordMoved: another delivery has written the record; nothing of this start counts.

        """
        ignored: Ignore | None = None
        try:
            try:
                result = self._body()
                seen, ending = self._encoded(result)
            except Ignore as error:
                # An end, not a failure: a body that hands its work on by `replace` ends so.
                ignored, seen, ending = error, None, Ending(ResultForm.IGNORED)
            record = self._written(ending)
        except RecordMoved:
            raise
        except Exception as error:  # noqa: BLE001 - the pipeline's boundary: every error of the body is decided on
            self._failed(error)
        self._commit()
        if self._lock is not None:
            self._lock.give_up()
        if self._start is not None:
            self._start.end()
        self._hand_on(record, seen)
        if ignored is not None:
            raise ignored
        return seen

    def _body(self) -> Any:
        # Of a start that did not count: this is the same request.
        setattr(self._delivery.request, RETRY_ASKED, None)
        token = _RUNNING.set(_RUNNING.get() | {_name_of(self._delivery)})
        try:
            with kept(self._delivery.task.app, self._gate.records.alias, self._gate.transaction.keep):
                return super()._body()
        finally:
            _RUNNING.reset(token)

    def _written(self, ending: Ending) -> Record:
        if self._lock is not None:
            self._lock.check()
        gate, right_seconds = self._gate, seconds_to_send(self._delivery, ending.form)
        publishes = gate.transaction.kept()
        if gate.transaction.is_joined:
            self._join(publishes)
            publishes = ()
        return gate.write_done(self._hold, ending, continues_seconds=right_seconds, publishes=publishes)

    def _join(self, publishes: Sequence[str]) -> None:
        """
        Leave what was published to the caller's COMMIT: nobody can send it before.

        Of a caller that is an atomic body it is kept with the record of that; else it ends with the caller's process.
        """
        task, request = self._delivery.task, self._delivery.request
        logger.info("%s[%s] is part of a transaction that is open, and counts with its COMMIT", task.name, request.id)
        keep = keeper(task.app, self._gate.records.alias)
        if keep is None:
            self._gate.transaction.when_durable(lambda: send_kept(task.app, publishes))
        else:
            for message in publishes:
                keep(message)

    def _commit(self) -> None:
        try:
            self._gate.transaction.commit()
        except Exception as error:
            if not self._is_committed(error):
                self._failed(error)
            logger.exception("%s is committed all the same, by its record", self._delivery.key)

    def _is_committed(self, error: Exception) -> bool:
        """Ask the record what became of a COMMIT that has failed, or whose answer was lost."""
        delivery, clock = self._delivery, self._delivery.wiring.clock
        ends = clock.monotonic_seconds() + self._gate.lease_seconds
        pause = delivery.wiring.settings.settle_retry_seconds
        while True:
            try:
                known = self._gate.is_committed(self._hold)
            except StoreUnavailable:
                known = None
            if known is not None:
                return known
            if clock.monotonic_seconds() + pause >= ends:
                delivery.drop(f"nobody can say whether its COMMIT has happened ({error!r})", error)
            clock.sleep(delivery.wiring.chance.uniform(pause / 2, pause))
            pause = min(pause * 2, 5.0)

    def _failed(self, error: Exception) -> NoReturn:
        self._gate.transaction.roll_back()
        if self._start is not None:
            self._start.end()
        # The lock stays until the delivery ends: where the record has moved, the body is started under it once more.
        super()._failed(error)

    def _doubts(self, step: NextStep) -> tuple[bool, bool]:  # noqa: ARG002 - whatever it was, it is rolled back
        return False, False
