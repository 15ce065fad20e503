"""
At the visibility timeout that README recommends, a pause of fifteen seconds starts nothing twice, whoever pauses.
"""

import time

import pytest

from tests.acceptance.test_delivery import PATIENCE_SECONDS, Scene
from tests.support import apps

pytestmark = pytest.mark.acceptance
RECOMMENDED_SECONDS = 60
PAUSE_SECONDS = 15


@pytest.fixture
def scene(start_worker, announcements, fresh_redis, namespace):
    """A fleet on a server of its own, with the recommended timeout."""
    import redis

    with redis.Redis.from_url(fresh_redis.url, decode_responses=True) as client:
        scene = Scene(start_worker, announcements, client, fresh_redis.url, namespace)
        scene.env[apps.VISIBILITY] = str(RECOMMENDED_SECONDS)
        yield scene


@pytest.mark.parametrize("who", ["server", "worker", "both"])
def test_pause_starts_nothing_twice(scene, fresh_redis, who):
    """celery/celery#8030: and everybody goes on afterwards."""
    scene.announcements.hold("before_effect")
    worker = scene.worker(concurrency=2)
    scene.send("A1")
    scene.send("A2", countdown=PAUSE_SECONDS + 5)
    scene.wait_for("before_effect", "A1")
    scene.announcements.wait_for("task_received", PATIENCE_SECONDS, count=2)
    other = scene.worker(concurrency=1)

    if who != "worker":
        fresh_redis.freeze()
    if who != "server":
        worker.freeze()
    time.sleep(PAUSE_SECONDS)
    if who != "worker":
        fresh_redis.thaw()
    if who != "server":
        worker.thaw()
    scene.announcements.open("before_effect")

    for order_id in ("A1", "A2"):
        scene.wait_for("after_effect", order_id)
    scene.wait_empty()
    assert [1, 1] == [len(scene.starts(order_id)) for order_id in ("A1", "A2")]
    assert worker.is_running()
    assert other.is_running()
