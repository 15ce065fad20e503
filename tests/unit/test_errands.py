"""Errands: in order, one at a time, and what follows from them on the loop alone."""

import logging
import queue
import threading

import pytest

from celery_safeguards.worker import errands
from celery_safeguards.worker.errands import Errands, run_errand

PATIENCE_SECONDS = 10


class Loop:
    """A consumer's loop: does what it is given, in the thread that asks it to."""

    def __init__(self):
        self._steps = queue.SimpleQueue()

    def call_soon(self, step):
        self._steps.put(step)

    def turn(self, times=1):
        for _ in range(times):
            self._steps.get(timeout=PATIENCE_SECONDS)()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def running(loop):
    errands = Errands(loop.call_soon)
    errands.start()
    yield errands
    errands.stop(PATIENCE_SECONDS)


def test_errands_are_done_in_order_and_followed_up_on_the_loop(running, loop):
    """A message that is put back before its claim is marked lost waits for a lease."""
    done = []

    def errand(number):
        return number, threading.current_thread()

    def then(answer):
        done.append((*answer, threading.current_thread()))

    for number in range(20):
        running.run(lambda number=number: errand(number), then, pytest.fail)
    loop.turn(20)

    assert list(range(20)) == [number for number, _went, _followed in done]
    assert {threading.main_thread()} == {followed for *_, followed in done}
    assert threading.main_thread() not in {went for _, went, _ in done}


def test_error_that_nobody_has_foreseen_ends_neither_thread_nor_loop(running, loop, caplog):
    """The next letter would wait for ever."""
    ended = []

    running.run(lambda: 1 / 0, pytest.fail, lambda: ended.append("otherwise"))
    running.run(lambda: "answer", lambda _answer: 1 / 0, pytest.fail)
    running.run(lambda: "answer", ended.append, pytest.fail)
    loop.turn(3)

    assert ["otherwise", "answer"] == ended
    assert 2 == len([each for each in caplog.records if each.levelno == logging.ERROR])


def test_stop_does_what_waits_and_what_follows_from_it(loop):
    """A shutdown would leave what a slow store has taken to the visibility timeout."""
    errands, gate, done = Errands(loop.call_soon), threading.Event(), []
    errands.start()
    for number in range(3):
        errands.run(lambda number=number: gate.wait(PATIENCE_SECONDS) and number, done.append, pytest.fail)
    threading.Timer(0.05, gate.set).start()

    errands.stop(PATIENCE_SECONDS)

    assert [0, 1, 2] == done


def test_stop_does_not_wait_for_ever(loop):
    """A store that never answers would keep a worker from ending."""
    errands, gate = Errands(loop.call_soon), threading.Event()
    errands.start()
    errands.run(gate.wait, pytest.fail, pytest.fail)

    errands.stop(0.05)
    gate.set()


def test_errand_for_which_there_is_no_room_is_given_up_on_the_loop(loop, monkeypatch, caplog):
    """A queue without an end would keep every message of a long outage in memory."""
    monkeypatch.setattr(errands, "MOST_WAITING", 1)
    crowded, ended = Errands(loop.call_soon), []

    for number in range(3):
        crowded.run(lambda: "answer", pytest.fail, lambda number=number: ended.append(number))
    crowded.finish()

    assert [1, 2] == ended
    assert caplog.records


def test_without_a_worker_an_errand_is_done_at_once():
    """Eager execution has no loop to come back to."""
    done = []

    run_errand(Loop(), lambda: "answer", done.append, pytest.fail)

    assert ["answer"] == done
