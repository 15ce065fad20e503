"""
The broker is killed, cut off, or does not take a message, while a body runs. Broker and store are one Redis here, as
they are in most installations, and it loses no write; the last tests also take it away for longer than a lease.
"""

import itertools
import time

import pytest
from celery import Celery

from tests.acceptance.faults_app import DEFERRAL_BASE_SECONDS, LEASE_SECONDS, Scene
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.acceptance
POINTS = ("before_charge", "after_charge")


@pytest.fixture
def scene(fresh_redis, namespace, gateway, announcements, start_worker):
    """One Redis for everything."""
    return Scene(
        broker_url=fresh_redis.url,
        namespace=namespace,
        gateway=gateway,
        announcements=announcements,
        start_worker=start_worker,
    )


@pytest.mark.parametrize("point", POINTS)
def test_redis_killed_while_a_body_runs_charges_once(scene, fresh_redis, gateway, announcements, point):
    """A restart of Redis would charge a customer twice (celery/celery#6951) or lose the payment."""
    announcements.hold(point, order_id="A1")
    worker = scene.worker()
    task_id = scene.send("charge", "A1")
    announcements.wait_for(is_said(point, order_id="A1"), 10)

    fresh_redis.restart(kill=True)
    scene.wait_ended("deferred", task_id=task_id)
    announcements.open(point)

    scene.wait_ended("succeeded", task_id=task_id)
    scene.wait_ended("deduplicated", task_id=task_id)
    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert 1 == len(charged)
    assert {repr(charged[0]["id"])} == scene.results(task_id)
    assert worker.is_running()


def test_redis_killed_while_a_body_runs_charges_twice_without_safeguards(scene, fresh_redis, gateway, announcements):
    """The control: late acknowledgement alone starts the body a second time beside the first."""
    announcements.hold("before_charge", order_id="A1")
    scene.worker()
    scene.send("charge_plain", "A1")
    announcements.wait_for(is_said("before_charge", order_id="A1"), 10)

    fresh_redis.restart(kill=True)
    announcements.wait_for(is_said("before_charge", order_id="A1"), 12, count=2)
    announcements.open("before_charge")

    assert 2 == len(gateway.wait_for_charges("A1", 10, count=2))


def test_redis_killed_under_a_late_acknowledged_task_ends_a_plain_worker(
    start_worker, fresh_redis, namespace, announcements
):
    """
    The control for the worker's own life: with a child idle, a plain worker needs a supervisor.

    When this fails, kombu has learned to close such a channel, and `close_to_the_end` may go.
    """
    announcements.hold("before_effect")
    env = {apps.BROKER_URL: fresh_redis.url, apps.STORE_URL: fresh_redis.url, apps.NAMESPACE: namespace}
    worker = start_worker("tests.acceptance.plain_app:app", env, concurrency=2).wait_ready()
    with Celery("producer", broker=fresh_redis.url, set_as_current=False) as producer:
        producer.conf.update(apps.queue_settings(namespace))
        producer.send_task("plain.effect", ("A1",))
    announcements.wait_for("before_effect", 10)

    fresh_redis.kill()
    wait_until(lambda: "Unrecoverable error: AttributeError" in worker.log(), 10, "the worker gives up")
    announcements.open("before_effect")

    assert 0 != worker.wait_exited()


def test_redis_killed_while_messages_wait_loses_none(scene, fresh_redis, gateway, announcements):
    """Orders that were accepted before the restart would never be paid (celery/celery#7705: the worker hangs)."""
    orders = [f"A{number}" for number in range(6)]
    announcements.hold("before_charge", order_id="A0")
    worker = scene.worker(concurrency=1)
    for order_id in orders:
        scene.send("charge", order_id)
    announcements.wait_for(is_said("before_charge", order_id="A0"), 10)

    fresh_redis.restart(kill=True)
    scene.send("charge", "B0")
    announcements.open("before_charge")

    scene.wait_ended("succeeded", count=len(orders) + 1)
    scene.wait_quiet()
    assert sorted([*orders, "B0"]) == sorted(charge["order_id"] for charge in gateway.ledger())
    assert worker.is_running()


