"""
The end of a `hold` block, however it ends: what is released, what is left alone, and which exception comes out.
"""

import logging
import os
import signal
import traceback

import pytest
import redis
from celery import current_app

from celery_safeguards import EntityLock, hold
from celery_safeguards._redis import Keys
from celery_safeguards.errors import KeyRefused, LockBusy, LockLost, StoreUnavailable
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import make_app
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis
LOCK = EntityLock("order:{order_id}", lease_seconds=1)


@pytest.fixture
def take_away(redis_client, namespace, app):
    """Let a lock lapse and give it to somebody else, as after a pause of its owner; returns the new owner's fence."""

    def take(name):
        key = Keys(namespace).lock(name)
        head, _, holder = redis_client.get(key).partition("\n")
        format_, owner, fence, _lease, *rest = head.split(" ")
        redis_client.set(key, "\n".join([" ".join([format_, owner, fence, "1", *rest]), holder]))
        with hold(app, EntityLock(name)) as lock:
            return lock.token

    return take


def forked(work, *args):
    """Start work in a child that ends with it, whatever it raises; returns the child's pid."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def ended(pid):
    """Wait for a child and return its exit code; one that hangs is killed."""
    try:
        return os.waitstatus_to_exitcode(wait_until(lambda: _reaped(pid), 20, f"child {pid} has ended")[0])
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _reaped(pid):
    """Return a child's status in a tuple of one, or nothing while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return (status,) if found else ()


# --- released


def test_block_releases_its_lock_also_when_it_raises(app, state):
    """An error in the block would keep the entity from everyone for a lease."""
    with pytest.raises(ZeroDivisionError), hold(app, LOCK, order_id=7):
        raise ZeroDivisionError

    assert state("order:7").owner == ""


def test_busy_lock_is_refused_at_once_unless_it_may_wait(app):
    """A web request must not hang because somebody forgot a deadline."""
    with hold(app, LOCK, order_id=7):
        for busy in ("defer", "skip"):
            with pytest.raises(LockBusy), hold(app, EntityLock("order:{order_id}", busy=busy), order_id=7):
                pass


def test_lock_of_the_current_app_is_that_of_the_app(app):
    """Reusable code knows no app but Celery's proxy, which nothing can refer to weakly."""
    app.set_current()

    with hold(current_app, LOCK, order_id=7), pytest.raises(LockBusy), hold(app, LOCK, order_id=7):
        pass


def test_missing_field_is_refused_before_anything_is_held(app, state):
    """A lock named `order:None` would serialise all orders that have no id."""
    with pytest.raises(KeyRefused), hold(app, LOCK, order_id=None):
        pass
    with pytest.raises(KeyRefused), hold(app, LOCK):
        pass

    assert list(Wiring.of(app).locks.names()) == []


