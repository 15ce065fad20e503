"""
The kill matrix, whole workers: SIGKILL of main process and children at once, as a host that loses power.

Nobody is left to say that a start was lost: the message comes back by the visibility timeout, and the claim's lease
tells that its owner is gone. One worker takes one order to each point under every policy, then all of it is killed, and
another worker takes over: one that was there before, or one that is started afterwards into a fleet that fell silent.
"""

from types import SimpleNamespace

import pytest

from celery_safeguards.clock import to_us
from celery_safeguards.outcome import Outcome
from tests.acceptance.kill_points import KEYED, POINTS, POLICIES, Aftermath
from tests.acceptance.shop_app import LEASE_SECONDS
from tests.acceptance.shop_under_test import Shop
from tests.support.sockets import Cutter

VISIBILITY_SECONDS = 6
SCAN_SECONDS = 1


@pytest.fixture
def shop(redis_url, tmp_path):
    """A shop for one test."""
    with Shop(redis_url, tmp_path) as shop:
        yield shop


@pytest.fixture(scope="module", params=["waits", "comes_later"])
def killed(request, redis_url, tmp_path_factory):
    """A shop whose worker was killed with an order at each point; `orders` by policy and point."""
    with Shop(redis_url, tmp_path_factory.mktemp("shop")) as shop:
        cells = [(policy, point) for policy in POLICIES for point in POINTS]
        worker = shop.start_worker(len(cells) + 1)
        orders = {cell: shop.place(*cell) for cell in [*cells, ("plain", "after_effect")]}
        for order in orders.values():
            shop.wait_until_there(order)
        heir = shop.start_worker(2).wait_ready() if request.param == "waits" else None
        shop.kill_worker(worker, *orders.values())
        heir = heir or shop.start_worker(2)
        shop.let_messages_time_out()
        yield SimpleNamespace(shop=shop, heir=heir, orders=orders)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_killed_worker_leaves_what_the_policy_promises(killed, policy, point):
    """A payment would be lost with its host, or taken twice."""
    order = killed.orders[policy, point]

    left = killed.shop.aftermath(order)

    assert Aftermath.promised(order) == left


@pytest.mark.parametrize("point", ["before_admit", "after_settle", "before_ack"])
@pytest.mark.parametrize("policy", KEYED)
def test_duplicate_after_a_killed_worker_is_answered_from_the_record(killed, policy, point):
    """A second click after the crash would charge what the dead worker has charged already."""
    order = killed.orders[policy, point]
    first = killed.shop.end_of(order)

    duplicate = killed.shop.publish(policy, order.id)
    second = killed.shop.wait_for_end(duplicate)

    assert (first, 1) == (second, len(killed.shop.charge_ids(order)))


def test_heir_is_whole_after_it_took_over(killed):
    """The worker that took over would keep messages unacknowledged, or stand still."""
    for order in killed.orders.values():
        killed.shop.end_of(order)

    killed.shop.assert_is_whole(killed.heir)
    killed.shop.assert_broker_is_empty()


def test_plain_celery_charges_twice_when_its_worker_is_killed_after_the_charge(killed):
    """If plain Celery came through, the kills of this file would prove nothing."""
    order = killed.orders["plain", "after_effect"]

    assert Aftermath(charges=2, end="paid") == killed.shop.aftermath(order)


@pytest.mark.parametrize(
    "cells",
    [
        [("verify", "after_effect"), ("rerun", "call_lands_late")],
        [("quarantine", "answer_is_lost"), ("repeatable", "after_admit")],
    ],
)
def test_worker_killed_in_a_backlog_costs_no_order(shop, cells):
    """Orders that wait in the queue, or in a dead worker's hands, would be lost or doubled."""
    before = [shop.place(policy) for policy in POLICIES]
    held = [shop.place(*cell) for cell in cells]
    after = [shop.place(policy) for policy in POLICIES * 4]
    worker = shop.start_worker(2, visibility_seconds=VISIBILITY_SECONDS)

    shop.kill_worker(worker, *held)
    heir = shop.start_worker(2, visibility_seconds=VISIBILITY_SECONDS)

    orders = [*before, *held, *after]
    assert [Aftermath.promised(order) for order in orders] == [shop.aftermath(order) for order in orders]
    shop.assert_is_whole(heir)
    shop.assert_broker_is_empty()


def test_killed_worker_is_followed_soon_after_the_visibility_timeout(shop):
    """celery/celery#3541: the work of a lost host seems gone for good, since nobody reports the death."""
    worker = shop.start_worker(1, visibility_seconds=1)
    order = shop.place("rerun", "after_admit")
    shop.kill_worker(worker, order)

    shop.start_worker(1, visibility_seconds=1).wait_ready()
    heir_came_us = shop.wiring.admission.view().now_us
    left = shop.aftermath(order)

    # Whoever finds that the whole fleet was silent gives its owners one lease to come back. A fence is a time.
    followed_us = shop.record(order).fence - heir_came_us
    assert followed_us < to_us(LEASE_SECONDS + 1 + SCAN_SECONDS + 2)
    assert Aftermath.promised(order) == left


def test_killed_worker_is_not_followed_before_its_lease_is_over(shop):
    """celery/celery#3541: an heir that has the message at once would run beside an owner that is only slow."""
    worker = shop.start_worker(1)
    order = shop.place("rerun", "after_admit")
    shop.wait_until_there(order)
    shop.start_worker(1).wait_ready()
    shop.wait_until_takeovers_begin()

    shop.kill_worker(worker, order)
    shop.let_messages_time_out()
    claimed = shop.record(order)
    left = shop.aftermath(order)

    assert claimed.lease_until_us <= shop.record(order).fence
    assert Aftermath.promised(order) == left


def test_work_that_ends_in_a_warm_shutdown_without_an_ack_has_one_effect(shop, redis_url):
    """celery/celery#3802: the shutdown lets the work finish, its ack is lost, and the next worker would do it again."""
    with Cutter(redis_url) as cutter:
        worker = shop.start_worker(1, visibility_seconds=VISIBILITY_SECONDS, broker_url=cutter.url)
        order = shop.place("rerun", "after_effect")
        shop.wait_until_there(order)
        worker.terminate()
        worker.wait_for("worker_shutting_down", 10)
        cutter.stall()
        shop.let_go(order)
        shop.wait_for("before_ack", order)
        worker.kill_all()

    shop.start_worker(1, visibility_seconds=VISIBILITY_SECONDS)
    shop.wait_for("delivery_ended", order, outcome=Outcome.DEDUPLICATED)

    assert 1 == len(shop.charge_ids(order)) == len(shop.heard("after_admit", order))
    shop.assert_broker_is_empty()
