"""
Two owners that share one `EntityLock`: the token of an acquisition is in its handle, and in nothing that they share.
"""

import contextlib
import threading

import pytest

from celery_safeguards import EntityLock, hold
from celery_safeguards.errors import LockBusy, LockLost
from tests.support.modules import seen_by

pytestmark = pytest.mark.redis
# Renewed no longer than its lease, so it lapses under its owner, as after a long pause.
LAPSES = EntityLock("order:{order_id}", lease_seconds=1, max_hold_seconds=1, busy="wait", wait_seconds=10)
RENEWED = EntityLock("order:{order_id}", lease_seconds=1)


def test_late_end_in_one_thread_leaves_the_lock_of_the_other(app, state):
    """
    The first block's end would delete the lock that the second thread holds by now, and a third walks in: the token
    was kept on the shared lock object (redis/redis-py#416, NoneGG/aredis#119).
    """
    first_holds, second_holds, first_ended = (threading.Event() for _ in range(3))
    seen = {}

    def first():
        try:
            with hold(app, LAPSES, order_id=7) as lock:
                seen["first"] = lock.token
                first_holds.set()
                assert second_holds.wait(10)
                with pytest.raises(LockLost):
                    lock.checkpoint()
        except LockLost as error:
            seen["told"] = str(error)
        finally:
            first_ended.set()

    def second():
        assert first_holds.wait(10)
        with hold(app, LAPSES, order_id=7) as lock:
            seen["second"] = lock.token
            second_holds.set()
            assert first_ended.wait(10)
            seen["after"] = state("order:7")
            with pytest.raises(LockBusy), hold(app, RENEWED, order_id=7):
                pass
            lock.checkpoint()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)

    assert seen["second"] > seen["first"]
    assert "lost at fence" in seen["told"]
    assert seen["after"].fence == seen["second"]
    assert seen["after"].owner


def test_late_end_in_one_greenlet_leaves_the_lock_of_the_other(app, redis_url, namespace):
    """Under gevent the thread-local token of one greenlet was another's (redis/redis-py#416)."""
    pytest.importorskip("gevent")

    seen = seen_by("tests.integration.locks.greenlets", redis_url, namespace)

    assert seen["second"] > seen["first"]
    assert seen["late_owner_told"] == ["checkpoint", "end"]
    assert seen["still_held_at"] == seen["second"]
    assert seen["third_refused"]
    assert seen["was_renewed"]


def test_same_lock_is_not_reentrant_and_says_who_has_it(app):
    """A second acquisition in the same thread that got through would be let out of a lock it does not have."""
    told = r"order:7: held by plain code on .*, pid \d+"
    with hold(app, RENEWED, order_id=7), pytest.raises(LockBusy, match=told), hold(app, RENEWED, order_id=7):
        pass


def test_scope_and_entity_separate_locks(app):
    """Order 8 must not wait for order 7, nor an order's mail for its payment."""
    mails = EntityLock("order:{order_id}", scope="mail", lease_seconds=1)

    calls = ((RENEWED, 7), (RENEWED, 8), (mails, 7))
    with contextlib.ExitStack() as held:
        names = {held.enter_context(hold(app, lock, order_id=order_id)).name for lock, order_id in calls}

    assert names == {"order:7", "order:8", "mail#order:7"}
