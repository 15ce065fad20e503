"""The app of `transport`, `recovery` and `soak`: its environment says which broker, transport and timeout."""

import os
import time
from pathlib import Path

import redis
from celery import Celery

from celery_safeguards import (
    DidNotHappen,
    EntityLock,
    Happened,
    Idempotent,
    Safeguards,
    SafeTask,
    Verify,
    current_safe,
)
from celery_safeguards.signals import delivery_ended

URL, TRANSPORT, VISIBILITY = "BENCH_BROKER_URL", "BENCH_TRANSPORT", "BENCH_VISIBILITY_SECONDS"
EFFECTS = "bench:effects"
DELIVERIES = "BENCH_DELIVERIES_FILE"
"""Where the task id of each delivery that has ended is written, a line each: a server would have to be waited for."""

_HALF_A_BODY_SECONDS = 0.02
_LONGEST_CALL_SECONDS = 6.0
"""A call may be under way for as long as its process is frozen."""


def make_app(url, transport, visibility_seconds=3_600.0):
    """Return the app of one broker."""
    app = Celery("delivery", broker=url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        worker_prefetch_multiplier=4,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": visibility_seconds,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 3,
        },
        worker_hijack_root_logger=False,
        safeguards_transport=transport,
        safeguards_lease_seconds=3.0,
        safeguards_store_timeout_seconds=0.9,
    )

    @app.task(name="nothing", shared=False)
    def nothing(number):
        pass

    @app.task(name="long", base=SafeTask, safeguards=Safeguards(repeatable=True), shared=False)
    def long(seconds):
        with redis.Redis.from_url(url) as client:
            client.rpush("bench:starts", time.time())
        time.sleep(seconds)

    def find_effect(number):
        with redis.Redis.from_url(url) as client:
            return Happened(number) if client.hexists(EFFECTS, number) else DidNotHappen()

    operation = Idempotent("count:{number}", on_unknown=Verify(find_effect, after_seconds=_LONGEST_CALL_SECONDS))

    @app.task(name="count", base=SafeTask, safeguards=Safeguards(idempotent=operation), shared=False)
    def count(number):
        # Around the effect, so that a kill may come before it and after it.
        time.sleep(_HALF_A_BODY_SECONDS)
        current_safe().checkpoint()
        with redis.Redis.from_url(url) as client:
            client.hincrby(EFFECTS, number, 1)
        time.sleep(_HALF_A_BODY_SECONDS)
        return number

    @app.task(
        name="locked",
        base=SafeTask,
        safeguards=Safeguards(repeatable=True, lock=EntityLock("bench")),
        shared=False,
    )
    def locked(_number, seconds):
        time.sleep(seconds)

    @delivery_ended.connect(weak=False)
    def on_delivery_ended(task_id, **_):
        if DELIVERIES in os.environ:
            with Path(os.environ[DELIVERIES]).open("a", encoding="utf-8") as deliveries:
                deliveries.write(f"{task_id}\n")

    return app


if URL in os.environ:
    app = make_app(os.environ[URL], os.environ.get(TRANSPORT, "stock"), float(os.environ.get(VISIBILITY, "3600")))
