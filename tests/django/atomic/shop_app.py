"""
The shop with one more way to take a payment: in one transaction with its record, and with a receipt that follows.

    after_admit ── effect ── after_effect ── write done ── before_commit ── COMMIT ── after_settle ── send ── before_ack

A payment is a row in the shop's database, whose truth no worker can touch up; so is a receipt.
"""

import os

from django.db import connections

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask
from tests.acceptance.shop_app import DATABASE_ALIAS, GuardedTask, die, keyed, make_app
from tests.support.announce import gate
from tests.support.apps import NAMESPACE

TABLES = ("payments", "receipts")
ATOMIC = Idempotent("{order_id}", atomic=DATABASE_ALIAS)


def create_tables(alias):
    """Create the shop's own tables; nothing but the bodies keeps a row from being there twice."""
    with connections[alias].cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {table} (order_id varchar(80))")


def rows_of(alias, order_id):
    """Return how many payments and how many receipts an order has."""
    with connections[alias].cursor() as cursor:
        counts = []
        for table, name in zip(TABLES, (order_id, f"receipt of {order_id}"), strict=True):
            cursor.execute(f"SELECT count(*) FROM {table} WHERE order_id = %s", [name])
            counts.append(cursor.fetchone()[0])
        return tuple(counts)


def add_tasks(app):
    """Register the tasks of this shop."""

    def pay(order_id):
        gate("after_admit", order_id=order_id)
        insert("payments", order_id)
        # Under a name of its own: the gates are those of the order.
        app.tasks["shop.receipt"].delay(order_id=f"receipt of {order_id}")
        gate("after_effect", order_id=order_id)
        return f"paid {order_id}"

    def die_paying(order_id):
        insert("payments", order_id)
        die(order_id)

    def receipt(order_id):
        insert("receipts", order_id)

    atomic = Safeguards(idempotent=ATOMIC, retry=RetryPolicy(attempts=10, base_seconds=0.2, cap_seconds=0.5))
    app.task(pay, name="shop.atomic", base=GuardedTask, safeguards=atomic, shared=False)
    app.task(die_paying, name="shop.die_atomic", base=GuardedTask, safeguards=atomic, shared=False)
    app.task(receipt, name="shop.receipt", base=SafeTask, safeguards=keyed("rerun"), shared=False)
    return app


def insert(table, order_id):
    with connections[DATABASE_ALIAS].cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} (order_id) VALUES (%s)", [order_id])


def stop_before_commits(app):
    """Put a gate before each COMMIT."""
    # Not before the project is set up: it is the app's models that it imports.
    from django_celery_safeguards.transactions import OrmTransaction

    commit = OrmTransaction.commit

    def commit_at_the_gate(transaction):
        gate("before_commit", order_id=app.current_worker_task.request.kwargs["order_id"])
        commit(transaction)

    OrmTransaction.commit = commit_at_the_gate


app = None
if NAMESPACE in os.environ:
    app = add_tasks(make_app())
    stop_before_commits(app)
