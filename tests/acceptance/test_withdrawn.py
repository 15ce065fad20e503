"""
Messages that expire, are revoked, or are in a worker that is shut down: real workers and a real Redis.

The truth is the list of visits, which a Redis keeps in the order in which bodies came and went.
"""

import signal

import pytest

from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind, Outcome
from tests.acceptance.locks_under_test import Sections, now
from tests.support.announcements import is_said
from tests.support.waiting import wait_until

KINDS = ("keyed", "unkeyed")
SOON_SECONDS = 8
SOFT_SHUTDOWN_SECONDS = 2
LEASE_SECONDS = 30
LONG_LEASE = {"safeguards_lease_seconds": LEASE_SECONDS, "safeguards_store_timeout_seconds": 2}
EXPIRES_SECONDS = 1


@pytest.mark.parametrize("kind", KINDS)
def test_message_that_expired_before_a_worker_came_is_told_and_leaves_a_letter(redis_url, tmp_path, kind):
    """After a stall expired messages vanish as "revoked" (celery/celery#5278): which orders were these?"""
    with Sections(redis_url, tmp_path, safeguards_bury_expired="always") as sections:
        entity = sections.entity("none", kind)
        late = entity.send("late", expires=EXPIRES_SECONDS)
        in_time = entity.send("in_time", expires=600)
        expired_at = now() + EXPIRES_SECONDS
        wait_until(lambda: now() > expired_at, 10, "the message has expired")

        sections.start_worker()
        sections.wait_ended(in_time, Outcome.SUCCEEDED)
        sections.wait_ended(late, Outcome.EXPIRED)

        sections.wait_quiet()
        assert ["in_time"] == entity.entered()
        (letter,) = sections.wiring.letters.list().letters
        assert (FailureKind.EXPIRED, late, False) == (letter.kind, letter.task_id, letter.effect_possible)


def test_message_that_expired_leaves_nothing_without_safeguards(redis_url, tmp_path):
    """The control: it is acknowledged, and no body, result or hook tells of it."""
    with Sections(redis_url, tmp_path) as sections:
        plain = sections.app.tasks["locks.follow"]
        late = plain.apply_async(("result", "e"), expires=EXPIRES_SECONDS)
        expired_at = now() + EXPIRES_SECONDS
        wait_until(lambda: now() > expired_at, 10, "the message has expired")

        sections.start_worker()
        sections.announcements.wait_for(is_said("revoked", task_id=late.id), SOON_SECONDS)

        sections.wait_quiet()
        assert [] == sections.outcomes(late.id)
        assert not sections.wiring.letters.list().letters


def test_key_of_a_task_that_was_revoked_and_terminated_is_free_before_its_lease_is_over(redis_url, tmp_path):
    """steinitzu/celery-singleton#29: whoever publishes the work again waits for a claim of the dead."""
    with Sections(redis_url, tmp_path, **LONG_LEASE) as sections:
        sections.start_worker(2)
        entity = sections.entity("none", "keyed")
        entity.hold("op")
        first = entity.send("op")
        entity.wait_inside("op")

        sections.app.control.revoke(first, terminate=True, signal="SIGKILL")
        sections.wait_ended(first, Outcome.CANCELLED)
        wait_until(lambda: entity.record("op").lost_us, SOON_SECONDS, "the claim is marked lost")
        entity.let_go("op")
        again = entity.send("op")

        sections.wait_ended(again, Outcome.SUCCEEDED, SOON_SECONDS)
        assert State.DONE == entity.record("op").state


@pytest.mark.parametrize("how", ["warm", "soft"])
@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_loses_nothing(redis_url, tmp_path, kind, how):
    """
    A deploy that stops a worker: what runs, what it has fetched, and what it holds for later all get done.

    Warm: SIGTERM, and bodies end by themselves. Soft: SIGQUIT, and a body that does not end in time is killed.
    """
    changes = {"worker_prefetch_multiplier": 4, "worker_soft_shutdown_timeout": SOFT_SHUTDOWN_SECONDS}
    with Sections(redis_url, tmp_path, **changes) as sections:
        stopping = sections.start_worker(2)
        entity = sections.entity("none", kind)
        entity.hold("held")
        sent = {"held": entity.send("held")}
        entity.wait_inside("held")
        sent |= {f"eta{number}": entity.send(f"eta{number}", countdown=4) for number in range(2)}
        sent |= {f"op{number}": entity.send(f"op{number}", "stay") for number in range(6)}
        sections.wait_ended(sent["op0"], Outcome.SUCCEEDED)

        stopping.kill_main(signal.SIGTERM if how == "warm" else signal.SIGQUIT)
        if how == "warm":
            wait_until(lambda: "Warm shutdown" in stopping.log(), SOON_SECONDS, "the worker stops")
            entity.let_go("held")
        stopping.wait_exited(SOFT_SHUTDOWN_SECONDS + SOON_SECONDS)
        entity.let_go("held")
        sections.start_worker(2)

        for task_id in sent.values():
            sections.wait_ended(task_id, Outcome.SUCCEEDED)
        sections.wait_quiet()
        assert set(sent) == set(entity.entered())
        if how == "warm":
            assert len(sent) == len(entity.entered()), "nobody was disturbed"


def test_soft_shutdown_loses_what_was_acknowledged_early(redis_url, tmp_path):
    """The control: a task that may be lost is, so the test would see it."""
    with Sections(redis_url, tmp_path, worker_soft_shutdown_timeout=SOFT_SHUTDOWN_SECONDS) as sections:
        stopping = sections.start_worker(2)
        entity = sections.entity("none", "once")
        entity.hold("held")
        held = entity.send("held")
        entity.wait_inside("held")

        stopping.kill_main(signal.SIGQUIT)
        stopping.wait_exited(SOFT_SHUTDOWN_SECONDS + SOON_SECONDS)
        entity.let_go("held")
        sections.start_worker(2)

        sections.wait_ended(entity.send("next"), Outcome.SUCCEEDED)
        sections.wait_quiet()
        assert [] == sections.outcomes(held)
        assert ["held", "next"] == entity.entered()
