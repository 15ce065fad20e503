"""
PostgreSQL is stopped under a running worker, or ends sessions of it: no restart of the worker, nothing lost or doubled.

A server for these tests alone. Each test has a shop of its own on it, whose orders are paid at a gateway that counts.
"""

import psycopg
import pytest

from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import Outcome
from tests.acceptance.kill_points import Aftermath
from tests.acceptance.shop_under_test import PATIENCE_SECONDS
from tests.django.conftest import migrated
from tests.django.faults.shop_under_test import BookingShop
from tests.support import databases, postgres
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres
PAID = {"charges": 1, "end": "paid", "record": State.DONE}
RECORDS = "django_celery_safeguards_idempotencyrecord"
ALL_BUT_MINE = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
WAITS_FOR_A_LOCK = f"{ALL_BUT_MINE} AND wait_event_type = 'Lock' AND query LIKE '%{RECORDS}%'"


@pytest.fixture(scope="module")
def server():
    """A server that may be stopped."""
    with postgres.postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def database(server):
    """Django's settings of a migrated database there."""
    return migrated(databases.postgres(server.url))


@pytest.fixture
def shop(server, database, redis_url, tmp_path):
    """A shop for one test."""
    with BookingShop(redis_url, tmp_path, database) as shop:
        yield shop


@pytest.fixture
def worker(shop):
    """A worker with two children, up before anything fails."""
    return shop.start_worker(2).wait_ready()


@pytest.fixture
def admin(server):
    """A session of somebody who may end those of others."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


def terminate(admin, which=ALL_BUT_MINE):
    """End sessions, and return how many there were, once they are gone."""
    pids = [pid for pid, _ in admin.execute(f"SELECT pid, pg_terminate_backend(pid) {which}").fetchall()]
    gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)"
    wait_until(lambda: not admin.execute(gone, [pids]).fetchone()[0], PATIENCE_SECONDS, "the sessions are over")
    return len(pids)


def test_server_restarted_between_two_orders_is_not_noticed(shop, worker, server):
    """Every child would lose its next order, or the worker have to be restarted with its database."""
    before = [shop.place("verify") for _ in range(4)]
    for order in before:
        shop.end_of(order)

    server.restart()
    after = [shop.place("verify") for _ in range(4)]

    promised = Aftermath(**PAID, lost_starts=0)
    assert [promised] * 8 == [shop.aftermath(order) for order in (*before, *after)]
    assert [1] * 8 == [len(shop.starts(order)) for order in (*before, *after)]
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


@pytest.mark.parametrize("point", ["after_admit", "after_effect"])
def test_server_stopped_under_a_body_charges_once_and_keyed_work_waits(shop, worker, server, point):
    """The outcome would be lost with the session that was to write it, and the order be charged again."""
    order = shop.place("verify", point)
    shop.wait_until_there(order)

    server.stop()
    shop.announcements.open(point)
    waiting = shop.place("verify")
    shop.wait_for("before_admit", waiting)
    began_without_its_record = shop.heard("after_admit", waiting)
    server.start()

    for each in (order, waiting):
        left = shop.aftermath(each)
        assert PAID == {name: getattr(left, name) for name in PAID}
        assert () == left.letters
    assert [] == began_without_its_record
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


def test_server_away_for_longer_than_a_lease_charges_once(shop, worker, server):
    """A body whose claim has lapsed unseen would charge beside whoever takes over: its process is ended before."""
    order = shop.place("verify", "after_effect")
    child = shop.wait_until_there(order)
    wait_until(lambda: shop.record(order).rev > 1, PATIENCE_SECONDS, "the claim was renewed")

    server.stop()
    wait_until(lambda: child not in worker.child_pids(), PATIENCE_SECONDS, "the child of the lapsed claim has ended")
    shop.announcements.open("after_effect")
    server.start()

    assert Aftermath(**PAID, lost_starts=1) == shop.aftermath(order)
    assert 1 == len(shop.starts(order))
    assert shop.heard("verify_asked", order)
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


@pytest.mark.parametrize("point", ["after_admit", "after_effect"])
def test_sessions_that_are_ended_in_mid_body_cost_nothing(shop, worker, admin, point):
    """The claim would seem lost, and the body be started again beside the one that runs."""
    order = shop.place("verify", point)
    shop.wait_until_there(order)

    ended = terminate(admin)
    shop.announcements.open(point)

    assert Aftermath(**PAID, lost_starts=0) == shop.aftermath(order)
    assert 1 == len(shop.starts(order))
    assert ended >= 2
    shop.assert_is_whole(worker)


@pytest.mark.parametrize("step", ["admit", "settle"])
def test_session_that_is_ended_in_the_midst_of_a_step_costs_nothing(shop, worker, admin, server, step):
    """The server may have done it or not: asked again, it would refuse its own owner."""
    point = {"admit": "before_admit", "settle": "after_effect"}[step]
    order = shop.place("verify", point)
    shop.wait_for(point, order)

    with psycopg.connect(server.url) as holder:
        holder.execute(f"LOCK TABLE {RECORDS} IN SHARE MODE")
        shop.announcements.open(point)
        waits = f"SELECT count(*) {WAITS_FOR_A_LOCK}"
        wait_until(lambda: admin.execute(waits).fetchone()[0], PATIENCE_SECONDS, f"the {step} waits")
        ended = terminate(admin, WAITS_FOR_A_LOCK)

    assert Aftermath(**PAID, lost_starts=0) == shop.aftermath(order)
    assert 1 == len(shop.starts(order))
    assert ended
    shop.assert_is_whole(worker)


def test_session_of_the_body_that_is_ended_costs_an_attempt_and_leaves_no_row(shop, worker, admin):
    """The rows go with the session; if its record went along, the booking would be lost, or tried for ever."""
    shop.announcements.hold("in_transaction", attempt=1)
    order = shop.place("book_well")
    shop.wait_for("in_transaction", order)

    terminate(admin)
    shop.announcements.open("in_transaction")

    assert ("SUCCESS", f"booked {order.id}") == shop.end_of(order)
    assert (1, (State.DONE, 2, 0)) == (shop.bookings(order), shop.counts(order))
    assert len(shop.starts(order)) == 2
    assert [] == shop.heard("delivery_ended", order, outcome=Outcome.DEAD_LETTERED)
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()