def test_acquisition_that_is_interrupted_leaves_nothing_behind(app, state, monkeypatch):
    """Ctrl-C between the question and its answer: the lock is given, and nobody knows that he has it."""
    read_response = redis.Connection.read_response
    with hold(app, LOCK, order_id=1):
        pass

    def interrupted(self, *args, **kwargs):
        monkeypatch.setattr(redis.Connection, "read_response", read_response)
        read_response(self, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(redis.Connection, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt), hold(app, LOCK, order_id=7):
        pass

    assert state("order:7").fence > 0
    assert state("order:7").owner == ""


def test_lost_answer_is_asked_for_again_by_the_same_owner(redis_url, namespace, app, state):
    """The connection breaks after the lock was given: a second acquisition would wait for the first, its own."""
    with Cutter(redis_url) as cutter, make_app(redis_url, cutter.url, namespace) as through:
        with hold(through, LOCK, order_id=1):
            pass
        cutter.lose_next_answer(b"EVALSHA")
        with hold(through, LOCK, order_id=7) as lock:
            lock.checkpoint()
            assert cutter.lost_answers == 1
            assert state("order:7").fence == lock.token


# --- not released


def test_failed_release_leaves_the_handle_valid(redis_url, namespace, app, state):
    """
    A release that failed wiped the token: nobody could release the lock any more, and people deleted its key by hand
    (redis/redis-py#416). Here the handle keeps it, and a second try frees the lock.
    """
    slow = EntityLock("order:{order_id}", lease_seconds=30)
    with Cutter(redis_url) as cutter, make_app(redis_url, cutter.url, namespace) as through:
        with hold(through, slow, order_id=7) as lock:
            cutter.refuse()
        assert state("order:7").fence == lock.token
        assert state("order:7").owner

        cutter.allow()
        lock._release()

    assert state("order:7").owner == ""


def test_store_that_is_down_is_told_at_the_begin_and_not_at_the_end(redis_url, namespace):
    """Refused at the begin: the block does not run unprotected. At the end its work is done, and its lock lapses."""
    with Cutter(redis_url) as cutter, make_app(redis_url, cutter.url, namespace) as through:
        Wiring.of(through).admission.declare_new()
        with hold(through, LOCK, order_id=7):
            cutter.refuse()
        with pytest.raises(StoreUnavailable), hold(through, LOCK, order_id=8):
            pytest.fail("it runs without a lock")


def test_fork_inside_the_block_takes_the_lock_along_with_nobody(app, state):
    """The child's end of the block would release the parent's lock while the parent works."""

    def child(lock):
        with pytest.raises(LockLost, match="forked"):
            lock.checkpoint()
        lock._release()

    with hold(app, LOCK, order_id=7) as lock:
        assert ended(forked(child, lock)) == 0
        assert state("order:7").fence == lock.token
        assert state("order:7").owner
        lock.checkpoint()


def test_forked_child_holds_locks_of_its_own(app, state):
    """The thread that renews does not survive a fork: in the child a lock would lapse under its owner."""

    def child():
        with hold(app, LOCK, order_id=8) as lock:
            before = state("order:8").lease_until_us
            wait_until(lambda: state("order:8").lease_until_us > before, 5, "the child's lock is renewed")
            lock.checkpoint()

    with hold(app, LOCK, order_id=7):
        assert ended(forked(child)) == 0


def test_killed_process_keeps_its_lock_for_one_lease(app, state):
    """Nothing is held without a lease: after a SIGKILL the entity would be locked for ever."""

    def child():
        with hold(app, LOCK, order_id=7):
            signal.pause()

    pid = forked(child)
    try:
        wait_until(lambda: state("order:7").owner, 10, "the child holds it")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL

    assert state("order:7").owner
    with hold(app, EntityLock("order:{order_id}", busy="wait", wait_seconds=5), order_id=7) as lock:
        lock.checkpoint()


# --- lost


def test_loss_is_told_at_the_end_of_a_block_that_has_not_raised(app, take_away):
    """Two have been inside: whoever was late must know that what he wrote may be wrong."""
    with pytest.raises(LockLost, match="order:7: lost at fence"), hold(app, LOCK, order_id=7):
        take_away("order:7")


def test_loss_is_told_also_inside_an_except_block(app, take_away):
    """The exception that is being handled around the block is not the block's, and must not swallow its loss."""
    try:
        {}["none"]
    except KeyError:
        with pytest.raises(LockLost), hold(app, LOCK, order_id=7):
            take_away("order:7")


def test_loss_never_masks_the_exception_of_the_block(app, take_away, caplog):
    """Masked by `LockLost` at the end, the error that explains everything is gone."""

    def work():
        with hold(app, LOCK, order_id=7):
            take_away("order:7")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), caplog.at_level(logging.WARNING, logger="celery_safeguards"):
        work()

    assert "order:7: lost at fence" in caplog.text


def test_max_hold_seconds_ends_the_renewal(app, state):
    """A block that hangs would be renewed for ever (ionelmc/python-redis-lock#114)."""
    lock = EntityLock("order:{order_id}", lease_seconds=1, max_hold_seconds=2)
    waiting = EntityLock("order:{order_id}", lease_seconds=1, busy="wait", wait_seconds=10)

    def hang():
        with hold(app, lock, order_id=7) as late, hold(app, waiting, order_id=7) as next_one:
            with pytest.raises(LockLost):
                late.checkpoint()
            # Not before its time: two seconds of renewal.
            assert next_one.token - late.token > 2_000_000

    with pytest.raises(LockLost, match="lost at fence"):
        hang()
