"""
The kill matrix, children: SIGKILL of a pool child at every point of a delivery, under every policy.

One worker for each policy, half idle, takes one order to each point; then their children are killed. What was paid is
counted at the gateway.
"""

import os
import signal
from types import SimpleNamespace

import pytest

from celery_safeguards.errors import AttachedToLetter
from celery_safeguards.outcome import Outcome
from tests.acceptance.kill_points import KEYED, POINTS, POLICIES, Aftermath
from tests.acceptance.shop_under_test import Shop


@pytest.fixture(scope="module", params=POLICIES)
def killed(request, redis_url, tmp_path_factory):
    """A shop whose worker has just lost a child at each point; `orders` by point."""
    with Shop(redis_url, tmp_path_factory.mktemp("shop")) as shop:
        worker = shop.start_worker(2 * len(POINTS))
        orders = {point: shop.place(request.param, point) for point in POINTS}
        shop.kill_children(*orders.values())
        yield SimpleNamespace(policy=request.param, shop=shop, worker=worker, orders=orders)


@pytest.fixture
def shop(redis_url, tmp_path):
    """A shop for one test."""
    with Shop(redis_url, tmp_path) as shop:
        yield shop


@pytest.mark.parametrize("point", POINTS)
def test_killed_child_leaves_what_its_policy_promises(killed, point):
    """
    A payment would be lost, or taken twice from a customer whose shop had asked for the opposite.

    Borderless360/django-logic#79: late acknowledgement alone acknowledges what a killed child has not done.
    """
    order = killed.orders[point]

    left = killed.shop.aftermath(order)

    assert Aftermath.promised(order) == left


@pytest.mark.parametrize("killed", KEYED, indirect=True)
@pytest.mark.parametrize("point", POINTS)
def test_duplicate_after_a_killed_child_is_answered_from_the_record(killed, point):
    """A second click on "pay" after a crash would charge again, or vanish without a trace."""
    shop, order = killed.shop, killed.orders[point]
    _state, first = shop.end_of(order)

    duplicate = shop.publish(killed.policy, order.id)
    state, result = shop.wait_for_end(duplicate)

    if order.is_quarantined:
        assert ("FAILURE", AttachedToLetter, first.letter_id) == (state, type(result), result.letter_id)
    else:
        assert ("SUCCESS", first) == (state, result)
        assert 1 == len(shop.heard("delivery_ended", order, task_id=duplicate, outcome=Outcome.DEDUPLICATED))
    assert Aftermath.promised(order) == shop.aftermath(order)


def test_worker_is_whole_after_it_lost_its_children(killed):
    """Messages would stay unacknowledged, dead children pile up, or the worker stand still."""
    for order in killed.orders.values():
        killed.shop.end_of(order)

    killed.shop.assert_is_whole(killed.worker)
    killed.shop.assert_broker_is_empty()


def test_children_killed_in_a_backlog_cost_no_other_order(shop):
    """Under load a kill would lose or double the orders that wait behind it."""
    cells = {3: ("verify", "after_effect"), 8: ("quarantine", "after_admit"), 14: ("rerun", "answer_is_lost")}
    orders = [shop.place(*cells.get(number, (POLICIES[number % 4], None))) for number in range(20)]
    worker = shop.start_worker(2)

    for number in cells:
        shop.kill_children(orders[number])

    assert [Aftermath.promised(order) for order in orders] == [shop.aftermath(order) for order in orders]
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


@pytest.mark.smoke
def test_child_killed_after_the_charge_charges_once_with_verify(shop):
    """The promise in one line: the money is gone, the process too, and the customer pays once."""
    worker = shop.start_worker(2)
    order = shop.place("verify", "after_effect")

    shop.kill_children(order)

    assert Aftermath.promised(order) == shop.aftermath(order)
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


def test_request_that_lands_after_its_sender_died_is_waited_for_before_verify_is_asked(shop):
    """Asked too early, the gateway would say "not charged", and the request on its way would be the second charge."""
    shop.start_worker(2)
    order = shop.place("verify", "call_lands_late")
    os.kill(shop.wait_until_there(order), signal.SIGKILL)

    shop.wait_for("delivery_ended", order, outcome=Outcome.DEFERRED)
    shop.let_go(order)

    assert Aftermath.promised(order) == shop.aftermath(order)


def test_plain_celery_charges_twice_when_its_child_is_killed_after_the_charge(shop):
    """If plain Celery came through, the kills of this file would prove nothing."""
    shop.start_worker(2)
    order = shop.place("plain", "after_effect")

    shop.kill_children(order)

    assert Aftermath(charges=2, end="paid") == shop.aftermath(order)


def test_order_published_twice_is_charged_once_unless_celery_is_plain(shop):
    """A double click would charge twice; on plain Celery it does."""
    shop.start_worker(8)
    orders = [shop.place(policy, "after_effect") for policy in (*KEYED, "plain")]
    for order in orders:
        shop.wait_until_there(order)
    shop.wait_until_takeovers_begin()

    duplicates = [shop.publish(order.policy, order.id) for order in orders]
    for order, duplicate in zip(orders[:3], duplicates, strict=False):
        shop.wait_for("delivery_ended", order, task_id=duplicate, outcome=Outcome.DEFERRED)
    shop.let_go(*orders)
    ends = [shop.wait_for_end(order.task_id) for order in orders]
    ends_of_duplicates = [shop.wait_for_end(duplicate) for duplicate in duplicates]

    assert [1, 1, 1, 2] == [len(shop.charge_ids(order)) for order in orders]
    assert ends[:3] == ends_of_duplicates[:3]
