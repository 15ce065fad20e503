"""
Children of one worker that work with the database: recycled, killed at their time limit, and eight at once.
"""

import pytest

from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from tests.django.faults.shop_under_test import BookingShop

MANY = 50
CHILDREN = 8
# SQLite has one writer: a body that hangs in its transaction keeps everybody else's claims from being written.
pytestmark = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)


@pytest.fixture
def shop(redis_url, tmp_path, database):
    """A shop for one test."""
    with BookingShop(redis_url, tmp_path, database) as shop:
        yield shop


def test_recycled_children_stay_clean_after_fifty_time_limits(shop):
    """
    celery/celery#5483, #4878, #2760: a connection that was opened in the parent, or that a killed child has left
    broken, spoils every later task with errors of TLS or of a bad descriptor.
    """
    worker = shop.start_worker(CHILDREN, extra_args=["--max-tasks-per-child=1"])
    slow = [shop.place("book_slowly") for _ in range(MANY)]
    for order in slow:
        assert "FAILURE" == shop.end_of(order)[0]

    clean = [shop.place("book_well") for _ in range(MANY)]
    ends = [shop.end_of(order) for order in clean]

    assert [("SUCCESS", f"booked {order.id}") for order in clean] == ends
    assert [1] * MANY == [shop.bookings(order) for order in clean]
    assert [(State.DONE, 1, 0)] * MANY == [shop.counts(order) for order in clean]
    assert [0] * MANY == [shop.bookings(order) for order in slow]
    assert [(State.QUARANTINED, 1, 1)] * MANY == [shop.counts(order) for order in slow]
    assert [FailureKind.UNKNOWN_OUTCOME] * MANY == [letter.kind for letter in shop.letters()]
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


def test_eight_children_never_share_a_connection(shop):
    """
    redis/redis-py#234, redis/redis-py#412, celery/celery#6335: on a socket that two processes share each reads the
    other's answers.
    """
    worker = shop.start_worker(CHILDREN).wait_ready()
    shop.announcements.hold("after_admit")
    orders = [shop.place("mark") for _ in range(25 * CHILDREN)]
    for order in orders[:CHILDREN]:
        shop.wait_for("after_admit", order)
    shop.announcements.open("after_admit")

    ends = [shop.end_of(order) for order in orders]

    assert ["SUCCESS"] * len(orders) == [state for state, _ in ends]
    marks = [mark for _, mark in ends]
    assert [([[order.id]], order.task_id) for order in orders] == [(mark["found"], mark["task_id"]) for mark in marks]
    assert {mark["process"] for mark in marks} == set(worker.child_pids())
    own = {(mark["process"], mark["own_session"]) for mark in marks}
    bodys = {(mark["process"], mark["bodys_session"]) for mark in marks}
    # The safeguards keep theirs; Celery closes that of the body after each task.
    assert CHILDREN == len(own)
    assert len(own | bodys) == len({session for _, session in own | bodys})
    shop.assert_broker_is_empty()
