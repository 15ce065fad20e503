"""
Two greenlets and one `EntityLock`, in a process that gevent has patched; writes what they saw as JSON.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402 - the patch comes first
import sys  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from celery_safeguards import EntityLock, hold  # noqa: E402
from celery_safeguards.errors import LockBusy, LockLost  # noqa: E402
from celery_safeguards.wiring import Wiring  # noqa: E402
from tests.integration.replay.shop import make_app  # noqa: E402

LAPSES = EntityLock("order:{order_id}", lease_seconds=1, max_hold_seconds=1, busy="wait", wait_seconds=10)
RENEWED = EntityLock("order:{order_id}", lease_seconds=1, busy="wait", wait_seconds=10)


def main(redis_url, namespace):
    app = make_app(redis_url, redis_url, namespace)
    seen = {"late_owner_told": [], "third_refused": False, "was_renewed": False}
    first_holds, second_holds, first_ended = Event(), Event(), Event()

    def first():
        try:
            with hold(app, LAPSES, order_id=7) as lock:
                seen["first"] = lock.token
                first_holds.set()
                assert second_holds.wait(10)
                try:
                    lock.checkpoint()
                except LockLost:
                    seen["late_owner_told"].append("checkpoint")
        except LockLost:
            seen["late_owner_told"].append("end")
        finally:
            first_ended.set()

    def second():
        assert first_holds.wait(10)
        with hold(app, RENEWED, order_id=7) as lock:
            seen["second"] = lock.token
            second_holds.set()
            assert first_ended.wait(10)
            # Longer than the lease: the greenlet that renews must have had its turn.
            gevent.sleep(1.5)
            seen["still_held_at"] = Wiring.of(app).locks.read("order:7")[0].fence
            lock.checkpoint()
            seen["was_renewed"] = True
            try:
                with hold(app, EntityLock("order:{order_id}"), order_id=7):
                    pass
            except LockBusy:
                seen["third_refused"] = True

    gevent.joinall([gevent.spawn(first), gevent.spawn(second)], timeout=30, raise_error=True)
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