def test_connection_cut_in_mid_body_defers_the_second_delivery(scene, fresh_redis, gateway, announcements):
    """
    A cut restores the message at once and the idle child would start the body beside the first.

    Celery's own answer is to kill running bodies (celery/celery PR#6654), which can end the worker
    (celery/celery#7185).
    """
    announcements.hold("before_charge", order_id="A1")
    scene.worker()
    task_id = scene.send("charge", "A1")
    announcements.wait_for(is_said("before_charge", order_id="A1"), 10)

    fresh_redis.cut()
    backlog = [scene.send("charge", f"B{number}") for number in range(3)]
    deferred = [scene.wait_ended("deferred", task_id=task_id, count=count)["at"] for count in (1, 2, 3)]
    for each in backlog:
        scene.wait_ended("succeeded", task_id=each)
    announcements.open("before_charge")

    scene.wait_ended("succeeded", task_id=task_id)
    scene.wait_ended("deduplicated", task_id=task_id)
    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert 1 == len(charged)
    assert {repr(charged[0]["id"])} == scene.results(task_id)
    pauses = [later - earlier for earlier, later in itertools.pairwise(deferred)]
    # A delay is half of the base at least, and what is told of its beginning may come late.
    assert min(pauses) >= DEFERRAL_BASE_SECONDS / 4, "a hot loop"
    assert len(announcements.heard(is_said("task_received", task_id=task_id))) <= 8


def test_connection_cut_in_mid_body_charges_twice_without_safeguards(scene, fresh_redis, gateway, announcements):
    """The control: the same worker starts the body again a moment after the cut."""
    announcements.hold("before_charge", order_id="A1")
    scene.worker()
    scene.send("charge_plain", "A1")
    announcements.wait_for(is_said("before_charge", order_id="A1"), 10)

    fresh_redis.cut()
    announcements.wait_for(is_said("before_charge", order_id="A1"), 12, count=2)
    announcements.open("before_charge")

    assert 2 == len(gateway.wait_for_charges("A1", 10, count=2))


def test_retry_that_the_broker_refuses_happens_all_the_same(scene, fresh_redis, gateway, announcements):
    """A payment whose first attempt failed would be lost, because the broker was away at that very moment."""
    announcements.hold("begins", attempt=1)
    with Cutter(fresh_redis.url) as publishing:
        scene.worker(broker_read_url=fresh_redis.url, broker_write_url=publishing.url, store_url=fresh_redis.url)
        task_id = scene.send("flaky", "A1")
        announcements.wait_for(is_said("begins", attempt=1), 10)

        publishing.refuse()
        announcements.open("begins")
        scene.wait_ended("fenced", task_id=task_id)
        kept = scene.messages()
        publishing.allow()

        scene.wait_ended("succeeded", task_id=task_id)
        scene.wait_quiet()
    assert 1 == sum(kept)
    assert [1, 2] == [said["attempt"] for said in announcements.heard("begins")]
    assert 2 == scene.record("flaky", "A1").attempt
    assert 1 == len(gateway.charges("A1"))


def test_retry_that_the_broker_refuses_is_lost_without_safeguards(scene, fresh_redis, gateway, announcements):
    """The control: `Task.retry` rejects the message that it could not publish again."""
    announcements.hold("begins", attempt=1)
    with Cutter(fresh_redis.url) as publishing:
        scene.worker(broker_read_url=fresh_redis.url, broker_write_url=publishing.url, store_url=fresh_redis.url)
        scene.send("flaky_plain", "A1")
        announcements.wait_for(is_said("begins", attempt=1), 10)

        publishing.refuse()
        announcements.open("begins")
        scene.wait_quiet()
        publishing.allow()

    assert 1 == len(announcements.heard("begins"))
    assert [] == gateway.ledger()


@pytest.mark.parametrize("point", POINTS)
def test_redis_away_for_longer_than_a_lease_charges_once(scene, fresh_redis, gateway, announcements, point):
    """
    A body whose claim lapsed unseen would charge beside the one that took over.

    The worker's main process ends it before the lease is over. After the return nobody takes over for one lease:
    Redis was away, and for all it knows the owners still live.
    """
    announcements.hold(point, order_id="A1")
    worker = scene.worker()
    task_id = scene.send("charge", "A1")
    child = announcements.wait_for(is_said(point, order_id="A1"), 10)
    # Only what has been renewed once can be told from what never claimed anything.
    wait_until(lambda: scene.record("charge", "A1").rev > 1, 5, "the claim was renewed")

    fresh_redis.kill()
    announcements.wait_for(is_said("lease_lost", task_id=task_id), LEASE_SECONDS + 2)
    wait_until(lambda: child["pid"] not in worker.child_pids(), 5, "the child of the lapsed claim has ended")
    announcements.open(point)
    returned = time.monotonic()
    fresh_redis.start()

    asked = announcements.wait_for(is_said("verify", order_id="A1"), 15)
    scene.wait_ended("succeeded" if point == "before_charge" else "deduplicated", task_id=task_id)
    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert 1 == len(charged)
    assert {repr(charged[0]["id"])} == scene.results(task_id)
    assert (point == "after_charge") == asked["happened"]
    assert asked["at"] - returned >= LEASE_SECONDS
    assert worker.is_running()
