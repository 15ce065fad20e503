"""
What a real prefork pool goes on with after a flush: a job written whole or in part, whose child lives or has died.

A child that is full (`max_tasks_per_child`) or killed leaves the job in its pipe: Celery gives it to another child.
"""

import os
import signal
import threading
from operator import neg

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool
from kombu.asynchronous import Hub, get_event_loop, set_event_loop

from celery_safeguards._handed import has_jobs_on_their_way, keep_what_is_in_pipes
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 20
MORE_THAN_A_PIPE_HOLDS = "x" * 1_000_000


class Stage:
    """A pool of one child, and the loop that writes to it."""

    def __init__(self):
        self.done = []
        self._hub = Hub()
        set_event_loop(self._hub)
        app = Celery("handed", set_as_current=False)
        self.pool = TaskPool(1, app=app, initargs=(app, "handed"), threads=False, forking_enable=True)
        self.pool.start()
        self.pool.register_with_event_loop(self._hub)
        self._loop = self._hub.create_loop()
        keep_what_is_in_pipes(self.pool)
        self.processes = self.pool._pool
        self.turn_until(lambda: self.processes._all_inqueues, "the child is up")

    @property
    def child(self):
        return self.processes._pool[0]

    def hand(self, number):
        return self.processes.apply_async(neg, (number,), callback=self.done.append)

    def hand_to_frozen_child(self, number):
        """Have a job in the pipe of a child that does not take it."""
        os.kill(self.child.pid, signal.SIGSTOP)
        self.hand(number)
        self.turn_until(lambda: not self.processes.outbound_buffer, "the job is written")
        assert has_jobs_on_their_way(self.pool)

    def hand_in_part_to_frozen_child(self):
        """Have a child's pipe be full before the job is written."""
        os.kill(self.child.pid, signal.SIGSTOP)
        job = self.processes.apply_async(len, (MORE_THAN_A_PIPE_HOLDS,), callback=self.done.append)
        self.turn_until(lambda: job._write_to, "the job is written in part")
        assert self.processes._active_writers

    def kill_child(self):
        child = self.child
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: not child._is_alive(), PATIENCE_SECONDS, "the child is dead")

    def turn_until(self, condition, what):
        self._hub.call_repeatedly(0.01, bool)

        def turned():
            next(self._loop)
            return condition()

        wait_until(turned, PATIENCE_SECONDS, what)

    def close(self):
        self.pool.terminate()
        self._hub.close()


@pytest.fixture
def stage():
    """A pool whose child waits for work."""
    before = get_event_loop()
    stage = Stage()
    yield stage
    stage.close()
    set_event_loop(before)


def test_job_that_waits_for_another_child_is_forgotten_and_the_child_takes_others(stage):
    stage.hand_to_frozen_child(1)
    stage.kill_child()
    stage.turn_until(lambda: stage.processes.outbound_buffer, "the job waits for another child")

    assert not has_jobs_on_their_way(stage.pool)
    stage.pool.flush()
    stage.hand(2)

    stage.turn_until(lambda: stage.done, "the other job is done")
    assert [-2] == stage.done
    assert not stage.processes._cache


def test_job_whose_child_had_died_unseen_is_done_by_another(stage):
    stage.hand_to_frozen_child(1)
    stage.kill_child()

    stage.pool.flush()
    stage.hand(2)

    stage.turn_until(lambda: len(stage.done) == 2, "both jobs are done")
    assert [-2, -1] == sorted(stage.done)


def test_job_in_the_pipe_of_a_child_that_lives_is_done_by_it(stage):
    stage.hand_to_frozen_child(1)

    stage.pool.flush()
    stage.hand(2)
    os.kill(stage.child.pid, signal.SIGCONT)

    stage.turn_until(lambda: len(stage.done) == 2, "both jobs are done")
    assert [-1, -2] == stage.done


def test_job_that_was_written_in_part_is_heard_of(stage):
    stage.hand_in_part_to_frozen_child()
    thaw = threading.Timer(0.2, os.kill, (stage.child.pid, signal.SIGCONT))

    thaw.start()
    stage.pool.flush()
    thaw.join()
    stage.hand(2)

    stage.turn_until(lambda: len(stage.done) == 2, "both jobs are done")
    assert [len(MORE_THAN_A_PIPE_HOLDS), -2] == stage.done


def test_job_that_was_written_in_part_to_a_child_that_died_unseen_is_done_by_another(stage):
    stage.hand_in_part_to_frozen_child()
    stage.kill_child()

    stage.pool.flush()
    stage.hand(2)

    stage.turn_until(lambda: len(stage.done) == 2, "both jobs are done")
    assert {len(MORE_THAN_A_PIPE_HOLDS), -2} == set(stage.done)
