"""
What the shop does with an order, and what its last fences refuse; against a real gateway that charges all it is sent.

    python example_project/manage.py test example_project --settings example_project.config.testing
"""

import uuid
from datetime import timedelta
from io import StringIO

from django.core import mail
from django.core.management import call_command
from django.test import SimpleTestCase, TestCase
from django.urls import reverse
from django.utils import timezone

from example_project.config.databases import database
from example_project.gateway import Gateway, GatewayClient
from example_project.shop.checkout import place_order, send
from example_project.shop.models import Customer, Order, Payment, SearchEntry, Shipment, ShopError, Status
from example_project.shop.tasks import cancel


class ShopTestCase(TestCase):
    """With a gateway of its own, and an order that nobody else has."""

    def setUp(self):
        server = self.enterContext(Gateway())
        self.enterContext(self.settings(SHOP_GATEWAY_URL=server.url))
        self.gateway = GatewayClient(server.url)
        self.order_id = uuid.uuid4().hex[:12]

    def charges(self):
        """Return how often the order was charged."""
        return len(self.gateway.charges(self.order_id))

    def placed(self):
        """Place the order without publishing its tasks, as a process that died in between has."""
        return place_order(self.order_id, "a@example.com", 990)


class TestPages(ShopTestCase):
    """The way of an order from its page."""

    def click(self):
        with self.captureOnCommitCallbacks(execute=True):
            form = {"order_id": self.order_id, "email": "a@example.com", "amount_cents": 990}
            return self.client.post(reverse("shop:place"), form)

    def test_placed_order_is_paid_and_sent(self):
        """Who orders would wait for nothing."""
        answer = self.click()

        order = Order.objects.get(pk=self.order_id)
        self.assertRedirects(answer, reverse("shop:index"))
        assert (Status.SHIPPED, 990, 9) == (order.status, order.payment.amount_cents, order.customer.points)
        assert [["a@example.com"]] == [each.to for each in mail.outbox]
        assert "a@example.com" in SearchEntry.objects.get(order=order).text
        self.assertContains(self.client.get(reverse("shop:index")), order.shipment.parcel)

    def test_second_click_is_the_same_order(self):
        """A customer who clicks twice would pay twice."""
        self.click()
        self.click()

        assert (1, 1, 1) == (Order.objects.count(), self.charges(), Shipment.objects.count())

    def test_order_whose_id_has_no_address_is_refused(self):
        """The page that shows it could not be made, for anybody."""
        form = {"order_id": f"{self.order_id}/", "email": "a@example.com", "amount_cents": 990}
        answer = self.client.post(reverse("shop:place"), form)

        assert (400, 0) == (answer.status_code, Order.objects.count())
        self.assertContains(self.client.get(reverse("shop:index")), "Shop")

    def test_order_without_an_amount_is_refused(self):
        """A form that was tampered with would become an order."""
        answer = self.client.post(reverse("shop:place"), {"order_id": self.order_id, "email": "a@example.com"})

        assert (400, 0) == (answer.status_code, Order.objects.count())

    def test_order_can_be_cancelled_from_its_page(self):
        """Who changes their mind in time would pay."""
        order = self.placed()

        self.client.post(reverse("shop:cancel", args=[order.pk]))
        send(order)

        assert (Status.CANCELLED, 0) == (Order.objects.get(pk=order.pk).status, self.charges())


class TestRepetition(ShopTestCase):
    """Tasks that come once more, late, or not at all."""

    def test_second_publication_charges_and_sends_nothing(self):
        """A message that is delivered twice would cost the customer twice."""
        order = self.placed()

        send(order)
        send(order)

        assert (1, 1, 1) == (self.charges(), Shipment.objects.count(), len(mail.outbox))
        assert 9 == Customer.objects.get().points

    def test_order_whose_tasks_were_lost_is_sent_again(self):
        """A process that dies between COMMIT and publish would leave an order that nobody works on."""
        self.placed()

        call_command("send_again", stdout=StringIO())

        assert (Status.SHIPPED, 1) == (Order.objects.get().status, self.charges())

    def test_order_that_was_sent_just_now_is_left_alone(self):
        """Every run would publish everything that is under way."""
        self.placed()
        Order.objects.update(sent_at=timezone.now() - timedelta(minutes=5))

        call_command("send_again")

        assert (Status.PLACED, 0) == (Order.objects.get().status, self.charges())

    def test_charged_order_is_not_cancelled(self):
        """The money would be taken for an order that does not exist any more."""
        order = self.placed()
        self.gateway.charge(order.pk, order.amount_cents)

        is_cancelled = cancel.delay(order_id=order.pk).get()

        assert (False, Status.PLACED) == (is_cancelled, Order.objects.get().status)


class TestLastFences(ShopTestCase):
    """What the database refuses, whoever calls and whatever was forgotten."""

    def test_points_are_given_once_for_a_payment(self):
        """An addition that is made again would be given again."""
        self.placed()
        charge = {"id": "ch_1", "amount": 990}

        Payment.objects.record(self.order_id, charge)
        Payment.objects.record(self.order_id, charge)

        assert (1, 9) == (Payment.objects.count(), Customer.objects.get().points)

    def test_second_charge_of_one_order_is_told(self):
        """Nobody would give the money back."""
        self.placed()
        Payment.objects.record(self.order_id, {"id": "ch_1", "amount": 990})

        with self.assertRaisesMessage(ShopError, "charged twice: ch_1 and ch_2"):
            Payment.objects.record(self.order_id, {"id": "ch_2", "amount": 990})

    def test_payment_of_a_cancelled_order_leaves_no_row(self):
        """Points would be given, and a payment be on file, for an order that is none."""
        Order.objects.move(self.placed().pk, Status.PLACED, Status.CANCELLED)

        with self.assertRaisesMessage(ShopError, "is not to be paid"):
            Payment.objects.record(self.order_id, {"id": "ch_1", "amount": 990})

        assert (0, 0) == (Payment.objects.count(), Customer.objects.get().points)

    def test_only_a_paid_order_is_sent_and_only_once(self):
        """A parcel would leave without its money, or twice."""
        order = self.placed()

        unpaid = Shipment.objects.send(order.pk)
        Payment.objects.record(order.pk, {"id": "ch_1", "amount": 990})
        first, second = Shipment.objects.send(order.pk), Shipment.objects.send(order.pk)

        assert (None, first) == (unpaid, second)


class TestDatabases(SimpleTestCase):
    """Where a project may be, and what its database may be called."""

    def test_any_name_can_be_written(self):
        """Else another database would be asked for, or made."""
        named = {
            "postgresql://ann:p%40ss@db/the%20shop": "the shop",
            "sqlite:////home/ann/c%23/shop.sqlite3": "/home/ann/c#/shop.sqlite3",
        }
        for url, name in named.items():
            with self.subTest(url):
                assert name == database(url)["NAME"]
