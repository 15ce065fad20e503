"""
No thread of a worker's main process is in the midst of a library's work while a child is forked.

A child has only the thread that forks, and a copy of every lock as it is. kombu guards each cached property by one lock
of its class (5.5 to 5.7, `utils/objects.py`): if a thread of ours reads one at that moment, the child waits for ever
the first time that it publishes. Python and logging see to their own locks; libraries do not.

    thread   ── may I? ──▶ inside: asks broker or store ──▶ outside
    fork     ── waits until nobody is inside, and lets nobody in ──▶ fork ──▶ lets them in again

The wait is bounded, since the consumer's loop forks: a broker that does not answer holds threads inside for longer, in
a socket and not in a lock.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 0.5


class Gate:
    """Keeps forks and the work of threads apart."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_forking = False

    def enter(self) -> None:
        """Go inside; waits while this process forks."""
        with self._changed:
            while self._is_forking:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        """Go outside."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until nobody is inside, and let nobody in."""
        ends = time.monotonic() + PATIENCE_SECONDS
        self._changed.acquire()
        self._is_forking = True
        while self._inside and (left := ends - time.monotonic()) > 0:
            self._changed.wait(left)

    def after_fork(self) -> None:
        """Let them in again."""
        self._is_forking = False
        self._changed.notify_all()
        self._changed.release()


_gate = Gate()


def _before() -> None:
    _gate.before_fork()


def _after_in_parent() -> None:
    _gate.after_fork()


def _after_in_child() -> None:
    global _gate  # noqa: PLW0603 - of the process
    _gate = Gate()


@contextmanager
def no_fork() -> Iterator[None]:
    """Let no child be forked in the midst of a `with`, in a thread beside the one that forks."""
    gate = _gate
    gate.enter()
    try:
        yield
    finally:
        gate.leave()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
