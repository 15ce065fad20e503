"""
A worker that consumes nothing is told by its probe, and one that works is left alone: real workers and a real Redis.

The reports: after a restart of Redis, or a connection that was dropped without a word, a worker lives and consumes
nothing (celery/celery#8030, #8091, #8384, #9054, #10205, #10302, #3932).
"""

import json
import os
import subprocess
import sys
import time

import pytest

from celery_safeguards.clock import SystemClock
from celery_safeguards.health import Health, HealthFiles, judge
from tests.acceptance import health_app
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.waiting import wait_until

INTERVAL_SECONDS = 0.5
MAX_AGE_SECONDS = 4.0
SOON_SECONDS = 20
POOLS = ("prefork", "threads", "solo", "gevent")


class Ward:
    """One worker on a Redis of its own, its probe, and what the probe finds."""

    def __init__(self, server, namespace, directory, announcements, start_worker):
        self.server = server
        self.announcements = announcements
        self._files = HealthFiles(directory / "health")
        self.queue = self._namespace = namespace
        self._start_worker = start_worker
        changes = {
            "safeguards_health_interval_seconds": INTERVAL_SECONDS,
            "safeguards_health_directory": str(self._files.directory),
            "safeguards_namespace": namespace,
            "task_ignore_result": True,
        }
        self.env = {
            apps.BROKER_URL: server.url,
            apps.STORE_URL: server.url,
            apps.NAMESPACE: namespace,
            health_app.SETTINGS: json.dumps(changes),
        }
        self.app = health_app.build(namespace, {"broker_url": server.url, **apps.queue_settings(namespace)})

    def start(self, pool="prefork", concurrency=2):
        """Start a worker that is seen to be healthy."""
        self.worker = self._start_worker(
            "tests.acceptance.health_app:app", self.env, pool=pool, concurrency=concurrency
        )
        self.worker.wait_ready()
        self.wait_until(Health.HEALTHY)
        return self.worker

    def command(self, name):
        """Send a command of remote control, once the worker hears: what is said before that is lost."""
        wait_until(lambda: self.app.control.ping(timeout=0.5), SOON_SECONDS, "the worker hears")
        self.app.control.broadcast(name)

    def found(self):
        """Return how the worker is, or None: it has no file."""
        signs = self._files.read(self._namespace, self.worker.name)
        return judge(signs[0], SystemClock.monotonic_seconds(), MAX_AGE_SECONDS) if signs else None

    def wait_until(self, health, timeout=SOON_SECONDS):
        """Wait until a worker is found so."""

        def is_found():
            found = self.found()
            return found is not None and found.health is health

        wait_until(is_found, timeout, f"the worker is {health}")

    def watch(self, seconds):
        """Probe for so long and return all that was found."""
        ends, found = time.monotonic() + seconds, set()

        def is_over():
            found.add(self.found().health)
            return time.monotonic() > ends

        wait_until(is_over, seconds + 5, "the watch is over")
        return found

    def work(self, *numbers):
        """Publish work and wait until it is done."""
        for number in numbers:
            self.app.tasks["health.work"].delay(number)
        for number in numbers:
            self.announcements.wait_for(is_said("worked", number=number), SOON_SECONDS)

    def probe(self, *words):
        """Run the command as a probe does."""
        command = [sys.executable, "-m", "celery", "-A", "tests.acceptance.health_app:app", "safeguards", "health"]
        return subprocess.run(
            [*command, "--max-age-seconds", str(MAX_AGE_SECONDS), *words],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )


@pytest.fixture
def ward(fresh_redis, namespace, tmp_path, announcements, start_worker):
    """A worker to be probed."""
    ward = Ward(fresh_redis, namespace, tmp_path, announcements, start_worker)
    yield ward
    ward.app.close()


def needs(pool):
    """Skip a pool whose library is not installed."""
    if pool == "gevent":
        pytest.importorskip("gevent")


@pytest.mark.parametrize("pool", POOLS)
def test_worker_is_healthy_while_idle_and_under_a_backlog(ward, pool):
    """A probe that kills a worker because it has much to do, or nothing, is worse than none."""
    needs(pool)
    # Without a hub, acknowledgements that are late open the prefetch every other second only (celery 5.7).
    ward.start(pool, concurrency=100 if pool == "gevent" else 2)

    assert {Health.HEALTHY} == ward.watch(MAX_AGE_SECONDS + 1)
    for number in range(400):
        ward.app.tasks["health.work"].delay(number)
    assert {Health.HEALTHY} == ward.watch(MAX_AGE_SECONDS)
    ward.announcements.wait_for("worked", 3 * SOON_SECONDS, count=400)
    assert {Health.HEALTHY} == ward.watch(1)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_worker_whose_children_are_all_busy_is_healthy(ward, pool):
    """Its prefetch is used up: it does not poll, and need not."""
    needs(pool)
    ward.start(pool)
    names = [f"n{number}" for number in range(4)]
    for name in names:
        ward.announcements.hold(f"stay:{name}")
        ward.app.tasks["health.stay"].delay(name)
    ward.announcements.wait_for("stay:n0", SOON_SECONDS)

    assert {Health.HEALTHY} == ward.watch(MAX_AGE_SECONDS + 1.5)

    for name in names:
        ward.announcements.open(f"stay:{name}")
    ward.work(1)
    assert {Health.HEALTHY} == ward.watch(1)


