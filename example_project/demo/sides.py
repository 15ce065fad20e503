"""
The two shops, and what each does about an order that has no answer.

The guarded shop can ask what became of an order. So once its broker holds no message, it sends again, under the same
keys, every order that is not finished. The plain shop cannot: an order without an answer may be lost or charged, and so
it is not sent again.
"""

from celery_safeguards.wiring import Wiring
from example_project.config.celery import app as shop_app
from example_project.demo import plain, plain_tasks
from example_project.demo.processes import DemoFailed
from example_project.demo.side import Side
from example_project.shop import checkout, tasks
from example_project.shop.models import Customer, Order


class PlainSide(Side):
    """The shop without safeguards."""

    def __init__(self, directory, database_url):
        super().__init__(
            "plain Celery",
            app=plain.app,
            module=plain.__name__,
            charge=plain_tasks.charge,
            alias="plain",
            database_url=database_url,
            directory=directory,
        )

    def _publish(self, order):
        customer, _ = Customer.objects.using(self._alias).get_or_create(email=order.email)
        given = {"customer": customer, "amount_cents": order.amount}
        Order.objects.using(self._alias).get_or_create(pk=order.id, defaults=given)
        plain_tasks.send(order.id, order.amount)


class GuardedSide(Side):
    """The shop with safeguards."""

    def __init__(self, directory, database_url):
        super().__init__(
            "with safeguards",
            app=shop_app,
            module="example_project.config",
            charge=tasks.charge,
            alias="default",
            database_url=database_url,
            directory=directory,
        )
        self._placed = set()

    def __enter__(self):
        super().__enter__()
        # A store that is new to its workers may also be one that was wiped: they would wait for one lease.
        Wiring.of(shop_app).admission.declare_new()
        return self

    def is_settled(self):
        """Whether every order is finished or in a letter; one without any message was lost, and is sent again."""
        if not self.is_quiet():
            return False
        self.resent += len(checkout.send_again(after_seconds=0))
        return all(checkout.awaits_person(order) for order in self.unfinished())

    def what_is_left(self):
        """Say what keeps this shop from being settled."""
        return f"{super().what_is_left()}, not finished: {[(order.id, order.status) for order in self.unfinished()]}"

    def unfinished(self):
        """Return the orders that something is still to be done for."""
        return list(Order.objects.unfinished())

    def letters(self):
        """Return every dead letter."""
        found, before = [], None
        while True:
            page = Wiring.of(shop_app).letters.list(before=before)
            if page.unreadable:
                raise DemoFailed(f"letters that cannot be read: {page.unreadable}")
            found += page.letters
            before = page.next_cursor
            if before is None:
                return found

    def discard(self, letter, reason):
        """Give up a dead letter."""
        Wiring.of(shop_app).letters.discard(letter.id, "demo", reason)

    def _publish(self, order):
        placed = checkout.place_order(order.id, order.email, order.amount)
        if order.id in self._placed:
            checkout.send(placed)
        self._placed.add(order.id)
