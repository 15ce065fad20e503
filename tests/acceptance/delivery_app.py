"""
Guarded tasks without a key, so that nothing but the broker's lease keeps them from running twice.

What plain Celery does with the same messages is seen of `plain_app`.
"""

import json
import os
import signal

from celery import Celery

from celery_safeguards import EntityLock, Idempotent, RetryPolicy, Safeguards, SafeTask
from tests.support import apps
from tests.support.announce import announce, gate

HUNG_BUDGET_SECONDS = float(os.environ["DELIVERY_HUNG_BUDGET_SECONDS"])

app = Celery("delivery", set_as_current=False)
app.conf.update(
    apps.settings_from_environment(),
    task_ignore_result=True,
    safeguards_namespace=os.environ[apps.NAMESPACE],
    safeguards_lease_seconds=3.0,
    safeguards_store_timeout_seconds=0.9,
    # Of one test alone.
    **json.loads(os.environ.get("DELIVERY_SETTINGS", "{}")),
)


@app.task(base=SafeTask, name="delivery.effect", safeguards=Safeguards(repeatable=True))
def effect(order_id):
    gate("before_effect", order_id=order_id)
    announce("effect", order_id=order_id)
    gate("after_effect", order_id=order_id)
    return order_id


@app.task(
    base=SafeTask,
    name="delivery.hung",
    safeguards=Safeguards(repeatable=True, max_lease_seconds=HUNG_BUDGET_SECONDS),
)
def hung(order_id):
    gate("hung", order_id=order_id)
    return order_id


@app.task(
    base=SafeTask,
    name="delivery.keyed",
    safeguards=Safeguards(idempotent=Idempotent("order:{order_id}", on_unknown="rerun")),
)
def keyed(order_id):
    gate("before_effect", order_id=order_id)
    announce("effect", order_id=order_id)
    return order_id


@app.task(
    base=SafeTask,
    name="delivery.locked",
    safeguards=Safeguards(
        idempotent=Idempotent("order:{order_id}", on_unknown="rerun"),
        lock=EntityLock("one", max_hold_seconds=60),
        retry=RetryPolicy(base_seconds=600, cap_seconds=1200, floor_seconds=300),
    ),
)
def locked(order_id):
    gate("before_effect", order_id=order_id)
    if order_id.startswith("late"):
        raise ConnectionRefusedError(order_id)
    announce("effect", order_id=order_id)
    return order_id


def die(order_id):
    """Be killed by the kernel for lack of memory, at every start."""
    announce("started", order_id=order_id)
    os.kill(os.getpid(), signal.SIGKILL)


app.task(die, base=SafeTask, name="delivery.die", safeguards=Safeguards(repeatable=True))
app.task(
    die,
    base=SafeTask,
    name="delivery.die_keyed",
    safeguards=Safeguards(idempotent=Idempotent("order:{order_id}", on_unknown="rerun")),
)
