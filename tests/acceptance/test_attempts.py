"""
What letters tell of the attempts of real workers, of two releases, one of which is killed.
"""

import pytest

from celery_safeguards.replay import replay
from celery_safeguards.wiring import Wiring
from tests.acceptance.faults_app import Scene

pytestmark = pytest.mark.acceptance
CALM = [(1, "retried", "ConnectionRefusedError"), (2, "retried", "TimeoutError")]
KILLED = [CALM[0], (2, "lost: its process ended", "")]
BURIED = (3, "buried: data errors are not retried", "ValueError")


@pytest.fixture
def scene(redis_url, namespace, gateway, announcements, start_worker):
    """Broker and store on the session's server."""
    return Scene(
        broker_url=redis_url,
        namespace=namespace,
        gateway=gateway,
        announcements=announcements,
        start_worker=start_worker,
    )


def told(letter):
    """Return what a letter says of each attempt, without how long a retry waits: that is drawn."""
    return [
        (each.number, each.ended.partition(" in ")[0], each.error_type.rpartition(".")[2])
        for each in letter.attempt_history
    ]


@pytest.mark.parametrize(
    ("task", "killed", "series"),
    [
        ("fail_differently", False, [*CALM, BURIED]),
        ("fail_differently", True, [*KILLED, BURIED]),
        ("fail_differently_unkeyed", False, [*CALM, BURIED]),
    ],
    ids=["keyed", "keyed, one killed", "unkeyed"],
)
def test_task_that_fails_twice_and_dies_has_a_letter_of_three_attempts_also_after_a_replay(
    scene, announcements, task, killed, series
):
    """Whoever is on call sees one error, and the cause was another one, on another worker, before it."""
    old = scene.worker(safeguards_release="v1")
    first_id = scene.send(task, "A1", kwargs={"killed": killed})
    scene.wait_ended("dead_lettered", task_id=first_id)
    (first,) = scene.letters()
    old.stop()
    scene.worker(safeguards_release="v2")

    again_id = replay(scene.app, first.id, "ann").task_id
    scene.wait_ended("dead_lettered", task_id=again_id)

    (letter,) = scene.letters()
    assert series == told(first)
    assert series * 2 == told(letter)
    assert [first_id] * 3 + [again_id] * 3 == [each.task_id for each in letter.attempt_history]
    assert ["v1"] * 3 + ["v2"] * 3 == [each.release for each in letter.attempt_history]
    assert {letter.host} == {each.worker.rpartition(":")[0] for each in letter.attempt_history}
    assert f"{letter.host}:{letter.pid}" == letter.attempt_history[-1].worker
    assert "s3cret-word" not in letter.to_json()
    group = Wiring.of(scene.app).letters.get_group(letter.fingerprint)
    assert ("v1", ["v1", "v2"]) == (group.first_release, [each.release for each in group.releases])


def test_killed_worker_leaves_an_attempt_that_nobody_saw_end(scene, announcements):
    """Its host ran out of memory, and took the main process along."""
    announcements.hold("before_refusal")
    first = scene.worker()
    task_id = scene.send("refuse_keyed", "A1")
    announcements.wait_for("before_refusal", 10)
    first.kill_all()
    announcements.open("before_refusal")

    scene.worker()
    scene.wait_ended("dead_lettered", 30, task_id=task_id)

    (letter,) = scene.letters()
    assert [(1, "lost: its lease lapsed, nobody saw it end", ""), (2, BURIED[1], "ValueError")] == told(letter)
