"""
Atomic work whose whole worker is killed at every point: nobody is left to say what became of it, the database is.
"""

import pytest

from tests.django.atomic.shop_under_test import POINTS, all_of_it, opened

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def shop(database, redis_url, tmp_path_factory):
    with opened(redis_url, tmp_path_factory.mktemp("shop"), database) as shop:
        yield shop


@pytest.mark.parametrize("point", POINTS)
def test_killed_worker_leaves_all_of_it_or_nothing(shop, point):
    """The payment would be there twice, or without its receipt, or with a record that says otherwise."""
    order = shop.place("atomic", point)
    shop.kill_worker(shop.start_worker(1), order)
    shop.let_messages_time_out()
    heir = shop.start_worker(1)

    assert all_of_it(order) == shop.aftermath_of(order)
    assert [] == shop.letters_of(order)
    heir.kill_all()
