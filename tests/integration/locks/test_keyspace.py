"""
Where locks lie in Redis: under one prefix, for a user that may touch nothing else, in one slot of a cluster.

`lock:` before every name made the prefix that a team had been given useless, and their user was refused
(ionelmc/python-redis-lock#10, ionelmc/python-redis-lock#101).
"""

import threading

import pytest
import redis
from redis.crc import key_slot

from celery_safeguards import EntityLock, Idempotent, Safeguards, SafeTask, fenced_set, hold
from celery_safeguards._redis import Client, Keys
from celery_safeguards.errors import LockBusy
from celery_safeguards.locks.shown import describe
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import make_app, run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis
LOCK = EntityLock("order:{order_id}", lease_seconds=1)
SOON_TIRED = EntityLock("order:{order_id}", lease_seconds=1, busy="wait", wait_seconds=0.1)
WAITS = EntityLock("order:{order_id}", lease_seconds=1, busy="wait", wait_seconds=10)


def declare(app):
    """Return tasks with a lock: one with a key, one without."""
    lock = EntityLock("order:{order_id}")

    @app.task(
        shared=False,
        base=SafeTask,
        name="shop.ship",
        safeguards=Safeguards(idempotent=Idempotent("ship:{order_id}", on_unknown="rerun"), lock=lock),
    )
    def ship(order_id):
        return "shipped"

    @app.task(shared=False, base=SafeTask, name="shop.sync", safeguards=Safeguards(repeatable=True, lock=lock))
    def sync(order_id):
        return "synced"

    return ship, sync


def live(app):
    """Do whatever can be done with a lock: take, wait, hand over, renew, give up, read; in plain code and in tasks."""
    locks = Wiring.of(app).locks
    with hold(app, LOCK, order_id=7) as lock:
        with pytest.raises(LockBusy), hold(app, LOCK, order_id=7):
            pass
        with pytest.raises(LockBusy), hold(app, SOON_TIRED, order_id=7):
            pass
        before = locks.read("order:7")[0].lease_until_us
        wait_until(lambda: locks.read("order:7")[0].lease_until_us > before, 5, "it is renewed")
        next_one = threading.Thread(target=_take_turn, args=(app,))
        next_one.start()
        wait_until(lambda: locks.waiting("order:7"), 5, "somebody waits")
        assert list(locks.names()) == ["order:7"]
        assert describe(locks, lock.name)["state"] == "held"
    next_one.join(10)
    results = []
    for task in declare(app):
        task.delay(order_id=8)
        results.append(run(app))
    assert results == ["shipped", "synced"]


def _take_turn(app):
    with hold(app, WAITS, order_id=7):
        pass


@pytest.fixture
def user(fresh_redis, namespace):
    """A user that may touch the namespace's keys, the broker's prefix, and nothing else; returns its URL."""
    with fresh_redis.client() as admin:
        admin.acl_setuser(
            "shop",
            enabled=True,
            passwords=["+secret"],
            keys=[f"{{sg:{namespace}:*", f"{namespace}.*"],
            channels=[f"{namespace}.*"],
            categories=["+@all", "-@admin", "-@dangerous"],
            commands=["+info"],
        )
    return fresh_redis.url.replace("redis://", "redis://shop:secret@")


def test_user_limited_to_the_prefix_can_do_everything_with_locks(user, namespace):
    """One key outside the prefix, and every worker of the team is refused in the night of the rollout."""
    with make_app(user, user, namespace) as app:
        Wiring.of(app).admission.declare_new()
        live(app)


def test_user_limited_to_the_prefix_is_limited(user, namespace):
    """Else the test above would show nothing."""
    with redis.Redis.from_url(user) as client, pytest.raises(redis.exceptions.NoPermissionError):
        fenced_set(client, "order:7", "shipped", 1)


def test_prefix_of_the_broker_and_that_of_the_locks_do_not_meet(redis_url, redis_client, namespace):
    """
    Two services with brokers of their own prefix share one namespace of locks; the broker's prefix must neither be
    put before the locks' keys, which would part them, nor be needed (celery/kombu#1349).
    """
    with make_app(redis_url, redis_url, namespace) as one, make_app(redis_url, redis_url, namespace) as other:
        other.conf.broker_transport_options = {"global_keyprefix": f"{namespace}-other."}
        Wiring.of(one).admission.declare_new()
        with hold(one, LOCK, order_id=7), pytest.raises(LockBusy), hold(other, LOCK, order_id=7):
            pass
        stored = [key for key in redis_client.scan_iter(match=f"*{namespace}*") if "order:7" in key]

    assert stored
    assert all(key.startswith(f"{{sg:{namespace}:0}}:") for key in stored)


def test_all_keys_of_a_script_lie_in_one_slot(app, redis_client, namespace, monkeypatch):
    """A cluster refuses a script whose keys lie apart, and so does a proxy: what works on one server works nowhere."""
    run_script, asked = Client.run, []

    def noting(self, script, keys, args):
        asked.append([*keys])
        return run_script(self, script, keys, args)

    monkeypatch.setattr(Client, "run", noting)
    with redis_client.monitor() as monitor:
        live(app)
        redis_client.echo("that is all")
        inside = []
        for command in iter(monitor.next_command, None):
            if "that is all" in command["command"]:
                break
            if command["client_type"] == "lua" and namespace in command["command"]:
                inside.append(command["command"].split(" ")[1])

    slots = {key_slot(key.encode()) for keys in asked for key in keys}
    # Also the keys that a script makes itself, such as that which wakes who waits.
    slots |= {key_slot(key.encode()) for key in inside}
    assert any(":wake:v1:" in key for key in inside)
    assert len(asked) > 15
    assert slots == {key_slot(Keys(namespace).meta.encode())}


def test_names_with_braces_do_not_move_a_lock_to_another_slot(namespace):
    """A cluster takes the first pair of braces for the slot: an order named `{8}` must not choose it."""
    keys = Keys(namespace)

    slots = {key_slot(each(name).encode()) for name in ("order:{8}", "}{", "{}") for each in (keys.lock, keys.waiting)}

    assert slots == {key_slot(keys.meta.encode())}
