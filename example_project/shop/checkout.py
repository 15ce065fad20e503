"""
From a click to the tasks that it asks for.

The order is committed first, and its tasks are published after that. A process that dies in between, a broker that is
down, and a transport that loses a message leave the same trace: an order that is not finished. `send_again` finds it,
and may send what runs already, because every step has a key.
"""

from datetime import timedelta
from functools import partial

from celery import chain
from django.db import transaction
from django.utils import timezone

from celery_safeguards.ledger.record import State
from celery_safeguards.wiring import Wiring
from example_project.shop.models import Customer, Order
from example_project.shop.tasks import charge, record_payment, send_receipt, ship


def place_order(order_id, email, amount_cents):
    """Place an order and return it; placed again under the same id, it is the first one."""
    with transaction.atomic():
        customer, _ = Customer.objects.get_or_create(email=email)
        given = {"customer": customer, "amount_cents": amount_cents}
        order, is_new = Order.objects.get_or_create(pk=order_id, defaults=given)
        if is_new:
            # Robust: the order stands whether or not the broker takes its tasks now.
            transaction.on_commit(partial(send, order), robust=True)
    return order


def send(order):
    """Publish all that is to be done for an order."""
    Order.objects.filter(pk=order.pk).update(sent_at=timezone.now())
    chain(
        charge.s(order_id=order.pk, amount=order.amount_cents),
        record_payment.s(order_id=order.pk),
        send_receipt.si(order_id=order.pk),
        ship.si(order_id=order.pk),
    ).apply_async()


def send_again(after_seconds):
    """Publish again the orders that are not finished so long after they were sent, and return them."""
    overdue = Order.objects.unfinished().exclude(sent_at__gt=timezone.now() - timedelta(seconds=after_seconds))
    found = [order for order in overdue if not awaits_person(order)]
    for order in found:
        send(order)
    return found


def awaits_person(order):
    """Say whether an order's charge lies among the dead letters: whoever looks there decides."""
    record = payment_record(order)
    return record is not None and record.state in {State.DEAD, State.QUARANTINED}


def payment_record(order):
    """Return the record of an order's charge, or None: nobody has ever begun it."""
    arguments = {"order_id": order.pk, "amount": order.amount_cents}
    plan = charge.plan
    return Wiring.of(charge.app).admission.read(plan.record_key(plan.key((), arguments)))
