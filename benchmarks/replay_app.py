"""The app of `replay`: its environment says which broker and store, and where its project's database is."""

import os

from celery import Celery

from celery_safeguards import Idempotent, Safeguards, SafeTask

BROKER_URL, STORE_URL = "BENCH_BROKER_URL", "BENCH_STORE_URL"
QUEUE = "bench"


def make_app(broker_url, store_url):
    """Return an app with a plain task and a keyed one."""
    app = Celery("replays", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        safeguards_store_url=store_url,
        safeguards_namespace="bench",
        safeguards_store_timeout_seconds=10.0,
    )

    @app.task(name="plain", shared=False)
    def plain(order_id, amount, currency):
        pass

    operation = Idempotent("payment:{order_id}", on_unknown="rerun")

    @app.task(name="pay", base=SafeTask, safeguards=Safeguards(idempotent=operation), shared=False)
    def pay(order_id, amount, currency):
        pass

    return app


def app_of_environment():
    """Return the app that another process has made."""
    return make_app(os.environ[BROKER_URL], os.environ[STORE_URL])
