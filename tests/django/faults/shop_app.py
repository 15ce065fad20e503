"""
A shop whose bodies have a transaction of their own on the project's database, beside the records that are kept there.

    after_admit ── BEGIN ── INSERT ── in_transaction ── whatever happens ── COMMIT or ROLLBACK ── settle

A booking is a row of the shop's; nothing but the transaction and the safeguards keeps it from being there twice.
"""

import os
import threading

from django.db import connections, transaction

from celery_safeguards import RetryPolicy
from celery_safeguards.wiring import Wiring
from tests.acceptance.shop_app import DATABASE_ALIAS, GuardedTask, keyed, make_app
from tests.support.announce import gate
from tests.support.apps import NAMESPACE

CREATE_BOOKINGS = "CREATE TABLE IF NOT EXISTS bookings (order_id varchar(80))"
SOON = RetryPolicy(attempts=5, base_seconds=0.2, factor=1, cap_seconds=0.2)
_PATIENCE_SECONDS = 50


def add_tasks(app):
    """Register the tasks of this shop; each fails in its own way, the first time."""

    def book(self, order_id, fail):
        gate("after_admit", order_id=order_id)
        with transaction.atomic(using=DATABASE_ALIAS):
            insert(order_id)
            gate("in_transaction", order_id=order_id, attempt=self.safe.attempt)
            if self.safe.attempt == 1:
                fail(order_id)
        return f"booked {order_id}"

    def book_well(self, order_id):
        return book(self, order_id, lambda _: None)

    def book_again(self, order_id):
        return book(self, order_id, refuse_connection)

    def book_never(self, order_id):
        return book(self, order_id, refuse_order)

    def book_broken(self, order_id):
        return book(self, order_id, break_connection)

    def book_slowly(self, order_id):
        return book(self, order_id, hang)

    def mark(self, order_id):
        return marked(app, order_id)

    guarded = keyed("rerun", retry=SOON)
    for body in (book_well, book_again, book_never, book_broken):
        app.task(body, name=f"shop.{body.__name__}", base=GuardedTask, bind=True, safeguards=guarded, shared=False)
    slow = {"safeguards": keyed("quarantine"), "time_limit": 1}
    app.task(book_slowly, name="shop.book_slowly", base=GuardedTask, bind=True, shared=False, **slow)
    app.task(mark, name="shop.mark", base=GuardedTask, bind=True, safeguards=guarded, shared=False)
    return app


def refuse_connection(order_id):
    raise ConnectionRefusedError(f"{order_id}: nobody listens")


def refuse_order(order_id):
    raise ValueError(f"{order_id} is no order")


def break_connection(order_id):
    """Lose the connection beneath Django's feet, and go on with it."""
    connections[DATABASE_ALIAS].connection.close()
    insert(order_id)


def hang(order_id):
    threading.Event().wait(_PATIENCE_SECONDS)


def insert(order_id):
    with connections[DATABASE_ALIAS].cursor() as cursor:
        cursor.execute("INSERT INTO bookings (order_id) VALUES (%s)", [order_id])


def marked(app, order_id):
    """Write a mark by the body's connection and read it back, and the record by the safeguards'; tell who served."""
    gate("after_admit", order_id=order_id)
    records, plan = Wiring.of(app).admission, app.tasks["shop.mark"].plan
    with transaction.atomic(using=DATABASE_ALIAS), connections[DATABASE_ALIAS].cursor() as cursor:
        insert(order_id)
        record = records.read(plan.record_key(plan.key((), {"order_id": order_id})))
        cursor.execute("SELECT order_id FROM bookings WHERE order_id = %s", [order_id])
        found = cursor.fetchall()
        bodys_session = session_of(cursor)
    sessions = {"own_session": records.house.connection.run(session_of), "bodys_session": bodys_session}
    return {"found": found, "task_id": record.task_id, "process": os.getpid(), **sessions}


def session_of(cursor):
    """Return the server's process at the other end."""
    cursor.execute("SELECT pg_backend_pid()")
    return cursor.fetchone()[0]


app = add_tasks(make_app()) if NAMESPACE in os.environ else None
