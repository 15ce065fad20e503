"""
Payments that are members of canvases: the app whose members the tests kill, double, put off, retry and bury.

A member charges its order at the gateway and returns its value plus one; a chord's body charges and returns the sum. So
effects are counted outside, and the value at the end tells whether every member has passed on the right one. The last
task of a canvas has no key and no safeguards: it tells the value, once for each time that it is sent.

    before_admit ── admit ── charge ── after_effect ── settle ── after_settle ── before_send ── send ── after_send
                                                                                     ack ── before_ack ── mark ──┘

Gates stand there. One member of a canvas is the one that is hit: its order ends in `-hit`.
"""

import json
import os

from celery import Celery
from celery._state import get_current_worker_task
from celery.signals import after_task_publish, before_task_publish, task_postrun

from celery_safeguards import (
    DidNotHappen,
    Happened,
    Idempotent,
    Outcome,
    RetryPolicy,
    Safeguards,
    SafeTask,
    Verify,
)
from celery_safeguards.signals import delivery_ended
from example_project.gateway import GatewayClient
from tests.support import apps
from tests.support.announce import announce, gate

CENTS = 500
PATIENCE_SECONDS = 90
SETTINGS = "CANVAS_SETTINGS"


def make_app(namespace, broker_url, **changes):
    """Return the app of a test; changes are Celery settings, the visibility timeout among them."""
    where = apps.queue_settings(namespace)
    sweep = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    lapse = {"visibility_timeout": changes.pop("visibility_timeout", 600)}
    settings = {
        **where,
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {**where["broker_transport_options"], **sweep, **lapse},
        "result_backend": broker_url,
        "result_backend_transport_options": where["broker_transport_options"],
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "safeguards_namespace": namespace,
        "safeguards_store_url": broker_url,
        "safeguards_lease_seconds": 10.0,
        "safeguards_deferral_base_seconds": 0.5,
        "safeguards_deferral_cap_seconds": 1.0,
    }
    made = Celery("canvas", set_as_current=False)
    made.conf.update({**settings, **changes})
    for name, (body, options) in TASKS.items():
        made.task(body, name=f"canvas.{name}", shared=False, **options)
    return made


# --- the bodies


def gateway():
    return GatewayClient(os.environ[apps.GATEWAY_URL], timeout_seconds=PATIENCE_SECONDS)


def charge(order_id):
    gateway().charge(order_id, CENTS)
    gate("after_effect", order_id=order_id)


def add(value, order_id):
    charge(order_id)
    return value + 1


def total(values, order_id):
    charge(order_id)
    return sum(values)


def fail_once(self, value, order_id):
    """Fail before anything outside can have happened, and be an ordinary member at the second attempt."""
    if self.safe.attempt == 1:
        raise ConnectionRefusedError(f"{order_id}: nobody listens")
    return add(value, order_id)


def fail(value, order_id):
    gate("fails", order_id=order_id)
    raise ValueError(f"{order_id} is no order")


def tell(value, canvas):
    announce("told", canvas=canvas, value=value)


def compensate(task_id, order_id):
    """Be an errback with a key: charge the failed order back, once."""
    charge(order_id)


def tell_failure(task_id, canvas, of):
    """Be an errback that is sent as a task."""
    announce("told_failure", canvas=canvas, of=of, task_id=task_id)


def tell_error(request, error, traceback, canvas):
    """Be an errback that is called where the task has failed."""
    announce("told_error", canvas=canvas, task_id=request.id, error=repr(error))


def find_payment(order_id, value=None, values=()):
    """Say what a charged order has returned."""
    return Happened(sum(values) if value is None else value + 1) if gateway().charges(order_id) else DidNotHappen()


class GuardedTask(SafeTask):
    abstract = True

    def before_start(self, task_id, args, kwargs):
        gate("before_admit", order_id=kwargs["order_id"])


KEYED = Safeguards(
    idempotent=Idempotent("{order_id}", on_unknown=Verify(find_payment, after_seconds=0.2), scope="payments"),
    retry=RetryPolicy(attempts=4, base_seconds=0.2, factor=1.0, cap_seconds=0.2),
)
GUARDED = {"base": GuardedTask, "safeguards": KEYED}
TASKS = {
    "add": (add, GUARDED),
    "total": (total, GUARDED),
    "fail_once": (fail_once, {**GUARDED, "bind": True}),
    "fail": (fail, GUARDED),
    "compensate": (compensate, GUARDED),
    "unkeyed_add": (add, {"base": GuardedTask, "safeguards": Safeguards(repeatable=True)}),
    "plain_add": (add, {"reject_on_worker_lost": True}),
    "plain_total": (total, {}),
    "plain_fail": (fail, {}),
    "tell": (tell, {}),
    "tell_failure": (tell_failure, {}),
    "tell_error": (tell_error, {}),
}


# --- the worker's half


def _on_ended(sender, task_id, outcome, key, reason, **_):
    order_id = sender.request.kwargs.get("order_id")
    announce("ended", task_id=task_id, order_id=order_id, outcome=outcome, reason=reason)
    if outcome is Outcome.SUCCEEDED:
        gate("after_settle", order_id=order_id)


@before_task_publish.connect
def _on_publish(sender=None, headers=None, **_):
    _gate_of_continuation("before_send", sender, headers)


@after_task_publish.connect
def _on_published(sender=None, headers=None, **_):
    _gate_of_continuation("after_send", sender, headers)


def _gate_of_continuation(point, sent, headers):
    parent = get_current_worker_task()
    # Not the copies that follow a retry or a deferral: they keep the parent of their original.
    if parent is not None and headers["parent_id"] == parent.request.id:
        order_id = parent.request.kwargs.get("order_id") or ""
        gate(point, order_id=order_id, canvas=order_id.rpartition("-")[0], sent=sent)


@task_postrun.connect
def _on_postrun(task_id=None, kwargs=None, **_):
    gate("before_ack", order_id=kwargs.get("order_id"), task_id=task_id)


def _app_from_environment():
    delivery_ended.connect(_on_ended, weak=False)
    return make_app(**json.loads(os.environ[SETTINGS]))


app = _app_from_environment() if SETTINGS in os.environ else None
