"""
Waiting for a lock: woken by its release, in turn, and quiet meanwhile. What is sent is counted by the server's MONITOR.
"""

import contextlib
import threading
import time

import pytest

from celery_safeguards import EntityLock, hold
from celery_safeguards.errors import LockBusy
from celery_safeguards.wiring import Wiring
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis
LOCK = EntityLock("order:{order_id}")
WAITS = EntityLock("order:{order_id}", busy="wait", wait_seconds=20)


class Watched:
    """What the server is asked about one namespace from now on, without what scripts do inside."""

    def __init__(self, client, namespace):
        self._client, self._namespace = client, namespace
        self.sent = []

    def __enter__(self):
        self._exit = contextlib.ExitStack()
        self._monitor = self._exit.enter_context(self._client.monitor())
        return self

    def until(self, predicate):
        """Read on until a command that fulfils the predicate; returns it."""
        while True:
            command = self._monitor.next_command()
            if self._namespace in command["command"] and command["client_type"] != "lua":
                self.sent.append(command)
                if predicate(command["command"]):
                    return command

    def __exit__(self, *exc_info):
        self._exit.close()


@pytest.fixture
def watched(redis_client, namespace):
    """Watch the server."""
    return Watched(redis_client, namespace)


@pytest.fixture
def waiter(app):
    """Start threads that wait for the lock of order 7; returns when and in which order they got it."""
    got, threads, let_go = [], [], threading.Event()

    def start(number):
        def work():
            with hold(app, WAITS, order_id=7):
                got.append((number, time.monotonic()))
                if number == "keeps":
                    let_go.wait(10)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield start, got, threads
    let_go.set()
    for each in threads:
        each.join(20)


def waits(app):
    """Return how many wait for the lock of order 7."""
    return len(Wiring.of(app).locks.waiting("order:7"))


def test_who_waits_is_woken_by_the_release(app, waiter):
    """Found by the next of many questions, a free lock stands idle for half their pause, for each who waits."""
    start, got, threads = waiter
    late_seconds = []
    for number in range(3):
        with hold(app, LOCK, order_id=7):
            start(number)
            # The question that blocks has just begun: by asking again alone, the waiter would be a second late.
            wait_until(lambda: waits(app), 10, "it waits")
        released_at = time.monotonic()
        threads[number].join(10)
        late_seconds.append(got[number][1] - released_at)

    # A busy machine may be late, but not each time.
    assert min(late_seconds) < 0.3


def test_who_waits_asks_twice_a_second_at_most(app, waiter, watched):
    """A hundred who poll for one lock are the load that makes its owner slow."""
    start, _, threads = waiter
    with watched:
        with hold(app, LOCK, order_id=7):
            start("only")
            for _ in range(3):
                last = watched.until(lambda command: command.startswith("BLPOP"))
        first = next(each for each in watched.sent if each["command"].startswith("BLPOP"))
        seconds = last["time"] - first["time"]
        mine = [each for each in watched.sent if each["client_port"] == first["client_port"]]
        threads[0].join(10)

    # Each round is one question and one command that blocks; the first question comes before the first of them.
    assert seconds > 1.5
    assert len(mine) <= 2 * (seconds + 1) + 1


def test_lock_goes_to_who_has_waited_longest(app, waiter):
    """Who came first and loses every race against newer ones waits for ever."""
    start, got, threads = waiter
    with hold(app, LOCK, order_id=7):
        for number in range(4):
            start(number)
            wait_until(lambda number=number: waits(app) == number + 1, 10, f"{number + 1} wait")
    for each in threads:
        each.join(20)

    assert [number for number, _ in got] == [0, 1, 2, 3]


def test_nobody_overtakes_who_is_woken(app, waiter, state):
    """The one who asks in the moment between release and waking takes the lock from who waited for it."""
    start, got, _ = waiter
    with hold(app, LOCK, order_id=7) as lock:
        start("keeps")
        wait_until(lambda: waits(app), 10, "it waits")
    with pytest.raises(LockBusy), hold(app, LOCK, order_id=7):
        pass

    wait_until(lambda: got, 10, "it has the lock")
    assert state("order:7").fence > lock.token


def test_patience_that_is_over_leaves_the_line(app):
    """A place that is kept for somebody who has gone delays the next by seconds."""
    impatient = EntityLock("order:{order_id}", busy="wait", wait_seconds=0.2)
    with hold(app, LOCK, order_id=7):
        began = time.monotonic()
        with pytest.raises(LockBusy, match="held by plain code"), hold(app, impatient, order_id=7):
            pass
        assert time.monotonic() - began >= 0.2
        assert waits(app) == 0


def test_owner_that_lapsed_is_waited_for_until_its_lease_is_over(app):
    """Nobody releases the lock of an owner that died, so nobody wakes who waits: the lease's end does."""
    lapses = EntityLock("order:{order_id}", lease_seconds=1, max_hold_seconds=1)
    holder = hold(app, lapses, order_id=7)
    token = holder.__enter__().token

    with hold(app, WAITS, order_id=7) as lock:
        assert lock.token - token < 3_000_000
