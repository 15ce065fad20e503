"""
The kill matrix of pool children, with what the safeguards know in the project's database: PostgreSQL and SQLite.

The tests are those of the Redis store, to the letter; here they get another shop.
"""

from types import SimpleNamespace

import pytest

from tests.acceptance.kill_points import KEYED, POINTS
from tests.acceptance.shop_under_test import Shop
from tests.acceptance.test_kill_matrix import (  # noqa: F401 - collected here once more, with the fixtures below
    test_child_killed_after_the_charge_charges_once_with_verify,
    test_killed_child_leaves_what_its_policy_promises,
    test_order_published_twice_is_charged_once_unless_celery_is_plain,
    test_request_that_lands_after_its_sender_died_is_waited_for_before_verify_is_asked,
    test_worker_is_whole_after_it_lost_its_children,
)


@pytest.fixture(scope="module", params=KEYED)
def killed(request, database, redis_url, tmp_path_factory):
    """A shop whose worker has just lost a child at each point; `orders` by point."""
    with Shop(redis_url, tmp_path_factory.mktemp("shop"), database) as shop:
        worker = shop.start_worker(2 * len(POINTS))
        orders = {point: shop.place(request.param, point) for point in POINTS}
        shop.kill_children(*orders.values())
        yield SimpleNamespace(policy=request.param, shop=shop, worker=worker, orders=orders)


@pytest.fixture
def shop(redis_url, tmp_path, database):
    """A shop for one test."""
    with Shop(redis_url, tmp_path, database) as shop:
        yield shop
