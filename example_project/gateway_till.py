"""
What the payment gateway does with a charge, apart from HTTP: faults, holds and the ledger.

    request ── before_charge ── ledger written ── after_charge ── answer
                    ▲                                  ▲
      killed here: no effect               killed here: the effect is there, the caller never knew
"""

import json
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

BEFORE = "before_charge"
AFTER = "after_charge"
_USUAL_POINT = {"slow": BEFORE, "fail": BEFORE, "rate_limit": BEFORE, "drop": AFTER, "hold": BEFORE, "refuse": BEFORE}
_LONGEST_WAIT_SECONDS = 60


@dataclass(slots=True, kw_only=True)
class Fault:
    """
    One way to misbehave.

    `slow` waits `seconds`; `fail` answers `status`; `rate_limit` answers 429 with `Retry-After`; `drop` closes the
    connection without an answer; `hold` waits for a release. Each strikes at its `point`, before or after the charge.
    `refuse` stops listening at once, for `seconds`: it is global, and has no order, count or point.
    """

    kind: str
    order_id: str | None = None
    """None: every order."""
    count: int | None = 1
    """How many requests it strikes; None: all of them."""
    point: str = ""
    """`before_charge` or `after_charge`. Defaults to before, for `drop` to after."""
    seconds: float = 1.0
    status: int = 503
    retry_after: float = 1.0
    """Seconds, for `rate_limit`."""

    def __post_init__(self):
        if self.kind not in _USUAL_POINT:
            raise ValueError(f"kind={self.kind!r}: give one of {sorted(_USUAL_POINT)}")
        self.point = self.point or _USUAL_POINT[self.kind]
        if self.point not in (BEFORE, AFTER):
            raise ValueError(f"point={self.point!r}: give {BEFORE!r} or {AFTER!r}")


@dataclass(slots=True, eq=False)
class _Held:
    order_id: str
    point: str
    is_abandoned: bool = False


class NoAnswer(Exception):
    """Raised where the connection is to be closed without a word."""


class Ledger:
    """What was charged: in memory, and line by line in a file if there is one."""

    def __init__(self, path):
        self._lines = []
        self._file = None
        if path is not None:
            self._file = Path(path).open("a+b")  # noqa: SIM115  # lives as long as the ledger, see `close()`
            self._read_back()

    def append(self, order_id, amount):
        charge = {"id": f"ch_{len(self._lines) + 1}", "order_id": order_id, "amount": amount, "at": time.time()}
        if self._file is not None:
            self._file.write(json.dumps(charge).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self._lines.append(charge)
        return charge

    def charges(self, order_id=None):
        return [charge for charge in self._lines if order_id in (None, charge["order_id"])]

    def close(self):
        if self._file is not None:
            self._file.close()

    def _read_back(self):
        self._file.seek(0)
        whole, _newline, torn = self._file.read().rpartition(b"\n")
        self._lines = [json.loads(line) for line in whole.splitlines()]
        if torn:
            # The process was killed while it wrote this line, so before it answered: nobody was told of this charge.
            self._file.truncate(self._file.tell() - len(torn))


class Till:
    """
    Charges, and misbehaves as told.

    One condition guards everything, and whoever waits (a slow answer, a held request, a long poll) waits on it: so
    nobody is kept waiting by another's wait, and `close()` ends them all.

    Args:
        ledger: a `Ledger`; whoever made it closes it, after the till.

    """

    def __init__(self, ledger):
        self._ledger = ledger
        self._changed = threading.Condition()
        self._faults = []
        self._fired = Counter()
        self._held = []
        self._is_closing = False

    def close(self):
        """End every wait, without an answer to those who are held."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def charge(self, order_id, amount):
        with self._changed:
            early = self._strike(order_id, BEFORE)
            if early:
                return early
            charge = self._ledger.append(order_id, amount)
            self._changed.notify_all()
            return self._strike(order_id, AFTER) or (201, charge)

    def charges(self, order_id=None, at_least=0, timeout=0.0):
        with self._changed:
            self._wait(lambda: len(self._ledger.charges(order_id)) >= at_least, timeout)
            return self._ledger.charges(order_id)

    def inject(self, fault):
        with self._changed:
            self._faults.append(fault)

    def count_refusal(self):
        with self._changed:
            self._fired["refuse"] += 1

    def clear_faults(self):
        with self._changed:
            self._faults.clear()

    def fired(self):
        with self._changed:
            return dict(self._fired)

    def waiting(self, order_id=None, point=None, timeout=0.0):
        with self._changed:
            self._wait(lambda: self._holding(order_id, point), timeout)
            return [{"order_id": held.order_id, "point": held.point} for held in self._holding(order_id, point)]

    def release(self, order_id=None, point=None, *, abandon=False):
        with self._changed:
            released = self._holding(order_id, point)
            for held in released:
                held.is_abandoned = abandon
                self._held.remove(held)
            self._changed.notify_all()
            return len(released)

    def _strike(self, order_id, point):
        """Let the faults of this point strike; return the answer that one of them gives, or None."""
        for fault in tuple(self._faults):
            is_spent = fault.count is not None and fault.count <= 0
            if is_spent or fault.point != point or fault.order_id not in (None, order_id):
                continue
            if fault.count is not None:
                fault.count -= 1
            self._fired[fault.kind] += 1
            if fault.kind == "fail":
                return fault.status, {"error": "the gateway fails"}
            if fault.kind == "rate_limit":
                return 429, {"error": "too many requests", "retry_after": fault.retry_after}
            if fault.kind == "drop":
                raise NoAnswer
            if fault.kind == "slow":
                self._wait(lambda: False, fault.seconds)
            else:
                self._hold(_Held(order_id, point))
        return None

    def _hold(self, held):
        self._held.append(held)
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._is_closing or held not in self._held)
        if self._is_closing or held.is_abandoned:
            raise NoAnswer

    def _holding(self, order_id, point):
        return [held for held in self._held if order_id in (None, held.order_id) and point in (None, held.point)]

    def _wait(self, is_met, timeout):
        self._changed.wait_for(lambda: self._is_closing or is_met(), min(timeout, _LONGEST_WAIT_SECONDS))
