"""
Many tasks want one entity at a time: none meets another inside, and each does with a busy lock what it declares.
"""

import pytest

from celery_safeguards.outcome import Outcome
from tests.acceptance.locks_app import SKIP_RESULT
from tests.acceptance.locks_under_test import Sections, overlaps
from tests.support.announcements import is_said

ENTITIES, VISITS = 3, 10


@pytest.fixture(scope="module")
def sections(redis_url, tmp_path_factory):
    """Two workers with three children each."""
    with Sections(redis_url, tmp_path_factory.mktemp("locks")) as sections:
        for _ in range(2):
            sections.start_worker(3)
        yield sections


def visit_all(sections, lock, kind):
    """Let everybody visit the entities; return the entities, and how all deliveries have ended."""
    entities = [sections.entity(lock, kind) for _ in range(ENTITIES)]
    sent = [entity.send(f"v{number}", "stay") for number in range(VISITS) for entity in entities]
    for task_id in sent:
        sections.wait_ended(task_id, Outcome.SUCCEEDED, 60)
    return entities, {outcome for task_id in sent for outcome in sections.outcomes(task_id)}


@pytest.mark.parametrize("kind", ["keyed", "unkeyed"])
@pytest.mark.parametrize("lock", ["defer", "wait"])
def test_never_two_inside_at_once(sections, lock, kind):
    """
    steinitzu/celery-singleton#40: of tasks that must not meet, two run at the same time.

    Who may wait for longer than it takes is not put off once, though they are asked for a sign of life meanwhile.
    """
    entities, outcomes = visit_all(sections, lock, kind)

    wanted = {f"v{number}" for number in range(VISITS)}
    assert [[]] * ENTITIES == [overlaps(entity.visits()) for entity in entities]
    assert [(wanted, VISITS)] * ENTITIES == [(set(each.entered()), len(each.entered())) for each in entities]
    assert (lock == "defer") == (Outcome.DEFERRED in outcomes)


@pytest.mark.parametrize("kind", ["keyed", "unkeyed"])
def test_without_a_lock_they_meet(sections, kind):
    """The control: the same visits, and the same eyes."""
    entities, _outcomes = visit_all(sections, "none", kind)

    assert any(overlaps(entity.visits()) for entity in entities)


@pytest.mark.parametrize("kind", ["keyed", "unkeyed"])
def test_skipped_task_succeeds_with_its_result_and_what_follows_it_runs(sections, kind):
    """steinitzu/celery-singleton#21: a task that finds another at work must say so, not vanish with its chain."""
    entity = sections.entity("skip", kind)
    entity.hold("first")
    first = entity.send("first")
    entity.wait_inside("first")

    second = entity.send("second", link=sections.app.tasks["locks.follow"].s(entity.name))
    followed = sections.announcements.wait_for(is_said("followed", entity=entity.name), 20)
    told = sections.announcements.wait_for(is_said("task_postrun", task_id=second), 20)
    record = entity.record("second") if kind == "keyed" else None
    entity.let_go("first")
    sections.wait_ended(first, Outcome.SUCCEEDED)

    assert SKIP_RESULT == followed["result"]
    assert ("SUCCESS", repr(SKIP_RESULT)) == (told["state"], told["result"])
    assert [Outcome.SKIPPED] == sections.outcomes(second)
    assert ["first"] == entity.entered()
    assert record is None


@pytest.mark.parametrize("kind", ["keyed", "unkeyed"])
def test_task_that_has_waited_in_vain_is_put_off_and_nothing_is_counted(sections, kind):
    """A busy entity would use up the attempts of those who wait for it, and fail work that was never tried."""
    entity = sections.entity("impatient", kind)
    entity.hold("first")
    entity.send("first")
    entity.wait_inside("first")

    second = entity.send("second")
    # More often than it may be tried.
    sections.wait_ended(second, Outcome.DEFERRED, count=3)
    record = entity.record("second") if kind == "keyed" else None
    entity.let_go("first")
    said = entity.wait_inside("second")
    sections.wait_ended(second, Outcome.SUCCEEDED)

    assert record is None
    assert (1, 0) == (said["attempt"], said["retries"])
    assert ["first", "second"] == entity.entered()
    assert {Outcome.DEFERRED, Outcome.SUCCEEDED} == set(sections.outcomes(second))
    if kind == "keyed":
        assert (1, 0) == (entity.record("second").attempt, entity.record("second").lost_starts)


@pytest.mark.parametrize("kind", ["keyed", "unkeyed"])
def test_soft_limit_of_a_task_that_waits_ends_the_wait_only(sections, kind):
    """The limit is meant for a body, and that has not begun: its message would be away for a visibility timeout."""
    entity = sections.entity("wait", kind)
    entity.hold("first")
    entity.send("first")
    entity.wait_inside("first")

    second = entity.send("second", soft_time_limit=1)
    sections.wait_ended(second, Outcome.DEFERRED)
    entity.let_go("first")
    said = entity.wait_inside("second")
    sections.wait_ended(second, Outcome.SUCCEEDED)

    assert (1, 0) == (said["attempt"], said["retries"])
    assert Outcome.FENCED not in sections.outcomes(second)
