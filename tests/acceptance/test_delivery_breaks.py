"""
Cuts, cancels and shutdowns at the worst moment: what a body runs of is not given to a second one beside it.
"""

import json
import random
import signal
import time
from pathlib import Path

import pytest
from celery import Celery

from celery_safeguards.delivery.connections import choose_transport
from tests.acceptance.test_delivery import PATIENCE_SECONDS, VISIBILITY_SECONDS, Scene
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.acceptance


@pytest.fixture
def scene(start_worker, announcements, redis_client, redis_url, namespace):
    return Scene(start_worker, announcements, redis_client, redis_url, namespace)


@pytest.fixture
def cutter(redis_url):
    with Cutter(redis_url) as cutter:
        yield cutter


def through(cutter, scene, **settings):
    """Return the environment of a worker whose broker is behind the cutter, and its Celery settings."""
    return {apps.BROKER_URL: cutter.url, apps.STORE_URL: scene.url, "DELIVERY_SETTINGS": json.dumps(settings)}


def connected(worker):
    """Return how often a worker has connected to its broker."""
    return worker.log().count("Connected to redis")


def waiting(scene):
    """Return the connections by which somebody waits for a message."""
    return {each["id"] for each in scene.redis.client_list() if each["cmd"].lower() == "brpop"}


@pytest.mark.parametrize("cuts", [1, 2])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_message_that_waits_in_the_pool_runs_once_after_a_cut(scene, cutter, pool, cuts):
    """celery/celery#7185: threads keep what they were handed, a process pool forgets it."""
    scene.announcements.hold("before_effect")
    worker = scene.worker(pool=pool, env=through(cutter, scene), extra_args=("--prefetch-multiplier", "3"))
    orders = ["A1", "A2", "A3"]
    for order_id in orders:
        scene.send(order_id)
    scene.announcements.wait_for("task_received", PATIENCE_SECONDS, count=3)
    scene.announcements.wait_for("before_effect", PATIENCE_SECONDS)

    for _ in range(cuts):
        before, cut = connected(worker), waiting(scene)
        cutter.cut()
        wait_until(lambda before=before: connected(worker) > before, PATIENCE_SECONDS, "it is back")
        # The server may not have heard yet of the cut itself.
        told = "it waits for a message, and will notice the next cut"
        wait_until(lambda cut=cut: waiting(scene) - cut, PATIENCE_SECONDS, told)
    scene.announcements.open("before_effect")

    for order_id in orders:
        scene.wait_for("after_effect", order_id)
    scene.wait_empty()
    assert [1, 1, 1] == [len(scene.starts(order_id)) for order_id in orders]


def test_body_that_celery_cancels_for_a_cut_begins_again(scene, cutter):
    """celery/celery#7185: with `worker_cancel_long_running_tasks_on_connection_loss`, it is ended and comes back."""
    scene.announcements.hold("before_effect")
    settings = {"worker_cancel_long_running_tasks_on_connection_loss": True}
    scene.worker(env=through(cutter, scene, **settings))
    scene.send("A1")
    first = scene.wait_for("before_effect", "A1")

    cutter.cut()
    second = scene.wait_for("before_effect", "A1", count=2)
    scene.announcements.open("before_effect")

    assert first["pid"] != second["pid"]
    scene.wait_empty()
    assert 1 == len(scene.announcements.heard(is_said("after_effect", order_id="A1")))


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_many_bodies_that_end_at_once_are_all_acknowledged(scene, pool):
    """A channel has ten connections: more than that cannot acknowledge at one time."""
    if pool == "gevent":
        pytest.importorskip("gevent")
    scene.announcements.hold("after_effect")
    scene.worker(pool=pool, concurrency=60)
    orders = [f"A{number}" for number in range(60)]
    for order_id in orders:
        scene.send(order_id)
    scene.announcements.wait_for("after_effect", PATIENCE_SECONDS, count=60)

    scene.announcements.open("after_effect")

    scene.wait_empty()
    assert [1] * 60 == [len(scene.starts(order_id)) for order_id in orders]


@pytest.mark.parametrize("seconds", [None, 1.0], ids=["cold", "soft"])
def test_worker_that_is_shut_down_cold_gives_its_messages_back(scene, seconds):
    """celery/celery#3802: nothing is begun elsewhere while it still runs here."""
    scene.announcements.hold("before_effect", order_id="A1")
    settings = {} if seconds is None else {"worker_soft_shutdown_timeout": seconds}
    worker = scene.worker(env={"DELIVERY_SETTINGS": json.dumps(settings)}, extra_args=("--prefetch-multiplier", "3"))
    for order_id in ("A1", "A2"):
        scene.send(order_id)
    scene.announcements.wait_for("task_received", PATIENCE_SECONDS, count=2)
    first = scene.wait_for("before_effect", "A1")
    scene.worker()

    worker.kill_main(signal.SIGQUIT)
    second = scene.wait_for("before_effect", "A1", count=2)
    assert not _lives(first["pid"])
    scene.announcements.open("before_effect")

    scene.wait_for("after_effect", "A2")
    scene.wait_empty()
    assert first["worker"] != second["worker"]


