"""
How a replay job slows and speeds up: never above what was asked for, never so slow that it would not notice.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.tempo import LATEST, SLOWEST_PER_SECOND, Tempo, least_share
from celery_safeguards.replay.many.pace import Pace
from tests.integration.replay.clocks import PacedClock

rates = st.none() | st.floats(0.001, 10_000)
windows = st.integers(1, 10_000)
looks = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=60)


def after(seen, tempo=None, per_second=None, at_once=100):
    """Return how a job goes after looks, each with how many succeeded and how many failed again."""
    tempo = tempo or Tempo()
    for succeeded, failed in seen:
        tempo = tempo.after(succeeded=succeeded, failed=failed, least=least_share(per_second, at_once))
    return tempo


@pytest.mark.parametrize(
    ("seen", "share"),
    [
        ([(8, 1)], 1),
        ([(8, 1), (2, 7)], 1 / 2),
        ([(8, 1), (2, 7), (0, 4)], 1 / 4),
        ([(8, 1), (2, 7), (0, 4), (2, 0)], 5 / 16),
        ([(0, 0)], 1),
    ],
)
def test_the_table_of_the_module_holds(seen, share):
    assert after(seen).share == share


def test_a_few_letters_that_are_broken_by_themselves_do_not_slow_it():
    """One in ten has bad data, for ever: a job that halves with each of them would take days."""
    tempo = after([(9, 1), (8, 2), (10, 0), (9, 1)] * 10)

    assert tempo.share == 1


def test_failures_that_are_long_ago_are_forgotten():
    """A quarter of an hour after the outage one broken letter would slow it as much as the outage did."""
    tempo = after([(0, 20), (LATEST, 0), (19, 1)])

    assert (tempo.share, tempo.failing) == (0.5 * 1.25 * 1.25, 1 / 20)


def test_the_least_is_a_letter_at_a_time_every_five_seconds():
    tempo = after([(0, 5)] * 50, per_second=20, at_once=100)

    assert (tempo.window(100), tempo.per_second(20)) == (1, SLOWEST_PER_SECOND)
    assert Tempo(share=0.001).per_second(0.01) == 0.01


@given(looks, rates, windows)
def test_it_is_never_above_what_was_asked_for_and_never_nothing(seen, per_second, at_once):
    tempo = after(seen, per_second=per_second, at_once=at_once)

    assert 1 <= tempo.window(at_once) <= at_once
    if per_second is not None:
        assert min(per_second, SLOWEST_PER_SECOND) <= tempo.per_second(per_second) <= per_second


@given(looks, rates, windows)
def test_it_comes_back_to_its_pace(seen, per_second, at_once):
    """Slow for ever is how a job of ten thousand letters is left to die after an outage of a minute."""
    tempo = after(seen, per_second=per_second, at_once=at_once)
    recovered = after([(1, 0)] * 80, tempo, per_second, at_once)

    assert (recovered.window(at_once), recovered.per_second(per_second)) == (at_once, per_second)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20), st.floats(0.5, 200))
def test_messages_are_never_closer_than_the_rate_that_was_asked_for(seen, per_second):
    """Whatever it slows and speeds up to: of any stretch of time, with the burst that a late runner catches up with."""
    clock, tempo, out = PacedClock(), Tempo(), []
    pace = Pace(per_second, clock)
    for succeeded, failed in seen:
        tempo = tempo.after(succeeded=succeeded, failed=failed, least=least_share(per_second, 100))
        pace.keep(tempo.per_second(per_second))
        for _ in range(5):
            pace.wait()
            out.append(clock.now)
            pace.sent()

    gaps = zip(out, out[4:], strict=False)
    assert all(later - earlier >= 4 / per_second - 1e-6 for earlier, later in gaps)
    assert max((later - earlier for earlier, later in pairwise(out)), default=0) <= 5.001


@given(looks, rates, windows)
def test_it_is_kept_with_the_job(seen, per_second, at_once):
    """The next runner would begin at full pace, in the midst of the outage."""
    tempo = after(seen, per_second=per_second, at_once=at_once)
    options = {"per_second": per_second, "at_once": at_once, "tempo": tempo}
    job = ReplayJob(id="j", who="ann", chosen="all", total=1, created_seconds=0.0, **options)

    assert ReplayJob.from_json(job.to_json()) == job


def test_it_is_said_how_slow_and_why():
    job = ReplayJob(
        id="j", who="ann", chosen="all", total=1, created_seconds=0.0, per_second=20, tempo=after([(6, 14)])
    )
    steady = ReplayJob(id="j", who="ann", chosen="all", total=1, created_seconds=0.0, adapts=False)

    assert job.pace_in_words == (
        "20 a second, at most 100 on their way",
        "slowed to 50.0% of it: 70% of the latest 20 failed again; just now 10 a second, at most 50 on their way",
    )
    assert steady.pace_in_words == (
        "as fast as store and broker take them, at most 100 on their way, also while letters fail again",
    )
