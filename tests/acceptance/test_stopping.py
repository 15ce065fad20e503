"""
A worker that is told to stop in the midst of a job's writing: real workers and a real Redis.

A deploy sends its signal at any moment. Celery's handler then talks to the child in the middle of a sentence.
"""

import json

import pytest

from tests.acceptance import stopping_app
from tests.support import apps
from tests.support.waiting import wait_until

SOON_SECONDS = 20
HANGS_SECONDS = 3
MORE_THAN_A_PIPE_HOLDS = "x" * 1_000_000


class Deploy:
    """A worker that a signal finds in the midst of a job, and the one that comes after it."""

    def __init__(self, redis_url, redis_client, namespace, announcements, start_worker):
        self._start_worker, self._announcements = start_worker, announcements
        self._redis, self._namespace = redis_client, namespace
        self._env = {apps.BROKER_URL: redis_url, apps.STORE_URL: redis_url, apps.NAMESPACE: namespace}
        self.app = stopping_app.build(namespace, {"broker_url": redis_url}, is_guarded=False)

    def start(self, *when, is_guarded=True):
        """Start a worker."""
        env = {**self._env, stopping_app.IS_GUARDED: "yes" if is_guarded else "no"}
        if when:
            env[stopping_app.WHEN] = json.dumps(when)
        return self._start_worker("tests.acceptance.stopping_app:app", env, concurrency=1).wait_ready()

    def interrupt(self, where, name="SIGQUIT", *, is_guarded=True):
        """Start a worker, and have the signal arrive while it writes a job."""
        worker = self.start(where, name, is_guarded=is_guarded)
        self.app.tasks["stopping.work"].delay(1, MORE_THAN_A_PIPE_HOLDS if where == "pipe" else "")
        worker.wait_for("interrupted", SOON_SECONDS)
        return worker

    def count_done(self):
        """Return how often the job was done."""
        return len(self._announcements.heard("effect"))

    def count_left(self):
        """Return how many messages the broker holds."""
        prefix = f"{self._namespace}."
        return self._redis.llen(f"{prefix}{self._namespace}") + self._redis.zcard(f"{prefix}unacked_index")


@pytest.fixture
def deploy(redis_url, redis_client, namespace, announcements, start_worker):
    """A deploy."""
    deploy = Deploy(redis_url, redis_client, namespace, announcements, start_worker)
    yield deploy
    deploy.app.close()


@pytest.mark.parametrize("where", ["head", "pipe"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_warm_shutdown_in_the_midst_of_a_job_does_it_once(deploy, where, name):
    worker = deploy.interrupt(where, name)

    worker.wait_exited(SOON_SECONDS)

    assert (1, 0) == (deploy.count_done(), deploy.count_left())


@pytest.mark.parametrize("where", ["head", "pipe"])
def test_cold_shutdown_in_the_midst_of_a_job_leaves_it_to_another_worker(deploy, where):
    worker = deploy.interrupt(where, "SIGQUIT")

    worker.wait_exited(SOON_SECONDS)
    deploy.start()

    wait_until(lambda: deploy.count_done() and not deploy.count_left(), SOON_SECONDS, "the job is done")


@pytest.mark.parametrize(("where", "name"), [("head", "SIGQUIT"), ("pipe", "SIGQUIT"), ("head", "SIGTERM")])
def test_worker_that_is_stopped_in_the_midst_of_a_job_hangs_without_safeguards(deploy, where, name):
    """The control: the child waits for the rest of a job, or for its result to be heard; the worker waits for it."""
    worker = deploy.interrupt(where, name, is_guarded=False)

    with pytest.raises(AssertionError):
        worker.wait_exited(HANGS_SECONDS)
    worker.kill_all()
