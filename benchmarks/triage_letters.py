"""
What has failed in the fleet whose letters the benchmark makes: how often, why, and one letter of each cause.

One cause has six letters of ten, the others ever fewer; one of the busiest task has two of ten thousand, and so has the
rarest task.
"""

from array import array

from kombu.utils.json import dumps

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.outcome import FailureKind

CAUSES, TASKS = 300, 40
BUSIEST_TASK, BUSIEST_KIND, BUSIEST_SHARE = "shop.pay", FailureKind.DEPENDENCY_TIMEOUT, 0.6
RARE_KIND = FailureKind.INVARIANT
"""Of the busiest task."""

RARE_TASK, RARE_SHARE, A_PAGE = f"shop.task_{TASKS - 1}", 0.0002, 50
"""Of few letters rare ones fill a page, too: it would take less time with fewer rows."""

BUSIEST_CUSTOMER = "customer-0@example.com"
"""Has one letter of ten."""

_KINDS = (FailureKind.BUG, FailureKind.DATA, FailureKind.TRANSIENT, FailureKind.RATE_LIMITED, FailureKind.WORKER_LOST)
NUMBER = "n" * 12
"""Stands in a cause's letter where a copy has its own number, as the next three stand for its customer and times."""

CUSTOMER = "customer-x@example.com"
FIRST_SECONDS, LAST_SECONDS = 1111111111.5, 1222222222.5
_TRACEBACK = "".join(
    f'  File "/srv/releases/41/shop/{name}.py", line {line}, in {name}\n    return {name}(order_id, amount, customer)\n'
    for line, name in enumerate(("tasks", "payments", "gateway", "session", "adapter"), 17)
)


def name_of(number):
    """Return what tells the names of one letter from those of all others."""
    return f"{number:0{len(NUMBER)}}"


def customer_of(number):
    """Return whose order a letter is of."""
    return f"customer-{number // 20 + 1}@example.com" if number % 10 else BUSIEST_CUSTOMER


def cause_of_each(count):
    """Return the cause of each of so many letters, in the order of the causes."""
    others = [1 / rank for rank in range(2, CAUSES - 1)]
    left = 1 - BUSIEST_SHARE - 2 * RARE_SHARE
    shares = [left * each / sum(others) for each in others]
    rare = max(A_PAGE, int(RARE_SHARE * count))
    counts = [rare, *(max(1, int(share * count)) for share in shares), rare]
    causes = array("H", [0] * (count - sum(counts)))
    for number, of_it in enumerate(counts, 1):
        causes.extend([number] * of_it)
    return causes


def _task_and_kind_of(cause):
    if cause < 2:
        return BUSIEST_TASK, (BUSIEST_KIND, RARE_KIND)[cause]
    if cause == CAUSES - 1:
        return RARE_TASK, _KINDS[0]
    # The busiest task fails in several ways.
    return f"shop.task_{cause % (TASKS - 1)}" if cause % 20 else BUSIEST_TASK, _KINDS[cause % len(_KINDS)]


def letter(cause, routing_key):
    """Return the letter of a cause, with marks in place of a number, a customer and two times."""
    task, kind = _task_and_kind_of(cause)
    items = [{"sku": f"SKU-{each:05}", "quantity": each % 3 + 1, "price": f"{each * 7}.90"} for each in range(14)]
    kwargs = {"order_id": NUMBER, "amount": 1990, "customer": {"email": CUSTOMER}, "items": items}
    task_id = f"task-{NUMBER}"
    wire = WireMessage(
        body=dumps([[], kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers={"task": task, "id": task_id, "root_id": task_id, "sg_key": f"payment:{NUMBER}", "retries": 3},
        properties={"correlation_id": task_id, "delivery_mode": 2},
        delivery_info={"exchange": "", "routing_key": routing_key},
    )
    return Letter(
        id=f"letter-{NUMBER}",
        task=task,
        task_id=task_id,
        root_id=task_id,
        wire=wire,
        kind=kind,
        effect_possible=kind.effect_possible,
        reason="attempt 4 of 4",
        key=f"payment:{NUMBER}",
        scope=task,
        error_type=f"shop.errors.Error{cause}",
        error_message=f"the gateway has refused order {NUMBER}",
        traceback=f"Traceback (most recent call last):\n{_TRACEBACK}Error{cause}: refused {NUMBER}",
        attempts=4,
        first_seen_seconds=FIRST_SECONDS,
        last_failed_seconds=LAST_SECONDS,
        host="worker-3",
        pid=4711,
        burial=1,
    )
