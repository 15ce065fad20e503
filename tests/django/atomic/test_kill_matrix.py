"""
Atomic work whose child is killed at every point: payment, record and receipt are there once, or none of them is.
"""

import os
import signal

import psycopg
import pytest

from celery_safeguards.errors import DeadLettered
from celery_safeguards.outcome import FailureKind, Outcome
from tests.acceptance.shop_under_test import PATIENCE_SECONDS
from tests.django.atomic.shop_under_test import HOLD_COMMITS, IS_COMMITTING, POINTS, all_of_it, conninfo, opened
from tests.support.waiting import wait_until

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def shop(database, redis_url, tmp_path_factory):
    """A shop with a worker of two children."""
    with opened(redis_url, tmp_path_factory.mktemp("shop"), database) as shop:
        shop.start_worker(2).wait_ready()
        yield shop


@pytest.mark.parametrize("point", POINTS)
def test_killed_child_leaves_all_of_it_or_nothing(shop, point):
    """The payment would be there twice, or without its receipt, or with a record that says otherwise."""
    order = shop.place("atomic", point)

    shop.kill_children(order)

    assert all_of_it(order) == shop.aftermath_of(order)
    assert [] == shop.letters_of(order)


def test_duplicate_of_a_killed_payment_is_answered_from_its_record(shop):
    """A second click on "pay" after a crash would pay again."""
    order = shop.place("atomic", "after_settle")
    shop.kill_children(order)
    *_, first = shop.aftermath_of(order)

    again = shop.wait_for_end(shop.publish("atomic", order.id))

    assert (("SUCCESS", first), (1, 1)) == (again, shop.rows_of(order))
    assert shop.heard("delivery_ended", order, outcome=Outcome.DEDUPLICATED)


def test_payment_that_kills_its_process_each_time_ends_as_a_letter(shop):
    """It would take one child after another, for ever."""
    order = shop.place("die_atomic")

    state, error = shop.wait_for_end(order.task_id)

    (letter,) = shop.letters_of(order)
    assert ("FAILURE", DeadLettered, letter.id) == (state, type(error), error.letter_id)
    assert (FailureKind.WORKER_LOST, False) == (letter.kind, letter.effect_possible)
    assert (3, (0, 0)) == (len(shop.heard("started", order)), shop.rows_of(order))
    shop.assert_broker_is_empty()


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_child_killed_in_the_midst_of_its_commit_has_committed_once(shop):
    """The server goes on with a COMMIT whose client is dead: who asks too early finds nothing, and pays again."""
    with psycopg.connect(**conninfo(), autocommit=True) as holder:
        holder.execute(HOLD_COMMITS)
        order = shop.place("atomic")
        wait_until(lambda: holder.execute(IS_COMMITTING).fetchone(), PATIENCE_SECONDS, "the server is at its COMMIT")
        os.kill(shop.wait_for("after_admit", order)["pid"], signal.SIGKILL)
        shop.wait_for("delivery_ended", order, outcome=Outcome.DEFERRED)

    assert all_of_it(order) == shop.aftermath_of(order)
    assert 1 == len(shop.heard("after_admit", order))
