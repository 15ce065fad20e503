from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.retry.backoff import (
    Jitter,
    after_server_seconds,
    backoff_ceiling_seconds,
    delay_bounds,
    draw_delay_seconds,
    floor_seconds,
    server_spread_seconds,
)
from celery_safeguards.retry.policy import RetryPolicy

any_jitter = st.sampled_from(Jitter)


@st.composite
def policies(draw, jitters=any_jitter, *, roomy=False):
    """Draw a policy; a roomy one leaves every delay an interval of at least half its base."""
    jitter = draw(jitters)
    base_seconds = draw(st.floats(0.001, 1e4))
    least_factor = 2.0 if roomy else 1.01 if jitter is Jitter.DECORRELATED else 1.0
    return RetryPolicy(
        base_seconds=base_seconds,
        factor=draw(st.floats(least_factor, 100.0) | st.integers(2, 100)),
        cap_seconds=draw(st.floats(base_seconds * (1.5 if roomy else 1.0), 1e6)),
        floor_seconds=draw(st.none() | st.floats(0.0, base_seconds / 2 if roomy else base_seconds)),
        jitter=jitter,
        jitter_ratio=draw(st.floats(0.5, 1.0)) if jitter is Jitter.RATIO else None,
    )


attempts = st.integers(1, 10_000)
seeds = st.integers(0, 2**32)


def test_default_ceilings_grow_threefold_up_to_the_cap():
    """The documented schedule would not be the one that runs."""
    ceilings = [backoff_ceiling_seconds(RetryPolicy(), attempt) for attempt in range(1, 7)]

    assert ceilings == [5.0, 15.0, 45.0, 135.0, 300.0, 300.0]


@pytest.mark.parametrize("factor", [3, 3.0, 1e300])
def test_the_ten_thousandth_attempt_has_the_cap_as_ceiling(factor):
    """An overflow while a failure is handled would lose the failure."""
    policy = RetryPolicy(factor=factor)

    assert backoff_ceiling_seconds(policy, 10_000) == 300.0


def test_a_factor_of_one_keeps_the_ceiling():
    """A constant schedule could not be asked for."""
    policy = RetryPolicy(factor=1)

    assert backoff_ceiling_seconds(policy, 10_000) == 5.0


@given(policies(), attempts)
def test_the_ceiling_lies_between_base_and_cap(policy, attempt):
    """A dependency in trouble would be asked too often, or a task would sleep for days."""
    ceiling = backoff_ceiling_seconds(policy, attempt)

    assert policy.base_seconds <= ceiling <= policy.cap_seconds


@given(policies(), attempts)
def test_the_ceiling_never_shrinks_and_grows_by_the_factor_at_most(policy, attempt):
    """Retries would come faster the longer an outage lasts, or jump over the configured growth."""
    before = backoff_ceiling_seconds(policy, attempt)
    after = backoff_ceiling_seconds(policy, attempt + 1)

    assert before <= after <= before * policy.factor * (1 + 1e-9)


# --- jitter


@pytest.mark.parametrize(
    ("jitter", "first", "second", "last"),
    [
        ("full", (0.5, 5.0), (0.5, 15.0), (0.5, 300.0)),
        ("equal", (2.5, 5.0), (7.5, 15.0), (150.0, 300.0)),
        ("ratio", (4.5, 5.5), (13.5, 16.5), (270.0, 300.0)),
        ("decorrelated", (5.0, 15.0), (5.0, 45.0), (5.0, 300.0)),
    ],
)
def test_each_mode_draws_from_its_documented_interval(jitter, first, second, last):
    """The schedule that somebody chose from the documentation would not be the one that runs."""
    policy = RetryPolicy(attempts=10, jitter=jitter)

    drawn_from = [delay_bounds(policy, attempt) for attempt in (1, 2, 9)]

    expected = [pytest.approx(each) for each in (first, second, last)]
    assert [(bounds.earliest_seconds, bounds.latest_seconds) for bounds in drawn_from] == expected


@given(policies(), attempts, seeds)
def test_a_delay_lies_within_its_bounds_between_floor_and_cap(policy, attempt, seed):
    """A retry would come at once (hypothesis/h#9289), or outlive the visibility timeout it was checked against."""
    bounds = delay_bounds(policy, attempt)

    delay = draw_delay_seconds(policy, attempt, Random(seed))

    assert bounds.earliest_seconds <= delay <= bounds.latest_seconds
    assert floor_seconds(policy) <= delay <= policy.cap_seconds


