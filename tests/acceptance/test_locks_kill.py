"""
However a task ends, the next one on its entity runs soon: each end frees the lock, and only that of a whole worker
which died, and can free nothing, is waited for by its lease.

The lease of these locks is longer than any of these tests waits: who comes in comes by a release.
"""

import os
import signal

import pytest

from celery_safeguards.outcome import Outcome
from tests.acceptance.locks_app import LEASE_SECONDS, LONG_LEASE_SECONDS
from tests.acceptance.locks_under_test import Sections, now, overlaps
from tests.support.announcements import is_said
from tests.support.processes import processes
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

# Celery sees a dead child at once, or else at its next look, 5 s later (celery 5.7, `concurrency/asynpool.py`).
SOON_SECONDS = 8
KINDS = pytest.mark.parametrize("kind", ["keyed", "unkeyed"])


@pytest.fixture(scope="module")
def sections(redis_url, tmp_path_factory):
    """One worker with four children."""
    with Sections(redis_url, tmp_path_factory.mktemp("locks")) as sections:
        sections.start_worker(4)
        yield sections


def pids():
    """Return the pids of all processes that are not dead."""
    return {pid for pid, _parent, _group, state in processes() if state not in "ZX"}


@pytest.fixture
def followed(sections):
    """Let one task end while the next one waits, and see it come in; returns the entity and both ids."""

    def follow(kind, does, end=lambda _first, _said: None, **options):
        entity = sections.entity("long", kind)
        entity.hold("first")
        first = entity.send("first", does, **options)
        said = entity.wait_inside("first")
        following = entity.send("next")
        entity.wait_until_waits(following)
        assert entity.lease_left_seconds() > SOON_SECONDS, "the lease itself would let the next one in"
        end(first, said)
        ended_at = now()
        entity.let_go("first")
        came_at = entity.wait_inside("next")["at"]
        assert came_at - ended_at < SOON_SECONDS
        sections.wait_ended(following, Outcome.SUCCEEDED)
        assert [Outcome.SUCCEEDED] == sections.outcomes(following), "it has not stood in the line all the time"
        return entity, first

    return follow


ENDS = {
    "success": ("return", {}, Outcome.SUCCEEDED),
    "failure": ("fail", {}, Outcome.DEAD_LETTERED),
    "ignore": ("ignore", {}, None),
    "reject": ("reject", {}, None),
    "given_back": ("give_back", {}, None),
    "retry": ("be_refused", {}, Outcome.RETRIED),
    "soft_limit": ("hang", {"soft_time_limit": 1}, None),
    "hard_limit": ("hang", {"time_limit": 1}, None),
}


@KINDS
@pytest.mark.parametrize("end", list(ENDS))
def test_next_one_runs_soon_after_any_end_of_the_body(sections, followed, kind, end):
    """
    steinitzu/celery-singleton#29: a task that ends in another way than by success or failure never frees its lock.

    steinitzu/celery-singleton#40: nor does one that is tried again, while it waits for its next attempt.
    """
    does, options, outcome = ENDS[end]

    entity, first = followed(kind, does, **options)

    assert ["first", "next"] == entity.entered()[:2]
    if outcome is not None:
        sections.wait_ended(first, outcome)


@KINDS
def test_next_one_runs_soon_after_the_last_attempt(sections, kind):
    """steinitzu/celery-singleton#29: whose retries are exhausted is a dead letter, and holds nothing."""
    entity = sections.entity("long", kind)
    first = entity.send("first", "be_refused")
    sections.wait_ended(first, Outcome.RETRIED)
    entity.hold("first")
    entity.wait_inside("first", count=2)
    entity.wait_until_waits(entity.send("next"))

    entity.let_go("first")
    buried_at = sections.wait_ended(first, Outcome.DEAD_LETTERED)["at"]

    assert entity.wait_inside("next")["at"] - buried_at < SOON_SECONDS


@KINDS
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_next_one_runs_soon_after_a_task_was_revoked_and_terminated(sections, followed, kind, name):
    """steinitzu/celery-singleton#29: `on_failure` is not called for a revoked task, so that its lock stays for ever."""

    def revoke(first, _said):
        sections.app.control.revoke(first, terminate=True, signal=name)
        sections.announcements.wait_for(is_said("revoked", task_id=first), SOON_SECONDS)

    followed(kind, "hang", revoke)


@KINDS
def test_next_one_runs_soon_after_a_task_was_revoked_before_it_began(sections, kind):
    """steinitzu/celery-singleton#29: revoked while it is put off, a task must leave neither a lock nor a place."""
    entity = sections.entity("defer", kind)
    entity.hold("holder")
    entity.send("holder")
    entity.wait_inside("holder")
    first = entity.send("first")
    sections.wait_ended(first, Outcome.DEFERRED)

    sections.app.control.revoke(first)
    sections.announcements.wait_for(is_said("revoked", task_id=first, terminated=False), SOON_SECONDS)
    following = entity.send("next")
    sections.wait_ended(following, Outcome.DEFERRED)
    let_go_at = now()
    entity.let_go("holder")

    assert entity.wait_inside("next")["at"] - let_go_at < LEASE_SECONDS
    assert ["holder", "next"] == entity.entered()


@KINDS
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_task_that_is_terminated_while_it_waits_leaves_the_line(sections, kind, name):
    """steinitzu/celery-singleton#29: a lock that is kept for the dead is as lost as one that they hold."""
    entity = sections.entity("long", kind)
    entity.hold("holder")
    entity.send("holder")
    entity.wait_inside("holder")
    first = entity.send("first")
    entity.wait_until_waits(first)

    sections.app.control.revoke(first, terminate=True, signal=name)
    sections.announcements.wait_for(is_said("revoked", task_id=first), SOON_SECONDS)
    following = entity.send("next")
    entity.wait_until_waits(following)
    let_go_at = now()
    entity.let_go("holder")

    assert entity.wait_inside("next")["at"] - let_go_at < SOON_SECONDS
    assert ["holder", "next"] == entity.entered()


