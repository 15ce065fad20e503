"""
The shop: one task that charges an order at the payment gateway, once, whatever happens on the way.

What a guarded task needs is all here: a key that names the payment, a function that asks the gateway whether it was
charged, a retry policy, and one line before the outside call. The gateway ignores idempotency keys, so nothing but
these keeps an order from being charged twice.

    celery -A example_project.shop worker
"""

import os

from celery import Celery

from celery_safeguards import DidNotHappen, Happened, Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from celery_safeguards.wiring import Wiring
from example_project.gateway_client import GatewayClient

BROKER_URL = "SHOP_BROKER_URL"
GATEWAY_URL = "SHOP_GATEWAY_URL"

GATEWAY_TIMEOUT_SECONDS = 2.0
VERIFY_AFTER_SECONDS = 2.5
"""A little more than one request to the gateway can live: what its sender could not await has landed by then."""

ATTEMPTS = 4

# Short times, so that a recovery takes seconds and can be watched. In production the defaults are longer: a lease of
# 30 s, and Celery's visibility timeout of an hour.
TRANSPORT_OPTIONS = {
    "visibility_timeout": 5,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    # A worker that is killed or cut off while it looks for messages to redeliver leaves its lock behind, and until
    # that lapses no other worker looks (kombu 5.7: for 300 s).
    "unacked_mutex_expire": 5,
}

app = Celery("shop", broker=os.environ.get(BROKER_URL, "redis://127.0.0.1:6379/0"))
app.conf.update(
    task_default_queue="shop",
    broker_transport_options=TRANSPORT_OPTIONS,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    safeguards_namespace="shop",
    safeguards_lease_seconds=3.0,
    safeguards_store_timeout_seconds=0.9,
    safeguards_deferral_base_seconds=0.5,
    safeguards_deferral_cap_seconds=2.0,
)


def gateway():
    """Return a client of the payment gateway."""
    return GatewayClient(os.environ[GATEWAY_URL], timeout_seconds=GATEWAY_TIMEOUT_SECONDS)


def find_payment(order_id):
    """Ask the gateway whether an order was charged."""
    charges = gateway().charges(order_id)
    return Happened(charges[0]) if charges else DidNotHappen()


def is_paid(result, order_id, amount):
    """Say whether what the gateway answered is the payment that was asked for."""
    return (result["order_id"], result["amount"]) == (order_id, amount)


@app.task(
    base=SafeTask,
    bind=True,
    name="shop.charge",
    safeguards=Safeguards(
        idempotent=Idempotent(
            "payment:{order_id}", on_unknown=Verify(find_payment, after_seconds=VERIFY_AFTER_SECONDS)
        ),
        retry=RetryPolicy(attempts=ATTEMPTS, base_seconds=0.3, factor=2, cap_seconds=2),
        ensure=is_paid,
    ),
)
def charge(self, order_id, amount):
    """Charge an order, in cents, and return the gateway's receipt."""
    if not isinstance(amount, int) or amount <= 0:
        raise ValueError(f"amount={amount!r}: give a whole number of cents above 0")
    self.safe.checkpoint()
    return gateway().charge(order_id, amount, idempotency_key=self.safe.idempotency_key)


def payment(order_id, amount):
    """Return the record of an order's payment, or None: nobody has ever begun it."""
    plan = charge.plan
    return Wiring.of(app).admission.read(plan.record_key(plan.key((order_id, amount), {})))
