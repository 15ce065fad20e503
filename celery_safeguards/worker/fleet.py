"""
A worker among the others: says what it works with, and looks whether they agree.

In a thread of the main process with a connection of its own for each exchange: the consumer's loop waits for nothing,
and no child inherits anything. What the fleet does not agree on is logged as an error when it is first seen, at the
start of whoever brings it and, within a third of a lease, by all others.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any

import celery
import kombu

from celery_safeguards.delivery.visibility import Visibility, effective_visibility
from celery_safeguards.diagnose.board import Board, open_channel
from celery_safeguards.diagnose.fleet import WorkerReport, disagreements
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.findings import Finding, Severity
from celery_safeguards.ledger.record import FORMAT
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.forking import no_fork

logger = logging.getLogger(__name__)
_STOP_SECONDS = 5.0


def report_of(consumer: Any, channel_class: type, visibility: Visibility) -> WorkerReport:
    """Return what a worker with such a channel says of itself; its clock is measured by the board."""
    return WorkerReport(
        worker=str(consumer.hostname),
        queues=tuple(sorted(dict(consumer.app.amqp.queues.consume_from))),
        namespace=Wiring.of(consumer.app).settings.namespace,
        transport=f"{channel_class.__module__}.{channel_class.__qualname__}",
        timeout_seconds=visibility.timeout_seconds,
        is_renewed=visibility.is_renewed,
        is_hardened=visibility.is_hardened,
        stored_format=FORMAT,
        celery=str(celery.__version__),
        kombu=str(kombu.__version__),
    )


def objections_to(consumer: Any) -> list[Finding]:
    """
    Return on what the fleet would not agree with a worker that is not connected yet, and does without it.

    Asked before it connects: kombu's Redis transport puts messages back while it does (celery 5.7, `Consumer.connect`;
    kombu 5.7, `transport/redis.py`, `on_poll_init`), by the timeout and the clock that are in question. Blocks for the
    answers, through a channel of its own; a broker that does not answer is unknown.
    """
    app = consumer.app
    wiring, connection = Wiring.of(app), app.connection_for_read()
    try:
        with open_channel(connection) as channel:
            visibility = effective_visibility(channel)
            report = report_of(consumer, type(channel), visibility)
        if visibility.broker != "redis":
            return []
        own, others = Board(connection, wiring.settings.lease_seconds, wiring.clock).measured(report)
    except StoreUnavailable as error:
        return [Finding("SG166", str(error))]
    before = disagreements(others)
    return [each for each in disagreements([*others, own]) if each not in before]


class FleetWatch:
    """
    Writes one worker's report to the board and reads the others', until it is stopped.

    Args:
        every_seconds: pause between two exchanges; below the time for which a report counts.

    """

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._place: tuple[Board, WorkerReport] | None = None
        self._told: frozenset[Finding] = frozenset()
        self._is_away = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def join(self, consumer: Any, visibility: Visibility) -> None:
        """Say and look from now on, for a worker that is connected; again after a reconnect, perhaps elsewhere."""
        wiring, connection = Wiring.of(consumer.app), consumer.connection
        report = report_of(consumer, type(connection.default_channel), visibility)
        self._place = Board(connection, wiring.settings.lease_seconds, wiring.clock), report
        if self._thread is None or not self._thread.is_alive():
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="celery-safeguards-fleet", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Say no more, and take the report off the board."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def look(self, board: Board, report: WorkerReport) -> None:
        """Exchange reports once, and log what is new in them."""
        try:
            with no_fork():
                reports = board.write(report)
        except StoreUnavailable as error:
            if not self._is_away:
                logger.warning("%s", Finding("SG166", str(error)))
            self._is_away = True
            return
        self._is_away = False
        self._tell(disagreements(reports))

    def _tell(self, found: Sequence[Finding]) -> None:
        for finding in found:
            if finding not in self._told:
                logger.log(logging.INFO if finding.severity is Severity.INFO else logging.ERROR, "%s", finding)
        if self._told and not found:
            logger.info("all workers on this broker agree again")
        self._told = frozenset(found)

    def _run(self) -> None:
        while not self._stopped.is_set() and self._place is not None:
            try:
                self.look(*self._place)
            except Exception:
                # The thread must outlive what it cannot foresee: without it this worker vanishes from the board.
                logger.exception("looking at the fleet failed")
            self._stopped.wait(self._every_seconds)
        if self._place is not None:
            board, report = self._place
            try:
                board.take_off(report.worker)
            except StoreUnavailable as error:
                logger.info("its report lapses by itself: %s", error)
