"""
A shutdown begins between two turns of the consumer's loop, while no child is about to say that it has taken a job.

Celery lets a signal act wherever the loop is (5.5 to 5.7, `apps/worker.py`, `worker/consumer/consumer.py:on_close`). A
cold shutdown is done inside the handler, and hangs until the worker is killed:

    t0 loop writes the head of a job into the child's pipe    t1 SIGQUIT: the handler writes "that is all" into it
    t2 child takes this for the job's body, waits for the rest    t3 handler waits for the child, for ever

A warm one forgets what no child has accepted, and the child does it all the same:

    t0 loop writes a job    t1 SIGTERM: the job is forgotten    t2 child runs it; nobody acknowledges; it runs again
    t3 child waits half a minute for its result to be heard, and the worker for the child

With this step a signal only wakes the loop. Once no job is on its way to a child, the loop calls Celery's handler and
stops before it writes another. A child that takes nothing is waited for `PATIENCE_SECONDS`.

A second signal before that is handled on the spot: the loop is stuck, and who sends it means it. So is any while no
loop runs: at start, during a reconnect, and in a shutdown that has begun.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_safeguards._handed import has_jobs_on_their_way

SIGNALS = ("SIGTERM", "SIGINT", "SIGQUIT")
"""Celery's for a shutdown; SIGTERM is a cold one by `REMAP_SIGTERM`, SIGINT when it comes twice."""
PATIENCE_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.05


class StopStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Stand before Celery's handlers while the loop runs."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._turns: BetweenTurns | None = None

    def include_if(self, parent: Any) -> bool:
        """Leave it out without a loop; and where the loop runs the bodies, which a shutdown is not to wait for."""
        return parent.hub is not None and not type(parent.pool).__module__.endswith(".solo")

    def start(self, parent: Any) -> None:
        """Stand before the handlers; a reconnect has emptied the loop."""
        if self._turns is None:
            self._turns = BetweenTurns(parent.hub, partial(has_jobs_on_their_way, parent.pool))
        self._turns.begin()

    def stop(self, _parent: Any) -> None:
        """Let signals through: the loop has ended."""
        if self._turns is not None:
            self._turns.end()

    def shutdown(self, _parent: Any) -> None:
        """Close what woke the loop."""
        if self._turns is not None:
            self._turns.close()
            self._turns = None


class BetweenTurns:
    """
    Hands signals from where they arrive to the loop, by a pipe: no lock that the loop may hold is asked for.

    Args:
        hub: the loop.
        is_writing: whether it is no moment yet to stop.

    """

    def __init__(self, hub: Any, is_writing: Callable[[], bool]) -> None:
        self._hub, self._is_writing = hub, is_writing
        self._pid, self._is_looping = os.getpid(), False
        self._arrived: Callable[[], None] | None = None
        self._arrived_seconds = 0.0
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)

    def begin(self) -> None:
        """Hand over from now on."""
        self._hub.add_reader(self._woken, self._on_woken)
        self._hub.on_tick.add(self._come_round)
        for name in SIGNALS:
            # In another thread than the main one a worker is embedded, and signals are its host's.
            with suppress(ValueError):
                self._stand_before(getattr(signal, name))
        self._is_looping = True

    def end(self) -> None:
        """Hand over no more, but what has arrived."""
        self._is_looping = False
        self._act()

    def close(self) -> None:
        """Let go of the loop."""
        self.end()
        self._hub.on_tick.discard(self._come_round)
        self._hub.remove(self._woken)
        os.close(self._woken)
        os.close(self._wake)

    def _stand_before(self, number: int) -> None:
        handler = signal.getsignal(number)
        if getattr(handler, "__module__", None) == "celery.apps.worker":
            signal.signal(number, partial(self._on_signal, handler))

    def _on_signal(self, handler: Any, number: int, frame: Any) -> None:
        # A child has these handlers from its parent, the same pipe, and what had arrived when it was forked.
        if os.getpid() != self._pid or not (self._is_looping or self._arrived):
            handler(number, frame)
            return
        if self._arrived is not None:
            self._act()
            self._now(number, frame)
            return
        self._arrived, self._arrived_seconds = partial(self._handle, handler, number), time.monotonic()
        # A full pipe wakes the loop as well.
        with suppress(BlockingIOError):
            os.write(self._wake, b"!")

    @staticmethod
    def _now(number: int, frame: Any) -> None:
        """Act as the first one has it by now: a SIGINT puts another handler into its place, for the second."""
        now = signal.getsignal(number)
        handler = now.args[0] if isinstance(now, partial) else now
        if callable(handler):
            handler(number, frame)
        else:
            signal.raise_signal(number)

    def _on_woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 64)

    def _come_round(self) -> None:
        """Act at the first turn that no job is under way in; what a child says makes a turn, and so does the timer."""
        if self._arrived is None:
            return
        if time.monotonic() - self._arrived_seconds < PATIENCE_SECONDS and self._is_writing():
            self._hub.call_later(_LOOK_AGAIN_SECONDS, self._on_woken)
            return
        self._act()
        # Else this very turn goes on, and writes what has been fetched meanwhile.
        state.maybe_shutdown()

    def _act(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            arrived()

    def _handle(self, handler: Any, number: int) -> None:
        handler(number, None)
        # See `_now`.
        self._stand_before(number)
