"""
A shop that takes the same payment under every policy, and once on plain Celery: the app whose workers the tests kill.

Each task charges an order at the gateway and returns the charge's id. Gates stand where a delivery can be killed:

    before_admit ── admit ── after_admit ── charge ── after_effect ── settle ── after_settle ── before_ack ── ack
                                              ▲
                          held inside the gateway, before or after the ledger is written

A name of a policy is the name of its task: `shop.verify`, `shop.plain`, ...
"""

import json
import os
import signal
import threading

import celery
from celery import Celery
from celery.signals import task_postrun

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
from example_project.gateway_client import GatewayClient
from tests.support import databases
from tests.support.announce import announce, gate
from tests.support.apps import GATEWAY_URL, NAMESPACE, settings_from_environment

VISIBILITY = "SHOP_VISIBILITY_SECONDS"
DATABASE = "SHOP_DATABASE"
"""Django's settings of a database, as JSON, where the safeguards keep what they know there and not in Redis."""
DATABASE_ALIAS = "shop"
AMOUNT_CENTS = 500
LEASE_SECONDS = 3.0
VERIFY_AFTER_SECONDS = 2.0
# Longer than a test holds a request: a client that gave up by itself would end the call in another way.
_PATIENCE_SECONDS = 50.0


def gateway():
    return GatewayClient(os.environ[GATEWAY_URL], timeout_seconds=_PATIENCE_SECONDS)


def find_payment(order_id):
    """Ask the gateway whether an order was charged."""
    announce("verify_asked", order_id=order_id)
    found = gateway().charges(order_id)
    return Happened(found[0]["id"]) if found else DidNotHappen()


def charge(order_id):
    gate("after_admit", order_id=order_id)
    charge = gateway().charge(order_id, AMOUNT_CENTS)
    gate("after_effect", order_id=order_id)
    return charge["id"]


def die(order_id):
    """Be killed by the kernel for lack of memory, at every start."""
    announce("started", order_id=order_id)
    os.kill(os.getpid(), signal.SIGKILL)


def block(order_id):
    """Hang in a call that never comes back."""
    announce("started", order_id=order_id)
    threading.Event().wait(_PATIENCE_SECONDS)


def quick(order_id):
    return order_id


class GuardedTask(SafeTask):
    abstract = True

    def before_start(self, task_id, args, kwargs):
        gate("before_admit", order_id=kwargs["order_id"])


class PlainTask(celery.Task):
    """What a careful team does without safeguards: late acknowledgement, and a requeue when the child is lost."""

    abstract = True
    acks_late = True
    reject_on_worker_lost = True

    def before_start(self, task_id, args, kwargs):
        gate("before_admit", order_id=kwargs["order_id"])


def keyed(on_unknown, **others):
    return Safeguards(idempotent=Idempotent("{order_id}", on_unknown=on_unknown), **others)


ASK_THE_GATEWAY = Verify(find_payment, after_seconds=VERIFY_AFTER_SECONDS)
REPEATABLE = Safeguards(repeatable=True)
GUARDED = {
    "rerun": (charge, keyed("rerun")),
    "verify": (charge, keyed(ASK_THE_GATEWAY)),
    "quarantine": (charge, keyed("quarantine")),
    "repeatable": (charge, REPEATABLE),
    "die_keyed": (die, keyed("rerun", retry=RetryPolicy(attempts=10), max_lost_starts=3)),
    "die_repeatable": (die, Safeguards(repeatable=True, retry=RetryPolicy(attempts=10), max_lost_starts=3)),
    "block_rerun": (block, keyed("rerun")),
    "block_verify": (block, keyed(ASK_THE_GATEWAY)),
    "block_repeatable": (block, REPEATABLE),
    "quick_keyed": (quick, keyed("rerun")),
    "quick_repeatable": (quick, REPEATABLE),
}


def make_app(**changes):
    """Return the shop's app for this process's environment; a producer changes what it does not need."""
    settings = settings_from_environment(
        safeguards_namespace=os.environ[NAMESPACE],
        safeguards_lease_seconds=LEASE_SECONDS,
        safeguards_store_timeout_seconds=0.9,
        safeguards_deferral_base_seconds=0.5,
        safeguards_deferral_cap_seconds=2.0,
    )
    settings["safeguards_store_url"] = settings["result_backend"]
    if os.environ.get(DATABASE):
        databases.add(DATABASE_ALIAS, json.loads(os.environ[DATABASE]))
        settings["safeguards_store_url"] = f"django://{DATABASE_ALIAS}"
    settings["broker_transport_options"]["visibility_timeout"] = float(os.environ.get(VISIBILITY, "600"))
    app = Celery("shop", set_as_current=False)
    app.conf.update({**settings, **changes})
    for name, (body, safeguards) in GUARDED.items():
        limit = {"time_limit": 1} if body is block else {}
        app.task(body, name=f"shop.{name}", base=GuardedTask, safeguards=safeguards, shared=False, **limit)
    app.task(charge, name="shop.plain", base=PlainTask, shared=False)
    return app


def _on_delivery_ended(sender=None, task_id=None, outcome=None, key=None, **_):
    order_id = sender.request.kwargs["order_id"]
    announce("delivery_ended", task_id=task_id, order_id=order_id, outcome=outcome, key=key)
    if outcome is Outcome.SUCCEEDED:
        gate("after_settle", order_id=order_id)


def _on_postrun(task_id=None, kwargs=None, **_):
    gate("before_ack", order_id=kwargs["order_id"], task_id=task_id)


app = None
# A worker finds its app here; a test imports this module without an environment, and its process hears nothing of it.
if NAMESPACE in os.environ:
    app = make_app()
    delivery_ended.connect(_on_delivery_ended)
    task_postrun.connect(_on_postrun)
