"""
A shop whose payments are rows of its own database, and what an order leaves there.
"""

import contextlib

from django.db import connections

from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import Outcome
from tests.acceptance.shop_app import DATABASE_ALIAS
from tests.acceptance.shop_under_test import PATIENCE_SECONDS, Shop
from tests.django.atomic import shop_app
from tests.support.announcements import is_said

POINTS = ("before_admit", "after_admit", "after_effect", "before_commit", "after_settle", "before_ack")
HOLD_COMMITS = "SELECT pg_advisory_lock(4711)"
IS_COMMITTING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
_WAITS_AT_COMMIT = """
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION wait_at_commit();
"""


class AtomicShop(Shop):
    """A shop with atomic payments."""

    def __enter__(self):
        super().__enter__()
        shop_app.add_tasks(self.app)
        return self

    def start_worker(self, concurrency, **options):
        return super().start_worker(concurrency, app_module="tests.django.atomic.shop_app:app", **options)

    def aftermath_of(self, order):
        """Wait for an order and its receipt; return payments, receipts, record, and how the task has ended."""
        end = self.end_of(order)
        receipt = is_said("delivery_ended", order_id=f"receipt of {order.id}", outcome=Outcome.SUCCEEDED)
        self.announcements.wait_for(receipt, PATIENCE_SECONDS)
        # Whatever else was sent has run by then, too.
        self.assert_broker_is_empty()
        return (*self.rows_of(order), self.record(order).state, *end)

    def rows_of(self, order):
        """Return how many payments and receipts an order has."""
        return shop_app.rows_of(DATABASE_ALIAS, order.id)


def all_of_it(order):
    """Return the aftermath of an order that was paid once, whatever was killed."""
    return (1, 1, State.DONE, "SUCCESS", f"paid {order.id}")


@contextlib.contextmanager
def opened(redis_url, directory, database):
    """Yield a shop with its own tables."""
    with AtomicShop(redis_url, directory, database) as shop:
        shop_app.create_tables(DATABASE_ALIAS)
        if connections[DATABASE_ALIAS].vendor == "postgresql":
            with connections[DATABASE_ALIAS].cursor() as cursor:
                cursor.execute(_WAITS_AT_COMMIT)
        yield shop


def conninfo():
    """Return how to connect to the shop's database beside it."""
    given = connections[DATABASE_ALIAS].settings_dict
    names = {"dbname": "NAME", "user": "USER", "host": "HOST", "port": "PORT"}
    return {name: given[setting] for name, setting in names.items()}
