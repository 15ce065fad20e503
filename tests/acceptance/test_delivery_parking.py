"""
Work that has to wait for another one is kept by the broker, and no worker's death or fullness touches it.
"""

import json

import pytest

from tests.acceptance.test_delivery import PATIENCE_SECONDS, Scene
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.waiting import wait_until

pytestmark = pytest.mark.acceptance


@pytest.fixture
def scene(start_worker, announcements, redis_client, redis_url, namespace):
    """A fleet whose messages are looked at one by one."""
    scene = Scene(start_worker, announcements, redis_client, redis_url, namespace)
    scene.held = lambda: redis_client.hlen(f"{namespace}.unacked")
    scene.parked = lambda: redis_client.zcard(f"{namespace}.unacked_parked")
    return scene


def test_duplicate_of_running_work_waits_in_the_broker(scene):
    scene.announcements.hold("before_effect")
    scene.worker(concurrency=2)
    for _ in range(3):
        scene.send("A1", name="keyed")
    scene.wait_for("before_effect", "A1")

    wait_until(lambda: (scene.held(), scene.parked()) == (1, 2), PATIENCE_SECONDS, "both wait in the broker")
    scene.announcements.open("before_effect")

    wait_until(lambda: scene.held() == scene.parked() == 0, PATIENCE_SECONDS, "all have ended")
    scene.wait_empty()
    assert 1 == len(scene.announcements.heard("effect"))


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_claim_is_renewed_in_every_pool(scene, pool):
    """A body longer than its claim's lease of 3 s, and a duplicate that asks for it again and again."""
    if pool == "gevent":
        pytest.importorskip("gevent")
    scene.announcements.hold("before_effect")
    for _ in range(2):
        scene.worker(pool=pool)
    for _ in range(2):
        scene.send("A1", name="keyed")
    scene.wait_for("before_effect", "A1")

    # It is put off for half a second to a second, then for twice, four and eight times as long.
    scene.announcements.wait_for("task_received", PATIENCE_SECONDS, count=5)
    scene.announcements.open("before_effect")

    wait_until(lambda: scene.held() == scene.parked() == 0, PATIENCE_SECONDS, "all have ended")
    scene.wait_empty()
    assert 1 == len(scene.announcements.heard("effect"))


def test_duplicate_of_running_work_waits_in_a_worker_on_the_stock_transport(scene):
    """The control: a copy with an ETA, held in memory and unacknowledged until its time."""
    scene.announcements.hold("before_effect")
    scene.worker(concurrency=2, env={apps.TRANSPORT: "stock"})
    for _ in range(2):
        scene.send("A1", name="keyed")
    scene.wait_for("before_effect", "A1")

    wait_until(lambda: scene.held() == 2, PATIENCE_SECONDS, "the copy is held")
    assert 0 == scene.parked()


def test_parked_work_outlives_every_worker(scene):
    """celery/celery#1810: what waited in a worker came back a visibility timeout after its death, if at all."""
    scene.announcements.hold("before_effect", order_id="A1")
    worker = scene.worker(concurrency=2)
    for _ in range(2):
        scene.send("A1", name="keyed")
    scene.wait_for("before_effect", "A1")
    wait_until(lambda: scene.parked() == 1, PATIENCE_SECONDS, "the duplicate is parked")

    worker.kill_all()
    scene.announcements.open("before_effect")
    scene.worker(concurrency=2)

    scene.wait_for("effect", "A1")
    wait_until(lambda: scene.held() == scene.parked() == 0, PATIENCE_SECONDS, "all have ended")
    scene.wait_empty()
    assert 1 == len(scene.announcements.heard("effect"))


def test_what_waits_for_a_time_does_not_use_up_the_calls_of_a_lock(scene):
    """As the oldest of the line it would be called at each end, come too early, and leave the others waiting."""
    scene.announcements.hold("before_effect", order_id="late")
    scene.worker(concurrency=2)
    scene.send("late", name="locked")
    scene.wait_for("before_effect", "late")
    duplicate = scene.send("late", name="locked")
    wait_until(lambda: scene.parked() == 1, PATIENCE_SECONDS, "the duplicate is parked")
    for number in range(6):
        scene.send(f"A{number}", name="locked")
    wait_until(lambda: scene.parked() == 7, PATIENCE_SECONDS, "all wait")

    scene.announcements.open("before_effect")
    scene.announcements.wait_for("effect", PATIENCE_SECONDS, count=6)

    ends = scene.announcements.heard(lambda each: each["event"] in ("effect", "task_received"))
    first = next(number for number, each in enumerate(ends) if each["event"] == "effect")
    again = [each for each in ends[first:] if each["event"] == "task_received" and each["task_id"] == duplicate]
    assert 1 >= len(again)


def test_who_began_to_wait_during_a_long_body_is_called_at_its_end(scene):
    """When it began nobody waited; without the call it would be as long again until the next one starts."""
    scene.announcements.hold("before_effect", order_id="A1")
    scene.worker(concurrency=2, env={"DELIVERY_SETTINGS": json.dumps({"safeguards_deferral_base_seconds": 60})})
    scene.send("A1", name="locked")
    scene.wait_for("before_effect", "A1")
    scene.send("A2", name="locked")
    wait_until(lambda: scene.parked() == 1, PATIENCE_SECONDS, "it waits")
    # Longer than news of what is parked are old.
    scene.wait_for_renewals(count=2)

    scene.announcements.open("before_effect")

    # By itself it would come in thirty seconds at the earliest.
    wait_until(lambda: scene.announcements.heard(is_said("effect", order_id="A2")), 15, "it was called")


def test_message_that_expires_while_it_waits_passes_the_call_on(scene):
    """It is withdrawn before any child has it, which would call the next one."""
    scene.announcements.hold("before_effect", order_id="A1")
    scene.worker(concurrency=2, env={"DELIVERY_SETTINGS": json.dumps({"safeguards_deferral_base_seconds": 60})})
    scene.send("A1", name="locked")
    scene.wait_for("before_effect", "A1")
    for number in range(3):
        scene.send(f"B{number}", name="locked", expires=2)
        wait_until(lambda number=number: scene.parked() == number + 1, PATIENCE_SECONDS, "it waits")
    scene.send("C1", name="locked")
    wait_until(lambda: scene.parked() == 4, PATIENCE_SECONDS, "all wait")
    scene.wait_for_renewals(count=3)

    scene.announcements.open("before_effect")

    # By itself each would come thirty seconds after the one before it, at the earliest.
    wait_until(lambda: scene.announcements.heard(is_said("effect", order_id="C1")), 15, "the call was passed on")
    scene.wait_empty()
    assert [] == scene.announcements.heard(lambda each: str(each.get("order_id")).startswith("B"))
