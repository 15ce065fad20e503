"""
The proof that a worker lives: its loop turns, its broker answers, and answers its poll for messages.

A thread of the main process collects the signs every few seconds and writes them to the worker's file (`health`):

    loop      a call in the consumer's loop notes when it was made: by a timer of the hub, which also wakes a loop that
              has nothing to do, or where there is none by a call that the loop makes between two waits
    broker    a channel is opened and closed on a connection of the thread's own: a round trip without a message, off
              the loop and bounded in time
    poll      the transport's poller notes each answer to a blocking pop; on Redis one comes every second, idle or not.
              A loop that turns and a broker that answers prove nothing of it: after a reconnect the poll may be lost

The thread holds no lock across a fork and touches nothing of the consumer's own connection. A body that holds the
interpreter's lock (pools `threads` and `solo`) keeps it from writing: then the file grows old.
"""

import logging
import os
import threading
import weakref
from contextlib import closing
from typing import Any

from celery.worker import state

from celery_safeguards._bounded import bound_connection
from celery_safeguards._compat import note_polls, polls_for_messages
from celery_safeguards._publishing import Publishing, publish_under_way
from celery_safeguards.health import HealthFiles, VitalSigns
from celery_safeguards.pipeline.budget import DEFAULT_SECONDS, lease_budget_seconds
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.forking import no_fork

logger = logging.getLogger(__name__)
_BLOCKED_INTERVALS = 4
"""So long a gap is no mere delay: on a machine that is busy, delays would hide a poll that is lost."""


class Liveness:
    """
    Collects the signs of one worker's life.

    Args:
        wiring: of the worker's app.
        consumer: Celery's, as it is at first; `attach` tells of a new connection.

    """

    def __init__(self, wiring: Wiring, consumer: Any) -> None:
        self._wiring = wiring
        self._consumer = consumer
        self._files = HealthFiles(wiring.settings.health_directory)
        self._pool = type(consumer.pool).__module__.rpartition(".")[2]
        self._loop = self._broker = self._poll = self._now()
        self._tells_poll = False
        self._timer: Any = None
        self._connection: Any = None
        self._is_written = True
        self._is_over = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self, consumer: Any) -> None:
        """Watch this consumer's connection from now on; it is a new one after each reconnect."""
        self._consumer = consumer
        # Until it had time to answer.
        self._loop = self._poll = self._now()
        self._tells_poll = note_polls(consumer.connection, self._note_poll)
        if self._timer is not None:
            self._timer.cancel()
        hub, seconds = consumer.hub, self._wiring.settings.health_interval_seconds
        self._timer = hub.call_repeatedly(seconds, self._note_loop) if hub else None
        if self._thread is None or not self._thread.is_alive():
            self._files.forget_dead(self._wiring.settings.namespace)
            self._is_over = False
            self._thread = threading.Thread(target=self._run, name="celery-safeguards-liveness", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Stop, and take the file away: the worker ends in order."""
        self._is_over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2 * self._wiring.settings.health_interval_seconds)
        self._files.remove(self._wiring.settings.namespace, self._consumer.hostname)

    def _now(self) -> float:
        return self._wiring.clock.monotonic_seconds()

    def _note_poll(self) -> None:
        self._poll = self._now()

    def _note_loop(self) -> None:
        before, self._loop = self._loop, self._now()
        if self._loop - before > _BLOCKED_INTERVALS * self._wiring.settings.health_interval_seconds:
            # It was blocked, and the poll with it: that has not had time to answer.
            self._poll = self._loop

    def _run(self) -> None:
        while not self._is_over:
            try:
                if self._timer is None:
                    self._consumer.call_soon(self._note_loop)
                self._write()
                self._ask_broker()
            except Exception:
                # Whatever it was, the file grows old meanwhile, which tells it to the probe.
                logger.exception("a sign of life could not be had")
            self._wake.wait(self._wiring.settings.health_interval_seconds)
            self._wake.clear()
        self._drop_connection()

    def _ask_broker(self) -> None:
        settings, sent = self._wiring.settings, self._now()
        seconds = settings.health_interval_seconds
        asking = Publishing(self._wiring.clock, seconds, sent + seconds, "a sign of life")
        try:
            with no_fork(), publish_under_way(asking):
                if self._connection is None:
                    self._connection = bound_connection(self._consumer.app.connection_for_read())
                self._connection.ensure_connection(max_retries=1)
                with closing(self._connection.channel()):
                    self._broker = sent
        except Exception as error:  # noqa: BLE001 - of whatever kind its transport's errors are
            logger.debug("the broker does not answer: %r", error)
            self._drop_connection()
        self._write()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect()

    def _write(self) -> None:
        if self._is_over:
            # Its file is taken away: written once more, it would tell of a worker that was killed.
            return
        if self._tells_poll and not polls_for_messages(self._consumer):
            # Its prefetch is used up, or it consumes no queue: none is due.
            self._poll = self._now()
        until, with_task = self._busy()
        signs = VitalSigns(
            node=self._consumer.hostname,
            namespace=self._wiring.settings.namespace,
            pid=os.getpid(),
            pool=self._pool,
            written=self._now(),
            loop=self._loop,
            broker=self._broker,
            poll=self._poll if self._tells_poll else None,
            busy_until=until,
            busy_with=with_task,
            is_stopping=_was_told(state.should_stop) or _was_told(state.should_terminate),
        )
        try:
            self._files.write(signs)
        except OSError as error:
            if self._is_written:
                logger.warning("the health file cannot be written, and the worker will look dead: %s", error)
            self._is_written = False
        else:
            self._is_written = True

    def _busy(self) -> tuple[float | None, str | None]:
        """Return until when a body may keep the loop, and which: only in pool `solo` does it run there."""
        if self._pool != "solo":
            return None, None
        now, wall = self._now(), self._wiring.clock.wall_seconds()
        ends = [
            (now - (wall - request.time_start) + _budget_seconds(request), request.name)
            for request in tuple(state.active_requests)
            if request.time_start
        ]
        return max(ends, default=(None, None))


def _was_told(exit_code: Any) -> bool:
    """Whether Celery has noted an exit code, which may be 0 (celery 5.7, `worker/state.py`, `maybe_shutdown`)."""
    return exit_code is not None and exit_code is not False


def _budget_seconds(request: Any) -> float:
    if hasattr(request.task, "policy"):
        return lease_budget_seconds(request.task, request.time_limits)
    hard_seconds = (request.time_limits or (None,))[0] or request.task.time_limit
    return float(hard_seconds or DEFAULT_SECONDS)


_LIVENESS: "weakref.WeakKeyDictionary[Any, Liveness]" = weakref.WeakKeyDictionary()


def liveness_of(consumer: Any) -> Liveness:
    """Return what proves the life of this consumer's worker."""
    found = _LIVENESS.get(consumer.app)
    if found is None:
        found = _LIVENESS[consumer.app] = Liveness(Wiring.of(consumer.app), consumer)
    return found


def forget_liveness(consumer: Any) -> None:
    """Stop proving it: the worker ends."""
    found = _LIVENESS.pop(consumer.app, None)
    if found is not None:
        found.stop()
