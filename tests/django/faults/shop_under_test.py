"""
A shop whose bodies have transactions of their own, in a project as Celery knows it: it closes connections around tasks.
"""

from django.db import connections

from tests.acceptance.shop_app import DATABASE_ALIAS
from tests.acceptance.shop_under_test import Shop
from tests.django.faults import shop_app
from tests.support.databases import APP


class BookingShop(Shop):
    """A shop with bookings."""

    def __enter__(self):
        super().__enter__()
        # The project is configured without a module; that there is a name makes Celery care for its connections.
        self._env["DJANGO_SETTINGS_MODULE"] = APP
        shop_app.add_tasks(self.app)
        self._ask(lambda cursor: cursor.execute(shop_app.CREATE_BOOKINGS))
        return self

    def start_worker(self, concurrency, **options):
        return super().start_worker(concurrency, app_module="tests.django.faults.shop_app:app", **options)

    @property
    def vendor(self):
        """What kind of database it is."""
        return connections[DATABASE_ALIAS].vendor

    def bookings(self, order):
        """Return how often an order is booked."""

        def count(cursor):
            cursor.execute("SELECT count(*) FROM bookings WHERE order_id = %s", [order.id])
            return cursor.fetchone()[0]

        return self._ask(count)

    def counts(self, order):
        """Return how an order's record stands: state, attempt, lost starts."""
        record = self.record(order)
        return record.state, record.attempt, record.lost_starts

    def starts(self, order):
        """Return in which processes an order's body has begun."""
        return [said["pid"] for said in self.heard("after_admit", order)]

    @staticmethod
    def _ask(act):
        """Let `act` use a session that ends with it: who ends all the others ends none of ours."""
        try:
            with connections[DATABASE_ALIAS].cursor() as cursor:
                return act(cursor)
        finally:
            connections[DATABASE_ALIAS].close()