@KINDS
def test_next_one_runs_soon_after_its_child_was_killed(sections, followed, kind):
    """steinitzu/celery-singleton#29: a hard-killed task never frees its lock. Here its main process does."""
    entity, first = followed(kind, "return", lambda _first, said: os.kill(said["pid"], signal.SIGKILL))

    # Its message comes again, after the one that waited.
    sections.wait_ended(first, Outcome.SUCCEEDED)
    assert ["first", "next", "first"] == entity.entered()


@KINDS
def test_body_over_its_hard_limit_is_gone_before_the_next_one_comes_in(sections, followed, kind):
    """
    A lock that is freed while its owner is still being killed lets two work at once.

    Celery reports the limit first, asks the child to end, and kills it a tenth of a second later (celery 5.7).
    """
    dying = []

    entity, _first = followed(kind, "beat", lambda _first, said: dying.append(said["pid"]), time_limit=1)

    wait_until(lambda: dying[0] not in pids(), SOON_SECONDS, "the child is gone")
    visits = entity.visits()
    after = visits[visits.index(("enter", "next")) + 1 :]
    again = after.index(("enter", "first")) if ("enter", "first") in after else None
    assert ("beat", "first") in visits
    assert ("beat", "first") not in after[:again]


def test_lock_of_a_task_that_was_acknowledged_early_is_renewed(sections):
    """ionelmc/python-redis-lock#85: the lock is lost in the middle of a task that works for longer than its lease."""
    entity = sections.entity("wait", "once")
    entity.hold("first")
    first = entity.send("first")
    entity.wait_inside("first")
    following = entity.send("next")
    entity.wait_until_waits(following)
    taken = entity.lock()

    wait_until(lambda: entity.lock().lease_until_us > taken.since_us + 2 * LEASE_SECONDS * 1e6, 8, "it was renewed")
    entity.let_go("first")
    for task_id in (first, following):
        sections.wait_ended(task_id, Outcome.SUCCEEDED)

    assert [] == overlaps(entity.visits())


@KINDS
def test_revoked_task_keeps_its_lock_until_its_child_is_dead(sections, kind):
    """
    A child in a long C call does not hear SIGTERM, and goes on for longer than its lock is held without renewal.

    Celery acknowledges a task that it terminates at once, whether its child is dead or not (celery 5.7).
    """
    entity = sections.entity("wait", kind)
    entity.hold("first")
    first = entity.send("first", "hold_the_interpreter")
    entity.wait_inside("first")
    following = entity.send("next")
    entity.wait_until_waits(following)
    entity.let_go("first")
    entity.wait_said("holds_the_interpreter", "first")

    sections.app.control.revoke(first, terminate=True, signal="SIGTERM")
    sections.announcements.wait_for(is_said("revoked", task_id=first), SOON_SECONDS)
    sections.wait_ended(following, Outcome.SUCCEEDED)

    assert [] == overlaps(entity.visits())
    assert ["first", "next"] == entity.entered()


@KINDS
def test_task_that_is_cancelled_with_its_connection_frees_its_lock_and_runs_again(redis_url, tmp_path, kind):
    """
    steinitzu/celery-singleton#29: a task that is killed from outside leaves its lock.

    Celery can end tasks whose connection to the broker is lost; it neither acknowledges nor rejects them (celery 5.7).
    """
    cancelling = {"store_url": redis_url, "worker_cancel_long_running_tasks_on_connection_loss": True}
    with Cutter(redis_url) as cutter, Sections(redis_url, tmp_path, cutter.url, **cancelling) as sections:
        sections.start_worker(2)
        entity = sections.entity("long", kind)
        entity.hold("first")
        first = entity.send("first")
        dying = entity.wait_inside("first")["pid"]

        cutter.cut()
        wait_until(lambda: dying not in pids(), SOON_SECONDS, "the child is gone")
        gone_at = now()
        entity.let_go("first")
        again_at = entity.wait_inside("first", count=2)["at"]

        sections.wait_ended(first, Outcome.SUCCEEDED)
        assert again_at - gone_at < LEASE_SECONDS + SOON_SECONDS
        sections.wait_ended(entity.send("next"), Outcome.SUCCEEDED)


@KINDS
def test_lock_of_a_worker_that_died_is_waited_for_by_its_lease(redis_url, tmp_path, kind):
    """unicef/hope#6393: after a deploy the locks of killed workers stay for hours; and none may be taken too soon."""
    with Sections(redis_url, tmp_path) as sections:
        killed = sections.start_worker()
        entity = sections.entity("wait", kind)
        entity.hold("first")
        first = entity.send("first")
        entity.wait_inside("first")
        sections.start_worker()
        following = entity.send("next")
        entity.wait_until_waits(following)
        sections.wait_until_takeovers_begin()

        killed.kill_all()
        left, lapsed = entity.lock(), entity.lease_left_seconds()
        entity.let_go("first")
        entity.wait_inside("next", LEASE_SECONDS + SOON_SECONDS)
        taken = entity.lock()

        assert 0 < lapsed <= LEASE_SECONDS
        assert (left.owner, True) != (taken.owner, taken.fence > left.fence)
        assert 0 <= taken.since_us - left.lease_until_us < LONG_LEASE_SECONDS * 1e6
        sections.wait_ended(following, Outcome.SUCCEEDED)
        sections.let_messages_time_out(1)
        sections.wait_ended(first, Outcome.SUCCEEDED)
        assert ["first", "next", "first"] == entity.entered()
