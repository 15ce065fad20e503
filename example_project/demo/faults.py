"""
How the demo breaks a shop: each function does one kind of harm to one side, and counts it only when it has struck.

The worst points of a charge, by the gateway's holds:

    shop ── request ──▶ gateway: before_charge ── charged ── after_charge ── answer ──▶ shop: record, acknowledge
                                  │                           │                          │
        CHILD_BEFORE, WORKER_BEFORE     CHILD_UNANSWERED, WORKER_UNANSWERED      CHILD_ANSWERED

A request that is held while its sender dies is let go at once: it lands late, as on a real network. Or it is dropped.
"""

import os
import signal
import time
from pathlib import Path

from example_project.demo.plan import CUTS, Fate
from example_project.demo.processes import wait_until
from example_project.demo.settings import SHOP_GATEWAY_TIMEOUT_SECONDS as GATEWAY_TIMEOUT_SECONDS
from example_project.gateway_till import AFTER, BEFORE

OUTAGE_SECONDS = 2.0
SLOW_SECONDS = GATEWAY_TIMEOUT_SECONDS + 0.3
"""The charge lands after the shop's client has given up, and before the shop asks what became of it."""

_HELD_SECONDS = 60
_CLOSE_WAIT = "08"
_POINTS = {
    Fate.CHILD_BEFORE: BEFORE,
    Fate.WORKER_BEFORE: BEFORE,
    Fate.CHILD_UNANSWERED: AFTER,
    Fate.CHILD_ANSWERED: AFTER,
    Fate.WORKER_UNANSWERED: AFTER,
}
_MISBEHAVIOUR = {
    Fate.DROPPED: {"kind": "drop"},
    Fate.FAILED: {"kind": "fail"},
    Fate.FAILED_AFTER: {"kind": "fail", "point": AFTER},
    Fate.LIMITED: {"kind": "rate_limit", "retry_after": 0.5},
    Fate.SLOW: {"kind": "slow", "seconds": SLOW_SECONDS},
    Fate.STUCK: {"kind": "fail", "count": None},
}


def trade(side, plan):
    """Publish the orders that meet an unkind gateway, a forgetful transport or an impatient customer; and bad ones."""
    for order in plan.of(*_MISBEHAVIOUR):
        side.gateway.inject(order_id=order.id, **_MISBEHAVIOUR[order.fate])
    # First in the queue, and so the ones that are taken.
    for order in plan.of(Fate.VANISHED):
        side.publish(order)
    side.fired[Fate.VANISHED] = side.take_and_die(len(plan.of(Fate.VANISHED)))
    for order in plan.of(Fate.UNTOUCHED, Fate.TWICE, *_MISBEHAVIOUR):
        side.publish(order)
    for order in plan.of(Fate.TWICE):
        side.publish(order)
        side.fired[Fate.TWICE] += 1
    for payload in plan.bad_payloads:
        side.publish_bad(payload)


def kill_children(side, plan):
    """Kill pool children in the middle of a charge."""
    for number, order in enumerate(plan.of(Fate.CHILD_BEFORE, Fate.CHILD_UNANSWERED, Fate.CHILD_ANSWERED)):
        note = _hold(side, order)
        is_to_be_answered = order.fate is Fate.CHILD_ANSWERED
        # A frozen child never reads the answer that arrives.
        os.kill(note.child_pid, signal.SIGSTOP if is_to_be_answered else signal.SIGKILL)
        _struck_in_time(side, order, note)
        if is_to_be_answered:
            side.gateway.release(order.id)
            _await_answer(note.child_pid)
            os.kill(note.child_pid, signal.SIGKILL)
        side.gateway.release(order.id, abandon=bool(number % 2) and order.fate is Fate.CHILD_BEFORE)


def kill_workers(side, plan):
    """Kill a whole worker in the middle of a charge, and start another in its place; twice."""
    for order in plan.of(Fate.WORKER_BEFORE, Fate.WORKER_UNANSWERED):
        note = _hold(side, order)
        side.kill_worker(side.worker_of(note))
        _struck_in_time(side, order, note)
        side.gateway.release(order.id)
        side.start_worker().wait_ready()


def cut_connections(side, plan):
    """Close every connection to the broker, again and again, the first time in the middle of a charge."""
    held, *others = plan.of(Fate.CUT)
    _hold(side, held, AFTER)
    for number in range(CUTS):
        side.cut_connections()
        side.fired[Fate.CUT] += 1
        for order in others[number::CUTS]:
            side.publish(order)
    side.gateway.release(held.id)


def stop_gateway(side, plan):
    """Let the gateway refuse every connection for a while, with orders on their way to it."""
    side.gateway.inject("refuse", seconds=OUTAGE_SECONDS)
    for order in plan.of(Fate.REFUSED):
        side.publish(order)


def await_gateway(side, _plan):
    """Wait until the gateway is back; the outage counts if orders have met it."""

    def is_back():
        try:
            return side.gateway.fired()
        except ConnectionRefusedError:
            return None

    fired = wait_until(is_back, OUTAGE_SECONDS + 10, "the gateway is back")
    side.fired[Fate.REFUSED] = min(fired["refuse"], side.log().count("ConnectionRefusedError"))


def count_misbehaviour(side, plan):
    """
    Ask the gateway how often it has misbehaved.

    It counts by kind. Of an order that was charged in the end the one 503 meant for it is known to have been answered;
    the others went to the orders that are stuck.
    """
    fired, charges = side.gateway.fired(), side.charges()
    for fate in (Fate.DROPPED, Fate.LIMITED, Fate.SLOW):
        side.fired[fate] = fired.get(_MISBEHAVIOUR[fate]["kind"], 0)
    for fate in (Fate.FAILED, Fate.FAILED_AFTER):
        side.fired[fate] = sum(charges[order.id] > 0 for order in plan.of(fate))
    side.fired[Fate.STUCK] = fired.get("fail", 0) - side.fired[Fate.FAILED] - side.fired[Fate.FAILED_AFTER]


def _hold(side, order, point=None):
    """Publish an order, and return who has it once its request is held."""
    point = point or _POINTS[order.fate]
    side.gateway.inject("hold", order.id, point=point)
    side.publish(order)

    def is_held():
        return {"order_id": order.id, "point": point} in side.gateway.held()

    wait_until(is_held, _HELD_SECONDS, f"{side.title}: {order.id} reaches the gateway ({order.fate})")
    return side.note_of(order)


def _struck_in_time(side, order, note):
    """Count a strike if the client cannot have given up before it: later it would have hit something else."""
    if time.time() - note.began < GATEWAY_TIMEOUT_SECONDS:
        side.fired[order.fate] += 1


def _await_answer(pid):
    """Wait until the gateway's answer lies in a frozen process's socket, where the system can tell (Linux)."""
    table = Path(f"/proc/{pid}/net/tcp")
    if not table.exists():
        time.sleep(0.2)
        return
    own = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}

    def has_answer():
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        # The gateway ends each connection after its answer, and nobody has read either yet.
        return any(row[3] == _CLOSE_WAIT and f"socket:[{row[9]}]" in own for row in rows)

    wait_until(has_answer, 5, f"the gateway has answered process {pid}")
