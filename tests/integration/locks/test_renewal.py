"""
Renewal by the thread of a process: it begins and ends with the blocks, and what it cannot confirm is told at once.
"""

import threading

import pytest

from celery_safeguards import EntityLock, hold
from celery_safeguards.clock import SystemClock
from celery_safeguards.errors import LockBusy, LockLost
from celery_safeguards.locks.renewer import Renewer, renewer_of
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import make_app
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis
LEASE_SECONDS = 3
LOCK = EntityLock("order:{order_id}", lease_seconds=LEASE_SECONDS)
WAITS = EntityLock("order:{order_id}", lease_seconds=LEASE_SECONDS, busy="wait", wait_seconds=20)
SHORT = EntityLock("order:{order_id}", lease_seconds=1)


def is_refused(lock):
    """Whether the checkpoint of a lock raises."""
    try:
        lock.checkpoint()
    except LockLost:
        return True
    return False


# --- while the block runs


def test_block_longer_than_its_lease_keeps_its_lock(app, state):
    """Work that takes longer than somebody once guessed would run beside its successor."""
    with hold(app, SHORT, order_id=7) as lock:
        began = state("order:7").lease_until_us
        wait_until(lambda: state("order:7").lease_until_us > began + 1_500_000, 10, "it is renewed beyond its lease")
        with pytest.raises(LockBusy), hold(app, SHORT, order_id=7):
            pass
        lock.checkpoint()


def test_lock_that_was_taken_away_is_told_at_the_next_checkpoint(app):
    """Told only by the release, the loss comes after everything was written (ionelmc/python-redis-lock#85)."""

    def work():
        with hold(app, SHORT, order_id=7) as lock:
            # As an operator does who takes it for dead.
            Wiring.of(app).locks.release(lock._held)
            with hold(app, SHORT, order_id=7):
                wait_until(lambda: is_refused(lock), 5, "the checkpoint refuses")

    with pytest.raises(LockLost):
        work()


# --- the store is away


def test_store_away_longer_than_the_lease_tells_the_owner_and_lets_nobody_in_for_one_lease(fresh_redis, namespace):
    """
    A renewal that came late lost the lock in the middle of the work, and said so at the release; whoever asked first
    after the outage got it (ionelmc/python-redis-lock#85).
    """
    settings = {"safeguards_lease_seconds": LEASE_SECONDS, "safeguards_store_timeout_seconds": 0.5}
    with make_app(fresh_redis.url, fresh_redis.url, namespace, **settings) as app:
        wiring = Wiring.of(app)
        wiring.admission.declare_new()
        with hold(app, LOCK, order_id=7) as lock:
            fresh_redis.freeze()
            wait_until(lambda: is_refused(lock), LEASE_SECONDS + 2, "the checkpoint refuses")
            fresh_redis.thaw()
            # Whoever is first after the outage, the owner's renewal or this one, notices that the store was away.
            with pytest.raises(LockBusy), hold(app, LOCK, order_id=7):
                pass
            wait_until(lambda: not is_refused(lock), LEASE_SECONDS, "the owner renews in the lease that it is given")
            with pytest.raises(LockBusy), hold(app, LOCK, order_id=7):
                pass


def test_owner_that_ended_in_the_outage_is_waited_for_one_lease_after(fresh_redis, namespace):
    """Nobody can tell the dead from those who could not renew: for one lease all of them may come back."""
    settings = {"safeguards_lease_seconds": LEASE_SECONDS, "safeguards_store_timeout_seconds": 0.5}
    with make_app(fresh_redis.url, fresh_redis.url, namespace, **settings) as app:
        wiring = Wiring.of(app)
        wiring.admission.declare_new()
        with hold(app, LOCK, order_id=7) as lock:
            fresh_redis.freeze()
            wait_until(lambda: is_refused(lock), LEASE_SECONDS + 2, "the checkpoint refuses")
        fresh_redis.thaw()
        back_us = wiring.locks.read("order:7")[1]
        with hold(app, WAITS, order_id=7) as next_one:
            # A token is the store's time in microseconds.
            assert next_one.token - back_us > (LEASE_SECONDS - 0.5) * 1_000_000


