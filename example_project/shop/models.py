"""
What the shop knows, and its last fences: they hold whoever calls, and also after every record has expired.

A second payment or parcel of one order is refused by a unique constraint. A status changes by one conditional UPDATE,
so of two who change it one is told that it came too late. Points are added in the database, in the transaction of the
payment that they are for.
"""

import uuid

from django.db import models, transaction
from django.db.models import F, Q
from django.utils import timezone


class ShopError(Exception):
    """Raised where two facts about an order cannot both be true: a person must look."""


class Customer(models.Model):
    """Somebody who orders, and collects a point for each whole unit of money."""

    email = models.EmailField(unique=True)
    points = models.PositiveIntegerField(default=0)

    def __str__(self):
        return self.email


class Status(models.TextChoices):
    """How far an order has come."""

    PLACED = "placed"
    PAID = "paid"
    SHIPPED = "shipped"
    CANCELLED = "cancelled"


class OrderQuerySet(models.QuerySet):
    """What is asked and changed of orders."""

    def move(self, order_id, before, after):
        """Change an order's status if it still is `before`; return whether it was."""
        return bool(self.filter(pk=order_id, status=before).update(status=after))

    def unfinished(self):
        """Return the orders that something is still to be done for."""
        return self.filter(status__in=(Status.PLACED, Status.PAID))


class Order(models.Model):
    """One order; its id is drawn by the page that it is placed on, so that two clicks are one order."""

    id = models.CharField(primary_key=True, max_length=40)
    customer = models.ForeignKey(Customer, models.PROTECT, related_name="orders")
    amount_cents = models.PositiveIntegerField()
    status = models.CharField(max_length=10, choices=Status, default=Status.PLACED)
    placed_at = models.DateTimeField(default=timezone.now)
    sent_at = models.DateTimeField(null=True, blank=True)
    """When its tasks were last published."""

    objects = OrderQuerySet.as_manager()

    class Meta:
        constraints = (models.CheckConstraint(condition=Q(amount_cents__gt=0), name="order_costs_something"),)
        indexes = (models.Index(fields=["status", "sent_at"], name="order_by_status"),)

    def __str__(self):
        return self.id


class PaymentManager(models.Manager):
    """How payments come about."""

    def record(self, order_id, charge):
        """
        Record what the gateway charged: payment, status and points, all or nothing, as often as it is called.

        Raises:
            ShopError: the order has another payment already, or is not to be paid.

        """
        with transaction.atomic():
            given = {"charge_id": charge["id"], "amount_cents": charge["amount"]}
            payment, is_new = self.get_or_create(order_id=order_id, defaults=given)
            if payment.charge_id != charge["id"]:
                raise ShopError(f"order {order_id} was charged twice: {payment.charge_id} and {charge['id']}")
            if is_new:
                if not Order.objects.move(order_id, Status.PLACED, Status.PAID):
                    raise ShopError(f"order {order_id} was charged by {charge['id']}, and is not to be paid")
                points = payment.amount_cents // 100
                Customer.objects.filter(orders=order_id).update(points=F("points") + points)
        return payment


class Payment(models.Model):
    """Money that was taken: once for each order."""

    order = models.OneToOneField(Order, models.PROTECT)
    charge_id = models.CharField(max_length=100, unique=True)
    amount_cents = models.PositiveIntegerField()
    paid_at = models.DateTimeField(default=timezone.now)

    objects = PaymentManager()

    def __str__(self):
        return self.charge_id


class ShipmentManager(models.Manager):
    """How parcels come about."""

    def send(self, order_id):
        """Have a paid order sent, once, and return its shipment; None: it is not paid, and nothing is sent."""
        with transaction.atomic():
            if Order.objects.move(order_id, Status.PAID, Status.SHIPPED):
                return self.create(order_id=order_id)
        return self.filter(order_id=order_id).first()


class Shipment(models.Model):
    """A parcel: one for each order."""

    order = models.OneToOneField(Order, models.PROTECT)
    parcel = models.UUIDField(default=uuid.uuid4, unique=True)
    sent_at = models.DateTimeField(default=timezone.now)

    objects = ShipmentManager()

    def __str__(self):
        return str(self.parcel)


class SearchEntry(models.Model):
    """What an order is found by; computed from the order, and can be computed again."""

    order = models.OneToOneField(Order, models.CASCADE, primary_key=True)
    text = models.TextField()

    def __str__(self):
        return self.text
