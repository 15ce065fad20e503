"""The tasks that `overhead` compares: a no-op body, with more and more around it."""

import os

import redis
from celery import Celery

from celery_safeguards import EntityLock, Idempotent, Safeguards, SafeTask

URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:1/0")
app = Celery("overhead", broker=URL, set_as_current=False)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)
KEYED = Safeguards(idempotent=Idempotent("bench:{number}", on_unknown="rerun"))
LOCKED = KEYED | Safeguards(lock=EntityLock("bench:{number}"))
_client = None


def client():
    """The bare client of the floor: one for each process, as the safeguards have one."""
    global _client  # noqa: PLW0603
    if _client is None:
        _client = redis.Redis.from_url(URL)
    return _client


@app.task(name="plain")
def plain(number):
    pass


@app.task(name="floor_two_sets")
def floor_two_sets(number):
    client().set(f"bench:a:{number}", 1, ex=60)
    client().set(f"bench:b:{number}", 1, ex=60)


@app.task(name="safe_default", base=SafeTask)
def safe_default(number):
    pass


@app.task(name="keyed", base=SafeTask, safeguards=KEYED)
def keyed(number):
    pass


@app.task(name="keyed_locked", base=SafeTask, safeguards=LOCKED)
def keyed_locked(number):
    pass
