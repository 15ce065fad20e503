"""
The kill matrix of whole workers, with what the safeguards know in the project's database: PostgreSQL and SQLite.

The tests are those of the Redis store, to the letter; here they get another shop.
"""

from types import SimpleNamespace

import pytest

from tests.acceptance.kill_points import POINTS, POLICIES
from tests.acceptance.shop_under_test import Shop
from tests.acceptance.test_kill_worker import (  # noqa: F401 - collected here once more, with the fixtures below
    test_duplicate_after_a_killed_worker_is_answered_from_the_record,
    test_heir_is_whole_after_it_took_over,
    test_killed_worker_is_not_followed_before_its_lease_is_over,
    test_killed_worker_leaves_what_the_policy_promises,
    test_worker_killed_in_a_backlog_costs_no_order,
)


@pytest.fixture(scope="module")
def killed(database, redis_url, tmp_path_factory):
    """A shop whose worker was killed with an order at each point; `orders` by policy and point."""
    with Shop(redis_url, tmp_path_factory.mktemp("shop"), database) as shop:
        cells = [(policy, point) for policy in POLICIES for point in POINTS]
        worker = shop.start_worker(len(cells))
        orders = {cell: shop.place(*cell) for cell in cells}
        for order in orders.values():
            shop.wait_until_there(order)
        heir = shop.start_worker(2).wait_ready()
        shop.kill_worker(worker, *orders.values())
        shop.let_messages_time_out()
        yield SimpleNamespace(shop=shop, heir=heir, orders=orders)


@pytest.fixture
def shop(redis_url, tmp_path, database):
    """A shop for one test."""
    with Shop(redis_url, tmp_path, database) as shop:
        yield shop