def test_worker_in_pool_solo_is_busy_while_a_body_runs_in_its_loop(ward):
    """The loop cannot turn: that is how this pool works, and no reason to kill it."""
    ward.start("solo", concurrency=1)
    ward.announcements.hold("stay:long")
    ward.app.tasks["health.stay"].delay("long")
    ward.announcements.wait_for("stay:long", SOON_SECONDS)

    ward.wait_until(Health.BUSY)
    assert {Health.BUSY} == ward.watch(1)
    ward.announcements.open("stay:long")
    ward.wait_until(Health.HEALTHY)
    assert {Health.HEALTHY} == ward.watch(1)


@pytest.mark.parametrize("pool", POOLS)
def test_frozen_worker_is_told(ward, pool):
    """A container that is paused, or a process in a swap storm: its connections stay open."""
    needs(pool)
    worker = ward.start(pool)

    worker.freeze()
    ward.wait_until(Health.SILENT)
    assert worker.is_running()
    worker.thaw()

    ward.wait_until(Health.HEALTHY)
    ward.work(1)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_worker_whose_loop_is_blocked_is_told(ward, pool):
    """A receiver of `task_received`, or a store that hangs, stops all intake; the process and its threads live."""
    worker = ward.start(pool)
    ward.announcements.hold("loop")

    ward.command("block_loop")
    ward.announcements.wait_for("loop", SOON_SECONDS)
    ward.wait_until(Health.BLOCKED)
    assert worker.is_running()
    ward.announcements.open("loop")

    ward.wait_until(Health.HEALTHY)
    ward.work(1)


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_worker_whose_poll_is_lost_is_told_and_a_ping_is_not_enough(ward, pool):
    """It answers remote control, and takes no message: `celery inspect ping` finds it well (celery/celery#8030)."""
    worker = ward.start(pool)

    ward.command("lose_poll")
    ward.wait_until(Health.DEAF)

    assert [{worker.name: {"ok": "pong"}}] == ward.app.control.ping(timeout=2)
    ward.app.tasks["health.work"].delay(1)
    assert {Health.DEAF} == ward.watch(2)
    assert [] == ward.announcements.heard("worked")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_worker_that_consumes_no_queue_by_command_is_healthy(ward, pool):
    """So it is drained before it is replaced; ended by its probe, it would take its bodies with it."""
    worker = ward.start(pool)
    wait_until(lambda: ward.app.control.ping(timeout=0.5), SOON_SECONDS, "the worker hears")
    ward.app.control.cancel_consumer(ward.queue, destination=[worker.name], reply=True, timeout=5)

    assert {Health.HEALTHY} == ward.watch(2 * MAX_AGE_SECONDS)

    ward.app.control.add_consumer(ward.queue, destination=[worker.name], reply=True, timeout=5)
    ward.work(1)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_broker_that_does_not_answer_is_told(ward, pool):
    """A connection that was dropped without a word: without `socket_timeout` nobody notices (celery/celery#3932)."""
    needs(pool)
    worker = ward.start(pool)

    ward.server.freeze()
    ward.wait_until(Health.BROKER_SILENT)
    assert worker.is_running()
    ward.server.thaw()

    ward.wait_until(Health.HEALTHY)
    ward.work(1)


@pytest.mark.parametrize("pool", POOLS)
def test_redis_that_restarts_twice_at_once_leaves_a_worker_that_works_or_is_told(ward, pool):
    """A worker that outlives it and consumes nothing must not look well (celery/celery#8030, celery/celery#8091)."""
    needs(pool)
    worker = ward.start(pool)

    ward.server.restart(kill=True)
    ward.server.restart(kill=True)

    ward.wait_until(Health.HEALTHY, 30)
    ward.work(1, 2, 3)
    ward.wait_until(Health.HEALTHY)
    assert {Health.HEALTHY} == ward.watch(MAX_AGE_SECONDS + 1)
    assert worker.is_running()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_worker_that_ends_its_last_bodies_is_left_alone(ward, pool):
    """A probe that kills a worker in its warm shutdown undoes what that is for."""
    worker = ward.start(pool)
    ward.announcements.hold("stay:last")
    ward.app.tasks["health.stay"].delay("last")
    ward.announcements.wait_for("stay:last", SOON_SECONDS)

    worker.terminate()
    ward.wait_until(Health.STOPPING)
    assert {Health.STOPPING} == ward.watch(MAX_AGE_SECONDS + 1)
    ward.announcements.open("stay:last")

    assert 0 == worker.wait_exited()
    assert ward.found() is None


def test_probe_ends_with_an_exit_status_and_one_document(ward):
    """It is what Kubernetes sees."""
    worker = ward.start()

    well = ward.probe("--json")
    named = ward.probe("--node", worker.name)
    strange = ward.probe("--node", "nobody@nowhere")
    worker.freeze()
    ward.wait_until(Health.SILENT)
    ill = ward.probe("--json")
    worker.thaw()

    assert (0, 0, 1, 1) == (well.returncode, named.returncode, strange.returncode, ill.returncode), well.stderr
    (told,) = json.loads(well.stdout)["workers"]
    assert (worker.name, worker.pid, "prefork", "healthy") == tuple(
        told[name] for name in ("node", "pid", "pool", "health")
    )
    assert f"{worker.name}: healthy: " in named.stdout
    assert "no worker nobody@nowhere of namespace" in strange.stderr
    assert {"healthy": False}.items() <= json.loads(ill.stdout).items()
    assert "silent" == json.loads(ill.stdout)["workers"][0]["health"]


def test_worker_that_ended_in_order_is_no_longer_spoken_of(ward):
    """A deploy leaves nothing that a probe could complain of."""
    worker = ward.start()

    worker.stop()

    assert ward.found() is None
    assert 1 == ward.probe().returncode
