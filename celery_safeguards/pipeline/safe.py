"""
The running task's own view of its safeguards: `self.safe`, or `current_safe()` in an unbound task.

The checkpoint is what keeps `verify` exact. No outside call may begin after the lease has ended, by this process's
monotonic clock counted from before the last confirmed renewal was sent:

    t0 A is admitted   t1 A is frozen   t2 A's lease ends   t3 B asks the outside: "it did not happen"   t4 B charges
    t5 A wakes and would charge → its checkpoint, directly before the call, raises `LeaseLost`

What stays open: a process that freezes between its checkpoint and the send, for longer than its remaining lease and
the quiet period of `verify` together.
"""

from contextvars import ContextVar
from typing import Any

from celery_safeguards.admission.gate import Gate, Hold
from celery_safeguards.clock import Clock
from celery_safeguards.errors import LeaseLost, SafeguardsError, StoreUnavailable
from celery_safeguards.signals import lease_lost


class Safe:
    """
    What a body may know and ask while it runs.

    Attributes:
        idempotency_key: the operation's key, stable over retries, redelivery and replay: give it to outside systems
            that honour one. None for a task without a key.
        attempt: which start of the body this is, from 1.
        task_id: Celery's id of the message.

    """

    def __init__(
        self,
        task: Any,
        task_id: str,
        attempt: int,
        *,
        clock: Clock | None = None,
        gate: Gate | None = None,
        hold: Hold | None = None,
    ) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.idempotency_key = hold.key.key if hold else None
        self._task = task
        self._clock = clock
        self._gate = gate
        self._hold = hold

    def checkpoint(self) -> None:
        """
        Return if the claim still holds; call it directly before every outside call.

        Costs nothing while most of the lease is left; else one round trip that renews it.

        Raises:
            LeaseLost: another owner may have the work by now. Begin no outside call; what was done so far is refused
                at the end, and the message is answered again by `on_unknown`.

        """
        if self._hold is None or self._gate is None or self._clock is None:
            return
        left_seconds = self._hold.lease_ends - self._clock.monotonic_seconds()
        if left_seconds > self._gate.lease_seconds / 3:
            return
        try:
            renewed = self._gate.renew(self._hold)
        except StoreUnavailable as error:
            if left_seconds > 0:
                return
            raise self._lost(f"its lease is over and the store does not answer ({error})") from error
        if renewed is None:
            raise self._lost("its claim was taken over")
        self._hold = renewed

    def _lost(self, reason: str) -> LeaseLost:
        lease_lost.send(self._task, task_id=self.task_id, key=self.idempotency_key, reason=reason)
        return LeaseLost(f"{self.idempotency_key}: {reason}")


_running: ContextVar[Safe | None] = ContextVar("celery_safeguards_running", default=None)


def current_safe() -> Safe:
    """
    Return the view of the guarded task whose body runs in this thread or greenlet.

    Raises:
        SafeguardsError: no guarded body runs here: a plain task, a direct call, or another thread.

    """
    safe = _running.get()
    if safe is None:
        raise SafeguardsError("no guarded task runs here: a direct call and another thread have no safeguards")
    return safe


def running(safe: Safe | None) -> "_Running":
    """Make `safe` the current one within a `with` block."""
    return _Running(safe)


class _Running:
    """A context manager without a generator: it stands on the hot path of every task."""

    __slots__ = ("_safe", "_token")

    def __init__(self, safe: Safe | None) -> None:
        self._safe = safe

    def __enter__(self) -> None:
        self._token = _running.set(self._safe)

    def __exit__(self, *_: object) -> None:
        _running.reset(self._token)
