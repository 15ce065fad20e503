"""
The same shop without safeguards, with everything that Celery itself offers for it.

Late acknowledgement, requeueing when a child dies, automatic retry with backoff: the settings that are recommended
when "no payment may be lost". The demo breaks both shops in the same way.
"""

import os

from celery import Celery

from example_project.shop import ATTEMPTS, BROKER_URL, TRANSPORT_OPTIONS, gateway

app = Celery("plain", broker=os.environ.get(BROKER_URL, "redis://127.0.0.1:6379/0"), set_as_current=False)
app.conf.update(
    task_default_queue="plain",
    broker_transport_options=TRANSPORT_OPTIONS,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)


@app.task(
    name="plain.charge",
    acks_late=True,
    reject_on_worker_lost=True,
    autoretry_for=(Exception,),
    max_retries=ATTEMPTS - 1,
    retry_backoff=1,
    retry_backoff_max=2,
)
def charge(order_id, amount):
    """Charge an order, in cents, and return the gateway's receipt."""
    if not isinstance(amount, int) or amount <= 0:
        raise ValueError(f"amount={amount!r}: give a whole number of cents above 0")
    return gateway().charge(order_id, amount, idempotency_key=f"payment:{order_id}")
