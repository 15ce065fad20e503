from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.retry.backoff import (
    after_server_seconds,
    backoff_ceiling_seconds,
    full_jitter_seconds,
    server_spread_seconds,
)
from celery_safeguards.retry.policy import RetryPolicy


@st.composite
def policies(draw):
    base_seconds = draw(st.floats(0.001, 1e4))
    return RetryPolicy(
        base_seconds=base_seconds,
        factor=draw(st.floats(1.0, 100.0) | st.integers(1, 100)),
        cap_seconds=draw(st.floats(base_seconds, 1e6)),
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


@given(st.floats(0.0, 1e6), seeds)
def test_full_jitter_stays_within_zero_and_the_ceiling(ceiling, seed):
    """A delay above the cap would outlive the visibility timeout it was checked against."""
    delay = full_jitter_seconds(ceiling, Random(seed))

    assert 0.0 <= delay <= ceiling


@given(seeds)
def test_a_hundred_delays_are_spread_over_the_whole_interval(seed):
    """Tasks that failed together would come back together."""
    random = Random(seed)

    delays = [full_jitter_seconds(100.0, random) for _ in range(100)]

    assert max(delays) - min(delays) > 60.0
    assert len({int(delay // 10) for delay in delays}) >= 6


def test_the_same_seed_draws_the_same_delay():
    """A delay from a hidden source of randomness could not be reproduced."""
    assert full_jitter_seconds(300.0, Random(7)) == full_jitter_seconds(300.0, Random(7))


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
