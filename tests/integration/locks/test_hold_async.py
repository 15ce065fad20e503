"""
`hold_async`: the event loop goes on, and a coroutine that is cancelled at any point leaves no lock behind.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_safeguards import EntityLock, hold, hold_async
from celery_safeguards.errors import LockBusy, LockLost
from celery_safeguards.wiring import Wiring
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis
LOCK = EntityLock("order:{order_id}", lease_seconds=1)
WAITS = EntityLock("order:{order_id}", lease_seconds=30, busy="wait", wait_seconds=20)


async def until(predicate, message):
    """Wait in a thread, so that the loop goes on."""
    return await asyncio.to_thread(wait_until, predicate, 10, message)


@pytest.fixture
def waiting(app):
    """Return how many wait for the lock of order 7."""
    return lambda: len(Wiring.of(app).locks.waiting("order:7"))


def test_lock_is_held_renewed_and_released(app, state):
    """A coroutine that works longer than the lease would lose its lock."""

    async def main():
        async with hold_async(app, LOCK, order_id=7) as lock:
            began = state("order:7").lease_until_us
            await until(lambda: state("order:7").lease_until_us > began + 1_000_000, "it is renewed beyond one lease")
            lock.checkpoint()
            with pytest.raises(LockBusy):
                async with hold_async(app, LOCK, order_id=7):
                    pass
            return lock.token

    token = asyncio.run(main())

    assert (state("order:7").fence, state("order:7").owner) == (token, "")


def test_coroutines_take_turns_and_the_loop_goes_on(app):
    """Two coroutines inside at once, or a loop that stands still while one waits."""
    inside, most, turns = 0, 0, 0

    async def one():
        nonlocal inside, most, turns
        async with hold_async(app, WAITS, order_id=7) as lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            lock.checkpoint()
            turns += 1
            inside -= 1

    async def main():
        await asyncio.gather(*(one() for _ in range(5)))

    asyncio.run(main())

    assert (most, turns) == (1, 5)


def test_those_who_wait_do_not_keep_the_owner_from_its_release(app):
    """
    More wait than the loop's executor has threads: all of them are taken, the owner's release waits behind those who
    wait for it, and everyone is refused when the patience is over.
    """
    turns = []

    async def one(number):
        async with hold_async(app, WAITS, order_id=7):
            turns.append(number)
            await asyncio.sleep(0.05)

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(4))), 10)

    asyncio.run(main())

    assert sorted(turns) == [0, 1, 2, 3]


def test_cancelled_while_it_waits_gets_no_lock(app, state, waiting):
    """A request that has timed out takes the lock when its turn comes, and nobody is there to release it."""

    async def main():
        async def wait():
            async with hold_async(app, WAITS, order_id=7):
                pytest.fail("it was cancelled")

        with hold(app, WAITS, order_id=7):
            task = asyncio.create_task(wait())
            await until(waiting, "it waits")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: not state("order:7").owner and not waiting(), "nobody holds it and nobody waits")

    asyncio.run(main())

    with hold(app, LOCK, order_id=7):
        pass


def test_cancelled_with_the_loop_at_its_end_gets_no_lock(app, state, waiting):
    """
    The loop ends with the coroutine that was cancelled: nobody is left to take the answer of the thread, which took
    the lock when its turn came and had it renewed for an hour.
    """

    async def main(holder):
        async def wait():
            async with hold_async(app, WAITS, order_id=7):
                pytest.fail("it was cancelled")

        task = asyncio.create_task(wait())
        await until(waiting, "it waits")
        # The lock is free before the loop is closed, and the thread that waits is not done by then.
        task.cancel()
        asyncio.get_running_loop().call_soon(holder.__exit__, None, None, None)

    holder = hold(app, WAITS, order_id=7)
    holder.__enter__()
    asyncio.run(main(holder))

    wait_until(lambda: not waiting() and not state("order:7").owner, 10, "nobody waits and nobody holds it")
    with hold(app, LOCK, order_id=7):
        pass


def test_cancelled_while_it_holds_releases(app, state):
    """The cancelled request keeps the entity locked for a lease."""
    is_inside = asyncio.Event()

    async def main():
        async def hang():
            async with hold_async(app, WAITS, order_id=7):
                is_inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await asyncio.wait_for(is_inside.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert state("order:7").owner == ""
    assert state("order:7").fence > 0


def test_cancelled_while_it_releases_still_releases(app, state):
    """The second cancellation of a shutdown hits the release itself."""
    is_inside = asyncio.Event()

    async def main():
        async def hang():
            async with hold_async(app, WAITS, order_id=7):
                is_inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await asyncio.wait_for(is_inside.wait(), 10)
        task.cancel()
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not state("order:7").owner, "it is released")

    asyncio.run(main())


def test_coroutine_whose_loop_is_closed_releases(app, state):
    """A loop that is stopped and closed cancels nobody: the lock was renewed for an hour."""
    loop, is_inside = asyncio.new_event_loop(), asyncio.Event()

    async def hang():
        async with hold_async(app, WAITS, order_id=7):
            is_inside.set()
            await asyncio.Event().wait()

    task = loop.create_task(hang())
    task._log_destroy_pending = False
    loop.run_until_complete(is_inside.wait())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    task.get_coro().close()

    assert state("order:7").owner == ""


def test_exception_of_the_block_comes_out(app, state):
    """A release in another thread must not swallow what the block raised."""

    async def main():
        async with hold_async(app, LOCK, order_id=7):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert state("order:7").owner == ""


@pytest.mark.parametrize("raised", [None, ZeroDivisionError])
def test_loss_is_told_and_never_masks(app, raised, caplog):
    """Told where the block has ended well, logged where it has not; also inside an `except` block."""
    lapses = EntityLock("order:{order_id}", lease_seconds=1, max_hold_seconds=1)
    waits = EntityLock("order:{order_id}", lease_seconds=1, busy="wait", wait_seconds=10)

    async def main():
        try:
            {}["none"]
        except KeyError:
            async with hold_async(app, lapses, order_id=7):
                async with hold_async(app, waits, order_id=7):
                    pass
                if raised is not None:
                    raise raised from None

    with pytest.raises(raised or LockLost), caplog.at_level(logging.WARNING, logger="celery_safeguards"):
        asyncio.run(main())
    assert raised is None or "order:7: lost at fence" in caplog.text
