"""
What shows that the owner of a lock is dead, and what does not.
"""

from dataclasses import replace

import pytest

from celery_safeguards.locks.evidence import Found, Shows, WorkerAnswer, evidence_of
from celery_safeguards.locks.store import LockState

SECOND = 1_000_000
NOW = 1_000_000 * SECOND
TASK = {"task": "shop.ship", "task_id": "t-1", "worker": "w1@far", "host": "far", "pid": 4711, "pid_space": "pid:[1]"}
HERE = {**TASK, "host": "here"}
PLAIN = {"task": "", "task_id": "", "worker": "", "host": "here", "pid": 4711, "pid_space": "pid:[1]"}
HELD = LockState(
    name="order:7", owner="a", fence=8, since_us=NOW - 60 * SECOND, lease_until_us=NOW + 20 * SECOND, holder=TASK
)
FOUND = Found(now_us=NOW, takeover_from_us=0, host="here", pid_space="pid:[1]", pid_exists=True, worker=None)
SINCE_BEFORE = WorkerAnswer(has_task=False, up_seconds=3600)


@pytest.mark.parametrize(
    ("holder", "found", "is_dead", "text"),
    [
        (TASK, {}, False, "worker w1@far does not answer, which is unknown, not dead"),
        (TASK, {"broker_answers": False}, False, "so worker w1@far cannot be asked: it is not known"),
        (TASK, {"pid_exists": False}, False, "it is on host far, and this is here"),
        (TASK, {"worker": SINCE_BEFORE}, True, "worker w1@far answers, and does not have task t-1 any more"),
        (TASK, {"worker": WorkerAnswer(has_task=True, up_seconds=3600)}, False, "worker w1@far has task t-1"),
        (TASK, {"worker": WorkerAnswer(has_task=False, up_seconds=30)}, False, "was started after the lock was taken"),
        (TASK, {"worker": WorkerAnswer(has_task=False, up_seconds=61)}, False, "was started after the lock was taken"),
        (TASK, {"worker": replace(SINCE_BEFORE, has_process=True)}, False, "in which it may be ending"),
        (HERE, {"pid_exists": False}, True, "process 4711 does not exist on this host"),
        (HERE, {}, False, "process 4711 exists on this host; perhaps it is another one by now"),
        (HERE, {"pid_exists": False, "pid_space": "pid:[2]"}, False, "cannot be seen from this container"),
        (PLAIN, {"pid_exists": False}, True, "process 4711 does not exist on this host"),
        (PLAIN, {}, False, "it is no task of a worker that could be asked"),
        ({}, {"pid_exists": False}, False, "it is on host unknown"),
    ],
)
def test_one_finding(holder, found, is_dead, text):
    """Taken for dead by the absence of an answer, a frozen owner wakes beside its successor."""
    evidence = evidence_of(replace(HELD, holder=holder), replace(FOUND, **found))

    assert evidence.is_dead is is_dead
    assert [each for each in evidence.findings if text in each.text]


def test_sign_of_life_outweighs_a_pid_that_cannot_be_found():
    """Its worker says that the task runs: then the pid is missing because we look in the wrong place."""
    lives = WorkerAnswer(has_task=True, up_seconds=3600)

    evidence = evidence_of(replace(HELD, holder=HERE), replace(FOUND, pid_exists=False, worker=lives))

    assert {each.shows for each in evidence.findings} == {Shows.DEAD, Shows.ALIVE, Shows.NOTHING}
    assert not evidence.is_dead


@pytest.mark.parametrize(
    ("left_seconds", "said"), [(20, "its lease runs for 20 s"), (2952.5, "its lease runs for 49 min 12 s")]
)
def test_lease_that_runs_is_told_as_people_say_it(left_seconds, said):
    """Whoever waits for it wants to know whether there is time for a coffee."""
    held = replace(HELD, lease_until_us=NOW + int(left_seconds * SECOND))

    assert said == evidence_of(held, FOUND).findings[0].text


def test_lease_that_is_over_is_enough():
    """Whoever asks for such a lock gets it: an operator must not be refused what any task is given."""
    lapsed = replace(HELD, lease_until_us=NOW - 5 * SECOND)

    evidence = evidence_of(lapsed, FOUND)

    assert evidence.is_dead
    assert [each.text for each in evidence.findings] == ["its lease is over since 5 s"]


def test_lease_that_ended_while_the_store_was_away_shows_nothing():
    """Its owner could not renew, and may: for one lease nobody takes the lock over, and nobody may be made to."""
    lapsed = replace(HELD, lease_until_us=NOW - 5 * SECOND)

    evidence = evidence_of(lapsed, replace(FOUND, takeover_from_us=NOW + 7 * SECOND))

    assert not evidence.is_dead
    assert "wait for 7 s" in evidence.findings[0].text
