"""
A signal that finds a worker's loop in the midst of something, one that finds it stuck, and those that find no loop.
"""

import os
import signal

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state
from kombu.asynchronous.hub import Hub

from celery_safeguards.worker import stopping
from celery_safeguards.worker.stopping import BetweenTurns

NUMBER = signal.SIGQUIT


class Stage:
    """A loop, and a handler of Celery's that notes what it is called with."""

    def __init__(self):
        self.handled, self.writes = [], []
        self.handler.__func__.__module__ = "celery.apps.worker"
        signal.signal(NUMBER, self.handler)
        self.hub = Hub()
        self.turns = BetweenTurns(self.hub, lambda: bool(self.writes and self.writes.pop()))
        self._loop = self.hub.create_loop()

    def handler(self, number, _frame):
        self.handled.append(number)
        self.handle()

    def handle(self):
        """What Celery would do besides."""

    def turn(self):
        next(self._loop)

    def signal(self):
        signal.raise_signal(NUMBER)


@pytest.fixture
def stage():
    """A loop that runs."""
    before = signal.getsignal(NUMBER)
    stage = Stage()
    stage.turns.begin()
    yield stage
    stage.turns.close()
    stage.hub.close()
    signal.signal(NUMBER, before)


def test_signal_is_handled_when_the_loop_comes_round(stage):
    stage.signal()
    before = list(stage.handled)
    stage.turn()

    assert ([], [NUMBER]) == (before, stage.handled)


def test_signal_waits_until_no_job_is_half_written(stage):
    stage.writes = [True] * 3
    stage.signal()
    stage.turn()
    before = list(stage.handled)
    while stage.writes:
        stage.turn()
    while not stage.handled:
        stage.turn()

    assert [] == before


def test_second_signal_is_handled_at_once_and_the_first_with_it(stage):
    """The loop is stuck, or whoever stops the worker has waited long enough."""
    stage.signal()
    stage.signal()
    at_once = list(stage.handled)
    stage.turn()

    assert [NUMBER] * 2 == at_once == stage.handled


def test_second_signal_at_once_is_for_the_handler_that_the_first_has_installed(stage, monkeypatch):
    """Ctrl+C twice is a cold shutdown, however fast it comes."""
    cold = []

    def second(number, _frame):
        cold.append(number)

    second.__module__ = "celery.apps.worker"
    monkeypatch.setattr(stage, "handle", lambda: signal.signal(NUMBER, second))
    stage.signal()
    stage.signal()

    assert ([NUMBER], [NUMBER]) == (stage.handled, cold)


def test_second_signal_does_nothing_where_the_first_has_had_it_ignored(stage, monkeypatch):
    """As a project's own receiver of the shutdown may: what stands there then is no function."""
    monkeypatch.setattr(stage, "handle", lambda: signal.signal(NUMBER, signal.SIG_IGN))
    stage.signal()
    stage.signal()

    assert [NUMBER] == stage.handled


def test_signals_go_on_being_handed_over(stage):
    """The first Ctrl+C installs the handler of the second."""
    for count in range(1, 4):
        stage.signal()
        stage.turn()
        assert [NUMBER] * count == stage.handled


def test_signal_is_handled_at_once_while_no_loop_runs(stage):
    """A worker that waits for its broker comes round to nothing."""
    stage.turns.end()
    stage.signal()

    assert [NUMBER] == stage.handled


def test_signal_that_arrived_before_the_loop_ended_is_not_forgotten(stage):
    stage.signal()
    stage.turns.end()

    assert [NUMBER] == stage.handled


def test_loop_that_starts_again_hands_over_again(stage):
    """A reconnect empties the loop."""
    stage.turns.end()
    stage.hub.reset()
    stage.turns.begin()
    stage.signal()
    before = list(stage.handled)
    stage.turn()

    assert ([], [NUMBER]) == (before, stage.handled)


def test_child_handles_its_own_signal_and_wakes_nobody(stage, monkeypatch):
    """It has its parent's handlers, and its parent's pipe."""
    monkeypatch.setattr(os, "getpid", lambda: -1)
    stage.signal()

    with pytest.raises(BlockingIOError):
        os.read(stage.turns._woken, 1)
    assert [NUMBER] == stage.handled


def test_child_handles_its_own_signal_alone_where_its_parent_had_one_when_it_was_forked(stage, monkeypatch):
    stage.signal()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 0)
        stage.signal()
        in_child = list(stage.handled)
    stage.turn()

    assert ([NUMBER], [NUMBER] * 2) == (in_child, stage.handled)


def test_handler_of_somebody_else_is_left_alone(stage):
    heard = []
    signal.signal(NUMBER, lambda *_: heard.append(1))
    stage.turns.begin()
    stage.signal()

    assert [1] == heard


def test_turn_that_hears_of_the_end_is_the_last(stage, monkeypatch):
    """Else it goes on, and hands what has been fetched to a child that nobody will listen to."""
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(stage, "handle", lambda: setattr(state, "should_stop", 0))
    stage.signal()

    with pytest.raises(WorkerShutdown):
        stage.turn()


def test_child_that_takes_nothing_is_not_waited_for_for_ever(stage, monkeypatch):
    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 0)
    stage.writes = [True] * 100
    stage.signal()
    stage.turn()

    assert [NUMBER] == stage.handled