@given(policies(), attempts)
def test_bounds_never_go_back(policy, attempt):
    """Retries would come faster the longer an outage lasts."""
    before, after = delay_bounds(policy, attempt), delay_bounds(policy, attempt + 1)

    assert before.earliest_seconds <= after.earliest_seconds
    assert before.latest_seconds <= after.latest_seconds


@given(policies(roomy=True), st.integers(1, 20), seeds)
def test_a_hundred_delays_are_spread_and_no_two_the_same(policy, attempt, seed):
    """Tasks that failed together would come back together: those cut off at the cap in the very same instant."""
    random = Random(seed)

    delays = [draw_delay_seconds(policy, attempt, random) for _ in range(100)]

    assert len(set(delays)) > 95
    assert max(delays) - min(delays) > 0.25 * policy.base_seconds


@given(policies(st.sampled_from([Jitter.FULL, Jitter.EQUAL, Jitter.RATIO]), roomy=True), seeds)
def test_uniform_modes_use_their_whole_interval(policy, seed):
    """A herd that shares a corner of the interval is hardly spread."""
    random, bounds = Random(seed), delay_bounds(policy, 3)
    width = bounds.latest_seconds - bounds.earliest_seconds

    tenths = {int(10 * (draw_delay_seconds(policy, 3, random) - bounds.earliest_seconds) / width) for _ in range(100)}

    assert len(tenths) >= 6


@pytest.mark.parametrize("attempt", [1, 2, 5])
def test_decorrelated_delays_are_spread_as_those_of_a_chain_that_remembers(attempt):
    """The delay would be drawn from another distribution than the one that was chosen."""
    policy = RetryPolicy(jitter="decorrelated", base_seconds=1, cap_seconds=50)
    random, remembered = Random(7), []
    for _ in range(4_000):
        last = 1.0
        for _ in range(attempt):
            last = random.uniform(1.0, min(50.0, 3.0 * last))
        remembered.append(last)

    played = [draw_delay_seconds(policy, attempt, random) for _ in range(4_000)]

    for share in (0.25, 0.5, 0.75):
        at = int(share * 4_000)
        assert sorted(played)[at] == pytest.approx(sorted(remembered)[at], rel=0.15)


def test_floor_is_a_tenth_of_the_base():
    """A back-off of an hour could come within a second (hypothesis/h#9289), or the floor exceed the base."""
    floors = [floor_seconds(RetryPolicy(base_seconds=base, cap_seconds=3600)) for base in (0.2, 5, 3600)]

    assert floors == [pytest.approx(0.02), 0.5, 360.0]


def test_a_floor_of_zero_gives_the_whole_interval_back():
    """Who wants textbook full jitter could not have it."""
    assert delay_bounds(RetryPolicy(floor_seconds=0), 1).earliest_seconds == 0.0


@pytest.mark.parametrize("jitter", Jitter)
def test_the_same_seed_draws_the_same_delay(jitter):
    """A delay from a hidden source of randomness could not be reproduced."""
    policy = RetryPolicy(jitter=jitter)

    assert draw_delay_seconds(policy, 3, Random(7)) == draw_delay_seconds(policy, 3, Random(7))


# --- after a server's wait


@given(st.floats(0.0, 604_800.0), seeds)
def test_a_delay_after_the_server_is_never_early_and_within_the_spread(wait, seed):
    """A client that comes before the server's time is refused again, or banned."""
    delay = after_server_seconds(wait, Random(seed))

    assert wait <= delay <= wait + server_spread_seconds(wait)


@given(st.floats(1.0, 604_800.0), seeds)
def test_thirty_clients_told_the_same_wait_come_back_apart(wait, seed):
    """They would knock the service over again in the same instant (CERNDocumentServer/cds-videos#854)."""
    random = Random(seed)

    delays = [after_server_seconds(wait, random) for _ in range(30)]

    assert max(delays) - min(delays) >= 0.5 * server_spread_seconds(wait)


def test_thirty_clients_told_five_seconds_come_back_over_more_than_one():
    """They would knock the service over again in the same instant (CERNDocumentServer/cds-videos#854)."""
    random = Random(854)

    delays = [after_server_seconds(5.0, random) for _ in range(30)]

    assert min(delays) >= 5.0
    assert max(delays) - min(delays) >= 1.0
