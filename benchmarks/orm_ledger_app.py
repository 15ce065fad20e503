"""The tasks that `orm_ledger` counts: a body with one INSERT, and more and more around it."""

import os

import redis
from celery import Celery
from django.db import connection

from celery_safeguards import EntityLock, Idempotent, Safeguards, SafeTask

URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:1/0")
CREATE_EFFECTS = "CREATE TABLE effects (number integer)"
PATIENCE_SECONDS = 30
KEYED = Safeguards(idempotent=Idempotent("bench:{number}", on_unknown="rerun"))
ATOMIC = Safeguards(idempotent=Idempotent("bench:{number}", atomic="default"))
VARIANTS = {
    "plain": {},
    "safe_default": {"base": SafeTask},
    "keyed": {"base": SafeTask, "safeguards": KEYED},
    "keyed_locked": {"base": SafeTask, "safeguards": KEYED | Safeguards(lock=EntityLock("bench:{number}"))},
    "atomic": {"base": SafeTask, "safeguards": ATOMIC},
}
app = Celery("orm_ledger", broker=URL, set_as_current=False)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    safeguards_store_url="django://default",
)


def effect(number):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects (number) VALUES (%s)", [number])


def meet(number):
    """Stay in the body, with its connection open, until the benchmark has looked."""
    effect(number)
    with redis.Redis.from_url(URL) as client:
        client.rpush("arrived", number)
        client.blpop("go", PATIENCE_SECONDS)


for _name, _options in VARIANTS.items():
    app.task(effect, name=_name, shared=False, **_options)
    app.task(meet, name=f"meet_{_name}", shared=False, **_options)
