"""
Putting off: how long, until when, and what a copy says of it.
"""

import random
from types import SimpleNamespace

import pytest

from celery_safeguards import headers as h
from celery_safeguards.conf import Settings
from celery_safeguards.errors import DeferralRefused
from celery_safeguards.headers import Lineage
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.pipeline.copies import deferral_headers, lineage_headers
from celery_safeguards.pipeline.deferring import EagerWait, delay_seconds, is_overdue


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self, now=1000.0):
        self.now = now

    def wall_seconds(self):
        return self.now

    def monotonic_seconds(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def delays(deferrals, known_wait_seconds=None, draws=300, **settings):
    """Return many delays, drawn with one seed."""
    wiring = SimpleNamespace(settings=Settings(**settings), chance=random.Random(7))
    return [delay_seconds(wiring, deferrals, known_wait_seconds) for _ in range(draws)]


@pytest.mark.parametrize(("deferrals", "ceiling"), [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (7, 60), (5000, 60)])
def test_delay_doubles_up_to_the_cap_with_a_floor_of_half(deferrals, ceiling):
    """A message that found its key busy must neither loop hot nor disappear for an hour."""
    found = delays(deferrals)

    assert ceiling / 2 <= min(found) <= max(found) <= ceiling
    assert max(found) - min(found) > ceiling / 4


def test_delay_follows_the_settings():
    """A shop with short tasks wants to look again sooner."""
    found = delays(10, deferral_base_seconds=0.1, deferral_cap_seconds=0.5)

    assert 0.25 <= min(found) <= max(found) <= 0.5


@pytest.mark.parametrize("wait", [0, 0.5, 3, 600])
def test_known_wait_is_never_cut_short(wait):
    """A copy that comes before its time is put off again, and doubles the traffic for nothing."""
    found = delays(0, wait)

    assert wait <= min(found) <= max(found) <= wait + max(0.2, wait / 10)


def test_known_waits_are_spread():
    """All copies that wait for one lease would come back at the same instant."""
    found = delays(0, 30)

    assert max(found) - min(found) > 1


def test_past_wait_is_no_negative_delay():
    """A lease that has lapsed meanwhile means now."""
    assert min(delays(0, -5)) >= 0


def test_message_is_overdue_after_the_deadline_and_not_before():
    """Work that can never start must end as a letter, visible, and not go round for ever."""
    settings, clock = Settings(deferral_deadline_seconds=100), Clock(1000)

    found = [is_overdue(settings, Lineage(deferred_since=since), clock) for since in (None, 950.0, 900.0, 899.0)]

    assert found == [False, False, False, True]


def test_copies_count_their_deferrals_from_the_first():
    """The deadline runs from the first deferral, not from the last."""
    clock = Clock(1000)
    first = deferral_headers(Lineage(), clock)
    clock.now = 1300

    second = deferral_headers(Lineage.from_headers(first), clock)

    assert first == {h.DEFERRALS: 1, h.DEFERRED_SINCE: 1000.0}
    assert second == {h.DEFERRALS: 2, h.DEFERRED_SINCE: 1000.0}


def test_copy_of_a_keyed_message_carries_the_highest_fence_it_has_seen():
    """A fence that is forgotten makes a started message look like a new one after the record is lost."""
    lineage = Lineage(key="op:1", fingerprint="f1", epoch="e1", seen=9)

    older = lineage_headers(Record(state=State.RETRY_DUE, fence=5), "op:1", lineage)
    newer = lineage_headers(Record(state=State.RETRY_DUE, fence=12), "op:1", lineage)

    assert (older[h.SEEN], newer[h.SEEN]) == (9, 12)
    assert (older[h.KEY], older[h.FINGERPRINT], older[h.EPOCH]) == ("op:1", "f1", "e1")


def test_copy_of_a_message_that_was_never_admitted_proves_no_start():
    """A deferral as such proves nothing."""
    headers = lineage_headers(None, "op:1", Lineage(key="op:1", fingerprint="f1"))

    assert headers == {h.VERSION: h.FORMAT, h.KEY: "op:1", h.FINGERPRINT: "f1"}


def test_eager_wait_ends_before_its_bound():
    """A caller that waits must get its thread back."""
    clock = Clock()
    wait = EagerWait(Settings(eager_wait_seconds=5), clock)
    wait.wait(2, "busy")
    wait.wait(3, "busy")

    with pytest.raises(DeferralRefused, match=r"busy: .*safeguards_eager_wait_seconds"):
        wait.wait(0.1, "busy")

    assert clock.now == 1005


def test_eager_wait_refuses_at_once_what_it_could_not_wait_for():
    """Sleeping first and refusing then wastes the caller's time."""
    clock = Clock()

    with pytest.raises(DeferralRefused):
        EagerWait(Settings(eager_wait_seconds=5), clock).wait(60, "busy")

    assert clock.now == 1000
