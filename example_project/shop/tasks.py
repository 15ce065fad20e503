"""
What the shop's workers do, and what each task says of being run twice.

The steps of an order are a chain (see `checkout`), each under a key of its own: a step that is done is not repeated,
and what follows it comes as if it had run. Which declaration a task needs depends on where its effect is:

    charge           at a gateway that can be asked      Verify: ask it before anything runs again
    record_payment   in this database                    atomic: the record is committed with the payment
    send_receipt     at a mail server, cannot be asked   rerun: twice with one Message-ID is better than never
    ship             in this database                    atomic: the record is committed with the shipment
    cancel           in this database, asks the gateway  repeatable, under the order's lock
    reindex          computed from the order             repeatable: it writes what is so now
    ping             a counter that may be wrong         at_most_once: late or doubled it is worth less than lost
"""

import socket

from celery import shared_task
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction

from celery_safeguards import EntityLock, Idempotent, RetryPolicy, Safeguards, Verify
from django_celery_safeguards import SafeTask
from example_project.shop.models import Order, Payment, SearchEntry, Shipment, Status
from example_project.shop.payments import VERIFY_AFTER_SECONDS, check_amount, find_payment, gateway, is_paid

# The gateway and this database are two systems: no constraint spans both, so whoever decides by one and writes to the
# other has the order to itself meanwhile.
ORDER_LOCK = EntityLock("order:{order_id}", lease_seconds=settings.CELERY_SAFEGUARDS_LEASE_SECONDS)
RETRY = RetryPolicy(
    attempts=4, base_seconds=settings.SHOP_RETRY_BASE_SECONDS, factor=2, cap_seconds=settings.SHOP_RETRY_CAP_SECONDS
)


@shared_task(
    base=SafeTask,
    bind=True,
    safeguards=Safeguards(
        idempotent=Idempotent(
            "payment:{order_id}", on_unknown=Verify(find_payment, after_seconds=VERIFY_AFTER_SECONDS)
        ),
        lock=ORDER_LOCK,
        retry=RETRY,
        ensure=is_paid,
    ),
)
def charge(self, order_id, amount):
    """Charge an order, in cents, and return the gateway's receipt; None if it was cancelled."""
    check_amount(amount)
    if Order.objects.filter(pk=order_id, status=Status.CANCELLED).exists():
        return None
    # Directly before the outside call: it stops a body whose claim or lock another has by now.
    self.safe.checkpoint()
    return gateway().charge(order_id, amount, idempotency_key=self.safe.idempotency_key)


@shared_task(
    base=SafeTask,
    safeguards=Safeguards(idempotent=Idempotent("payment-record:{order_id}", atomic="default"), retry=RETRY),
)
def record_payment(receipt, order_id):
    """Record a charge beside its order: in a task of its own, which also runs if `Verify` has found the charge."""
    if receipt is not None:
        Payment.objects.record(order_id, receipt)


@shared_task(
    base=SafeTask,
    bind=True,
    safeguards=Safeguards(idempotent=Idempotent("receipt:{order_id}", on_unknown="rerun"), retry=RETRY),
)
def send_receipt(self, order_id):
    """Mail the customer what was paid, if anything was."""
    payment = Payment.objects.select_related("order__customer").filter(order_id=order_id).first()
    if payment is not None:
        EmailMessage(
            subject=f"Your order {order_id}",
            body=f"Paid: {payment.amount_cents / 100:.2f}. Thank you.",
            to=[payment.order.customer.email],
            headers={"Message-ID": f"<{self.safe.idempotency_key.replace(':', '.')}@shop.example.com>"},
        ).send()


@shared_task(
    base=SafeTask,
    safeguards=Safeguards(idempotent=Idempotent("shipment:{order_id}", atomic="default"), retry=RETRY),
)
def ship(order_id):
    """Have a paid order sent, and return its parcel's number."""
    shipment = Shipment.objects.send(order_id)
    return str(shipment.parcel) if shipment else None


@shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True, lock=ORDER_LOCK, retry=RETRY))
def cancel(order_id):
    """Cancel an order that was not charged, and return whether it is cancelled."""
    if gateway().charges(order_id):
        return False
    return Order.objects.move(order_id, Status.PLACED, Status.CANCELLED)


@shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True, retry=RETRY))
def reindex(order_id):
    """Let an order be found by what it is now."""
    with transaction.atomic():
        # Held until the entry is written: an older text cannot come after a newer one.
        order = Order.objects.select_for_update().get(pk=order_id)
        text = f"{order.id} {order.customer.email} {order.amount_cents / 100:.2f}"
        SearchEntry.objects.update_or_create(order=order, defaults={"text": text})


@shared_task(base=SafeTask, safeguards=Safeguards(at_most_once=True))
def ping(name):
    """Count something, by statsd."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(f"shop.{name}:1|c".encode(), settings.SHOP_STATSD_ADDRESS)
