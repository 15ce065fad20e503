"""
Errands: what a worker's main process has to do that may wait for a store, kept off the consumer's loop.

The loop takes messages, hears children and keeps time limits for all tasks. A store that hangs for one letter would
stop all of that, so one thread goes to the store, and what follows from its answer comes back to the loop: only there
may a message be acknowledged.

    loop    ── run(errand, then) ──▶ queue ──▶ thread: errand()  ──▶ done ──▶ loop: then(answer)
    queue full, or the errand failed by an error nobody has foreseen  ──▶ loop: otherwise()

One thread, so errands are done in the order they were given: a claim is marked lost before its message is put back.
The queue is bounded, and so is the wait at shutdown: what is not done by then is not acknowledged, and comes back.

Without a worker (eager execution, tests) an errand is done at once, where it is given.

Not covered: a loop that stands still for other reasons. On kombu before 5.7 the loop is not woken, and acknowledges
when its next event or timer comes, about a second later.
"""

import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from celery_safeguards.worker.forking import no_fork

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")
_Step = Callable[[], None]
MOST_WAITING = 1_000
"""How many errands may wait; the broker's prefetch limit is mostly far below."""


class Errands:
    """
    One thread that goes to the store for a consumer's loop.

    Args:
        call_soon: has the loop call a function; called from any thread.

    """

    def __init__(self, call_soon: Callable[[_Step], Any]) -> None:
        self._call_soon = call_soon
        self._waiting: queue.Queue[_Step | None] = queue.Queue(MOST_WAITING)
        self._done: deque[_Step] = deque()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; does nothing if it runs already, as after a reconnect."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="celery-safeguards-errands", daemon=True)
            self._thread.start()

    def run(self, errand: Callable[[], Answer], then: Callable[[Answer], None], otherwise: _Step) -> None:
        """
        Do an errand in the thread, and what follows from it on the loop.

        Args:
            errand: may wait for a store.
            then: takes its answer.
            otherwise: is called instead if there was no answer.

        Safe when: called from any thread.

        """
        try:
            self._waiting.put_nowait(partial(self._do, errand, then, otherwise))
        except queue.Full:
            logger.error("%d errands wait for the store: one more is given up", MOST_WAITING)  # noqa: TRY400
            self._put_done(otherwise)

    def stop(self, timeout_seconds: float) -> None:
        """Do what still waits, for so long at most, and what follows from it; call it on the loop's own thread."""
        if self._thread is not None and self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=timeout_seconds)
            except queue.Full:
                logger.error("errands still wait for the store: their messages come back")  # noqa: TRY400
            else:
                self._thread.join(timeout_seconds)
        self.finish()

    def finish(self) -> None:
        """Do on the loop what follows from errands that are done."""
        while self._done:
            step = self._done.popleft()
            try:
                step()
            except Exception:
                # One message's end must not end the loop; that message was not acknowledged, and comes back.
                logger.exception("what followed from an errand failed")

    def _work(self) -> None:
        while (step := self._waiting.get()) is not None:
            step()

    def _do(self, errand: Callable[[], Answer], then: Callable[[Answer], None], otherwise: _Step) -> None:
        try:
            with no_fork():
                answer = errand()
        except Exception:
            # The thread must outlive what it cannot foresee: without it nothing is acknowledged any more.
            logger.exception("an errand failed")
            self._put_done(otherwise)
        else:
            self._put_done(partial(then, answer))

    def _put_done(self, step: _Step) -> None:
        self._done.append(step)
        self._call_soon(self.finish)


_ERRANDS: "weakref.WeakKeyDictionary[Any, Errands]" = weakref.WeakKeyDictionary()


def errands_of(app: Any) -> Errands | None:
    """Return the errands of this process's worker, or None: no worker runs here."""
    return _ERRANDS.get(app)


def appoint(app: Any, errands: Errands) -> None:
    """Make these errands the ones of this process's worker."""
    _ERRANDS[app] = errands


def dismiss(app: Any) -> None:
    """Let what comes from now on be done at once, where it is given: the worker shuts down."""
    _ERRANDS.pop(app, None)


def run_errand(app: Any, errand: Callable[[], Answer], then: Callable[[Answer], None], otherwise: _Step) -> None:
    """Do an errand off the loop of this process's worker; where none runs, at once. See `Errands.run`."""
    errands = errands_of(app)
    if errands is None:
        then(errand())
    else:
        errands.run(errand, then, otherwise)
