"""
What people have reported of killed processes, each as a scenario: poison, time limits, recycled children, left claims.
"""

import json
import time

import pytest

from celery_safeguards.outcome import FailureKind, Outcome
from tests.acceptance.kill_points import Aftermath
from tests.acceptance.shop_under_test import PATIENCE_SECONDS, Shop

STARTS = 3


@pytest.fixture
def shop(redis_url, tmp_path):
    """A shop for one test."""
    with Shop(redis_url, tmp_path) as shop:
        yield shop


def test_task_that_kills_its_process_is_started_three_times_and_buried_once(shop):
    """celery/celery#9082: a body that runs out of memory is requeued for ever and takes the workers down with it."""
    worker = shop.start_worker(2)
    orders = [shop.place("die_keyed"), shop.place("die_repeatable")]

    ends = [shop.wait_for_end(order.task_id)[0] for order in orders]

    assert ["FAILURE"] * 2 == ends
    assert [STARTS] * 2 == [len(shop.heard("started", order)) for order in orders]
    assert [[FailureKind.WORKER_LOST]] * 2 == [[each.kind for each in shop.letters_of(order)] for order in orders]
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


@pytest.mark.parametrize("policy", ["block_rerun", "block_verify", "block_repeatable"])
def test_task_over_its_hard_limit_is_started_three_times_and_buried_once(shop, policy):
    """celery/celery#9596, #4827: it is acknowledged and lost, requeued uncounted, or told as failed twice."""
    worker = shop.start_worker(2)
    order = shop.place(policy)

    state, _result = shop.wait_for_end(order.task_id)

    assert ("FAILURE", STARTS) == (state, len(shop.heard("started", order)))
    assert 1 == len(shop.letters())
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


def test_recycled_children_are_no_lost_starts(shop):
    """
    celery/celery#3085: with `max_tasks_per_child` children end all the time, and their work is said to be lost.

    redis/redis-py#234: eight children forked from one parent would share its sockets, and read each other's answers.
    """
    worker = shop.start_worker(8, extra_args=["--max-tasks-per-child=1"])
    orders = [shop.place(f"quick_{kind}") for kind in ("keyed", "repeatable") for _ in range(100)]

    ends = [shop.wait_for_end(order.task_id) for order in orders]

    assert [("SUCCESS", order.id) for order in orders] == ends
    assert () == shop.letters()
    shop.assert_is_whole(worker)
    shop.assert_broker_is_empty()


def test_crashed_owner_is_followed_within_seconds_and_a_duplicate_is_seen(shop):
    """cameronmaske/celery-once#147: a crash leaves the lock, and for an hour new work is dropped without a trace."""
    shop.start_worker(4)
    order = shop.place("rerun", "after_admit")
    shop.wait_until_there(order)

    duplicate = shop.publish("rerun", order.id)
    shop.wait_for("delivery_ended", order, task_id=duplicate, outcome=Outcome.DEFERRED)
    killed_at = time.monotonic()
    shop.kill_children(order)
    ends = [shop.wait_for_end(task_id) for task_id in (order.task_id, duplicate)]

    starts = shop.heard("after_admit", order)
    assert (2, True) == (len(starts), starts[-1]["at"] - killed_at < 10)
    assert [("SUCCESS", id_) for id_ in shop.charge_ids(order) * 2] == ends
    assert shop.heard("delivery_ended", order, outcome=Outcome.DEDUPLICATED)


@pytest.mark.parametrize("redelivered", [False, True])
def test_redelivered_flag_changes_no_answer(shop, redelivered):
    """celery/celery#5598: the flag means something else in each version and broker, and proves nothing."""
    shop.start_worker(4)
    order = shop.place("quarantine", "after_effect", queue="parked")
    message = with_flag(shop.redis.rpop(f"{shop.namespace}.parked"), shop.namespace, redelivered)
    deliver = lambda: shop.redis.lpush(f"{shop.namespace}.{shop.namespace}", message)  # noqa: E731

    deliver()
    shop.wait_until_there(order)
    deliver()
    shop.wait_for("delivery_ended", order, outcome=Outcome.DEFERRED)
    shop.let_go(order)
    shop.wait_for("delivery_ended", order, outcome=Outcome.DEDUPLICATED)
    deliver()
    is_answered = lambda event: event["event"] == "delivery_ended" and event["outcome"] == Outcome.DEDUPLICATED  # noqa: E731
    shop.announcements.wait_for(is_answered, PATIENCE_SECONDS, count=2)

    assert Aftermath(charges=1, end="paid", record="done", lost_starts=0) == shop.aftermath(order)
    assert 1 == len(shop.heard("after_admit", order))


def with_flag(raw, queue, redelivered):
    """Return a message as kombu's Redis transport stores it, marked as redelivered or not, for another queue."""
    message = json.loads(raw)
    message["headers"]["redelivered"] = redelivered
    message["properties"]["delivery_info"] |= {"routing_key": queue, "redelivered": redelivered}
    return json.dumps(message)