# --- with the block, and no longer


def test_renewal_ends_with_the_block(app, redis_client):
    """A thread that goes on renewing keeps the lock for ever (ionelmc/python-redis-lock#114)."""
    clock = SystemClock()
    renewer = renewer_of(Wiring.of(app).locks, clock, 30.0)
    with hold(app, SHORT, order_id=7):
        thread = renewer._thread
        assert thread.is_alive()

    with redis_client.monitor() as monitor:
        with hold(app, SHORT, order_id=8):
            pass
        rests_after = clock.monotonic_seconds() + 2
        wait_until(lambda: not thread.is_alive() or renewer._sleeps_until > rests_after, 5, "it rests")
        redis_client.echo("end of the blocks")
        sent = []
        for command in iter(monitor.next_command, None):
            if "end of the blocks" in command["command"]:
                break
            sent.append(command)

    assert renewer._kept == {}
    last = [each for each in sent if "order:8" in each["command"] and each["client_type"] != "lua"][-1]
    # Its release has two keys, a renewal of one lock: the meta hash and the lock.
    assert "waiting:v1:order:8" in last["command"]


class HeldBack(dict):
    """A dictionary that holds the renewing thread back, once, right after it has looked: at its length, or into it."""

    def __init__(self):
        super().__init__()
        self.hold_back_after = None
        self.has_looked, self.resume = threading.Event(), threading.Event()

    def __len__(self):
        return self._looked("length", super().__len__())

    def values(self):
        return self._looked("values", list(super().values()))

    def _looked(self, at, found):
        if at == self.hold_back_after and not found and threading.current_thread().name == "celery-safeguards-renewer":
            self.hold_back_after = None
            self.has_looked.set()
            # Whoever takes a lock meanwhile may have to wait for this thread: then it goes on by itself.
            self.resume.wait(0.5)
        return found


@pytest.mark.parametrize("looked_at", ["length", "values"])
def test_lock_that_is_taken_while_the_thread_looks_is_renewed(app, looked_at):
    """
    t0 the thread finds nothing to renew; t1 a lock is taken, and its owner sees a thread that lives and is awake; t2
    the thread ends, or sleeps for as long as there is nothing: nobody renewed that lock.
    """
    wiring = Wiring.of(app)
    renewer = Renewer(wiring.locks, wiring.clock)
    renewer._kept = kept = HeldBack()

    def keep(name):
        ask = LockAsk(name=name, owner=name, lease_seconds=1)
        asked_at = wiring.clock.monotonic_seconds()
        renewer.keep(wiring.locks.acquire(ask).held, asked_at, 60)

    keep("one")
    wait_until(lambda: renewer._sleeps_until > wiring.clock.monotonic_seconds(), 5, "it sleeps")
    kept.hold_back_after = looked_at
    renewer.forget("one")
    renewer._wake.set()
    assert kept.has_looked.wait(5)
    keep("two")
    kept.resume.set()

    began = wiring.locks.read("two")[0].lease_until_us
    wait_until(lambda: wiring.locks.read("two")[0].lease_until_us > began, 5, "it is renewed")
    renewer.check("two")
    renewer.forget("two")


def test_first_two_locks_of_a_process_have_one_renewer(app, monkeypatch):
    """Two threads that ask first made one each, and the checkpoint of one asked the other's: "it was released"."""
    both, begin = threading.Barrier(2, timeout=5), Renewer.__init__

    def slow(self, *args):
        begin(self, *args)
        both.wait()

    monkeypatch.setattr(Renewer, "__init__", slow)
    refused = []

    def work(order_id):
        with hold(app, LOCK, order_id=order_id) as lock:
            both.wait()
            refused.append(is_refused(lock))

    threads = [threading.Thread(target=work, args=(number,)) for number in (7, 8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(10)

    assert refused == [False, False]
