"""
Workers of one app within one process, one after the other, as in the tests of a project: whether each renews what it
holds. Writes what it saw as JSON.
"""

import json
import os
import sys
import threading

from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_safeguards import Idempotent, Safeguards, SafeTask
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.keeper import keeper_of
from celery_safeguards.worker.renewing import renewing_of
from tests.support import apps
from tests.support.waiting import wait_until

STARTED, MAY_END = threading.Event(), threading.Event()


def body(self, number):
    """Run until the test has seen enough."""
    STARTED.set()
    MAY_END.wait(20)


def make_app(url, namespace):
    """Return an app whose leases are renewed every other second."""
    os.environ |= {apps.BROKER_URL: url, apps.NAMESPACE: namespace, apps.TRANSPORT: "hardened", apps.VISIBILITY: "3"}
    app = Celery("embedded")
    app.conf.update(
        apps.settings_from_environment(
            safeguards_store_url=url,
            safeguards_namespace=namespace,
            safeguards_lease_seconds=6,
            safeguards_store_timeout_seconds=1,
            task_ignore_result=True,
            task_time_limit=20,
        )
    )
    return app


def main(redis_url, namespace):
    """Run two workers, and note of each what it has renewed."""
    app, seen, keepers = make_app(redis_url, namespace), [], set()
    policy = Safeguards(idempotent=Idempotent("n:{number}", on_unknown="rerun"))
    task = app.task(body, name="embedded.task", bind=True, base=SafeTask, safeguards=policy)
    wiring = Wiring.of(app)
    wiring.admission.declare_new()
    with app.connection_for_read() as connection:
        redis = connection.default_channel.client
        held = lambda: redis.zrange("unacked_index", 0, -1, withscores=True)  # noqa: E731
        for number in range(2):
            STARTED.clear()
            MAY_END.clear()
            with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
                task.delay(number)
                assert STARTED.wait(20)
                before, key = held(), task.plan.record_key(f"n:{number}")
                claimed = wiring.admission.read(key)
                wait_until(lambda before=before: held() > before, 10, "the message is renewed")
                wait_until(
                    lambda key=key, claimed=claimed: wiring.admission.read(key).rev > claimed.rev, 10, "the claim"
                )
                seen.append(held()[0][0] == before[0][0])
                keepers |= {keeper_of(app), renewing_of(app)}
                MAY_END.set()
                wait_until(lambda: not held(), 10, "the message is acknowledged")
    json.dump({"renewed": seen, "keepers": len(keepers)}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
