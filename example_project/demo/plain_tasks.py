"""An order's way in the shop without safeguards, up to its parcel."""

from celery import chain

from example_project.demo.plain import app
from example_project.shop.models import Payment, Shipment, ShopError
from example_project.shop.payments import check_amount, gateway

_RECOMMENDED = {
    "acks_late": True,
    "reject_on_worker_lost": True,
    "autoretry_for": (Exception,),
    "dont_autoretry_for": (ShopError,),
    "max_retries": 3,
    "retry_backoff": 1,
    "retry_backoff_max": 2,
}


@app.task(**_RECOMMENDED)
def charge(order_id, amount):
    """Charge an order, in cents, and return the gateway's receipt."""
    check_amount(amount)
    return gateway().charge(order_id, amount, idempotency_key=f"payment:{order_id}")


@app.task(**_RECOMMENDED)
def record_payment(receipt, order_id):
    """Record a charge beside its order."""
    Payment.objects.record(order_id, receipt)


@app.task(**_RECOMMENDED)
def ship(order_id):
    """Have a paid order sent."""
    Shipment.objects.send(order_id)


def send(order_id, amount):
    """Publish all that is to be done for an order."""
    chain(
        charge.s(order_id=order_id, amount=amount),
        record_payment.s(order_id=order_id),
        ship.si(order_id=order_id),
    ).apply_async()