def _lives(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_cuts_at_odd_moments_under_load_lose_nothing_and_leave_nothing(scene, cutter, pool):
    """
    celery/celery#8030, celery/celery#7185: each cut comes while many messages are taken, run and acknowledged.

    An acknowledgement may break on a connection that the closing channel takes from under it, by any error.
    """
    if pool == "gevent":
        pytest.importorskip("gevent")
    chance = random.Random(20_260)
    orders = [f"A{number}" for number in range(120)]
    for order_id in orders:
        scene.send(order_id, priority=chance.choice((0, 3, 6, 9)))
    worker = scene.worker(
        pool=pool, concurrency=4, env=through(cutter, scene), extra_args=("--prefetch-multiplier", "4")
    )

    for count in range(5, len(orders), 5):
        scene.announcements.wait_for("effect", PATIENCE_SECONDS, count=count)
        if count % 2:
            cutter.cut()
        else:
            # The answer to: take, acknowledge, wait for a word.
            cutter.lose_next_answer(chance.choice((b"EVALSHA", b"HDEL", b"BRPOP")))
    cutter.lose_next_answer(b"nothing that is ever asked")

    for order_id in orders:
        scene.wait_for("after_effect", order_id)
    scene.wait_empty()
    assert worker.is_running()
    # A process may have a message in its pipe of which its parent has not heard yet that it began.
    assert pool == "prefork" or [1] * len(orders) == [len(scene.starts(order_id)) for order_id in orders]


@pytest.mark.parametrize("silence", ["frozen", "away"])
def test_server_that_is_silent_for_longer_than_the_timeout_starts_nothing_twice(
    start_worker, announcements, fresh_redis, redis_url, namespace, silence
):
    """celery/celery#8030: twelve seconds are four visibility timeouts; the living renew before anybody sweeps."""
    with fresh_redis.client() as client:
        scene = Scene(start_worker, announcements, client, fresh_redis.url, namespace)
        announcements.hold("before_effect")
        env = {apps.STORE_URL: redis_url}
        workers = [scene.worker(concurrency=2, env=env, extra_args=("--prefetch-multiplier", "2")) for _ in range(2)]
        orders = [f"A{number}" for number in range(6)]
        for order_id in orders:
            scene.send(order_id)
        scene.send("B1", countdown=20)
        announcements.wait_for("before_effect", PATIENCE_SECONDS, count=4)
        announcements.wait_for("task_received", PATIENCE_SECONDS, count=7)

        began = time.monotonic()
        (fresh_redis.freeze if silence == "frozen" else fresh_redis.stop)()
        wait_until(lambda: time.monotonic() - began > 4 * VISIBILITY_SECONDS, 20, "the silence is over")
        (fresh_redis.thaw if silence == "frozen" else fresh_redis.start)()
        wait_until(lambda: client.info("replication"), 10, "the server answers")
        announcements.open("before_effect")

        for order_id in [*orders, "B1"]:
            scene.wait_for("after_effect", order_id)
        scene.wait_empty()
        assert all(worker.is_running() for worker in workers)
        assert [1] * 7 == [len(scene.starts(order_id)) for order_id in [*orders, "B1"]]


def test_remote_control_is_answered_and_leaves_no_keys(scene, namespace):
    """Replies go to queues that are used once; consumers come and go while a question is outstanding."""
    worker = scene.worker(concurrency=2)
    with Celery("person", broker=scene.url, set_as_current=False) as person:
        person.conf.update(apps.queue_settings(namespace), safeguards_namespace=namespace)
        choose_transport(person)
        person.conf.safeguards_transport = "hardened"
        inspect = person.control.inspect([worker.name], timeout=5)
        # A worker is told of as ready before it listens to questions.
        wait_until(inspect.ping, 30, "the worker answers")
        for _ in range(10):
            assert {"ok": "pong"} == inspect.ping()[worker.name]

        person.control.add_consumer("more", destination=[worker.name], reply=True, timeout=5)
        person.control.cancel_consumer(namespace, destination=[worker.name], reply=True, timeout=5)
        wait_until(lambda: ["more"] == names(inspect.active_queues()[worker.name]), 10, "it consumes from the other")
        scene.send("A1")
        scene.send("B1", queue="more")
        scene.wait_for("after_effect", "B1")
        assert [] == scene.starts("A1")

        person.control.rate_limit("delivery.effect", "100/s", destination=[worker.name], reply=True, timeout=5)
        person.control.add_consumer(namespace, destination=[worker.name], reply=True, timeout=5)
        scene.wait_for("after_effect", "A1")
        scene.wait_empty()
        person.control.shutdown(destination=[worker.name])
    assert 0 == worker.wait_exited()

    wait_until(lambda: not words_left(scene, namespace), 10, "the words are gone")
    # Bindings, and when anybody last swept: no more than there are names of queues and exchanges.
    left = sorted(key.removeprefix(f"{namespace}.") for key in scene.redis.scan_iter(f"{namespace}.*"))
    assert [] == [key for key in left if "reply" in key and not key.startswith("_kombu.binding")]


def names(queues):
    """Return the names of the queues that a worker says it consumes from."""
    return [queue["name"] for queue in queues]


def words_left(scene, namespace):
    """Return the lists of words that are there yet."""
    return [key for key in scene.redis.scan_iter(f"{namespace}.*") if key.endswith("wake")]
