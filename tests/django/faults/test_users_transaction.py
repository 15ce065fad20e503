"""
A body in a transaction of its own: whatever ends that, the rows of the user go, and what the safeguards know stays.

One worker with one child, so that the next task works with what the last one has left behind: PostgreSQL and SQLite.
"""

import os
import signal

import pytest

from celery_safeguards.errors import DeadLettered
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from tests.django.faults.shop_under_test import BookingShop


@pytest.fixture(scope="module")
def shop(database, redis_url, tmp_path_factory):
    """A shop with a worker of one child."""
    with BookingShop(redis_url, tmp_path_factory.mktemp("shop"), database) as shop:
        shop.start_worker(1).wait_ready()
        yield shop


def assert_next_is_well(shop, last):
    """Let the child do one more booking, by the same process if that lives."""
    order = shop.place("book_well")

    assert ("SUCCESS", f"booked {order.id}") == shop.end_of(order)
    assert (1, (State.DONE, 1, 0)) == (shop.bookings(order), shop.counts(order))
    assert [last] == shop.starts(order)


def test_attempt_that_fails_leaves_no_row_and_is_counted(shop):
    """The count would be rolled back with the rows, and the body be tried for ever; or both rows would stay."""
    order = shop.place("book_again")

    assert ("SUCCESS", f"booked {order.id}") == shop.end_of(order)

    assert (1, (State.DONE, 2, 0)) == (shop.bookings(order), shop.counts(order))
    first, second = shop.starts(order)
    assert first == second
    assert_next_is_well(shop, last=second)


def test_connection_that_breaks_in_the_transaction_is_not_the_next_tasks(shop):
    """Whoever comes next in the same child would find a connection that is closed, or in a transaction."""
    order = shop.place("book_broken")

    state, _ = shop.end_of(order)

    # A server that is gone may be back; a file that was closed is the body's own mistake.
    is_tried_again = shop.vendor == "postgresql"
    assert ("SUCCESS" if is_tried_again else "FAILURE") == state
    assert (int(is_tried_again), not is_tried_again) == (shop.bookings(order), bool(shop.letters_of(order)))
    assert ((State.DONE, 2, 0) if is_tried_again else (State.DEAD, 1, 0)) == shop.counts(order)
    assert_next_is_well(shop, last=shop.starts(order)[-1])


def test_failure_for_good_leaves_no_row_and_a_letter(shop):
    """The letter would be rolled back with the rows, and the message be acknowledged all the same."""
    order = shop.place("book_never")

    state, error = shop.end_of(order)

    (letter,) = shop.letters_of(order)
    assert ("FAILURE", DeadLettered, letter.id) == (state, type(error), error.letter_id)
    assert (FailureKind.DATA, 0) == (letter.kind, shop.bookings(order))
    assert (State.DEAD, 1, 0) == shop.counts(order)
    assert_next_is_well(shop, last=shop.starts(order)[0])


def test_child_killed_in_its_transaction_leaves_no_row_and_a_lost_start(shop):
    """A claim inside the transaction would be rolled back with it: nobody would know that the body had begun."""
    shop.announcements.hold("in_transaction")
    order = shop.place("book_well")
    killed = shop.wait_for("in_transaction", order)["pid"]

    os.kill(killed, signal.SIGKILL)
    shop.announcements.open("in_transaction")

    assert ("SUCCESS", f"booked {order.id}") == shop.end_of(order)
    assert (1, (State.DONE, 2, 1)) == (shop.bookings(order), shop.counts(order))
    first, second = shop.starts(order)
    assert (killed, True) == (first, killed != second)
    assert_next_is_well(shop, last=second)
