from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards import RetryOverride, RetryPolicy, RetryRule, preview_schedule
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry.backoff import Jitter
from celery_safeguards.retry.classify import Failure
from celery_safeguards.retry.decide import Again, decide


def previewed(policy):
    return preview_schedule(SimpleNamespace(name="shop.pay", policy=SimpleNamespace(retry=policy))).schedules


def times(schedule):
    return [(start.attempt, start.earliest_seconds, start.latest_seconds) for start in schedule.starts]


def test_default_policy_ends_within_65_seconds():
    """The schedule in the documentation would not be the one that runs."""
    (schedule,) = previewed(RetryPolicy())

    assert times(schedule) == [(2, 0.5, 5.0), (3, 1.0, 20.0), (4, 1.5, 65.0)]
    assert (schedule.ends, schedule.total_seconds, schedule.failures) == ("attempt 4 of 4", 65.0, ())
    assert all(start.is_certain for start in schedule.starts)


@pytest.mark.parametrize(
    ("policy", "ends"),
    [(None, "no retry policy"), (RetryPolicy(attempts=1), "attempt 1 of 1")],
    ids=["no policy", "one attempt"],
)
def test_work_that_is_not_retried_has_no_starts(policy, ends):
    """Somebody would wait for a retry that never comes."""
    (schedule,) = previewed(policy)

    assert (schedule.starts, schedule.ends, schedule.total_seconds) == ((), ends, 0.0)


def test_total_time_ends_the_schedule_and_says_which_starts_it_may_cost():
    """The number of attempts would be believed where the time is over long before."""
    policy = RetryPolicy(attempts=10, base_seconds=10, factor=1, floor_seconds=5, total_seconds=18)

    (schedule,) = previewed(policy)

    assert times(schedule) == [(2, 5.0, 10.0), (3, 10.0, 18.0), (4, 15.0, 18.0)]
    assert [start.is_certain for start in schedule.starts] == [True, False, False]
    assert schedule.ends == "would begin after total_seconds"


def test_kinds_and_rules_have_schedules_of_their_own_where_they_differ():
    """A preview of the general case would hide that rate limits take hours."""
    policy = RetryPolicy(
        attempts=2,
        base_seconds=1,
        floor_seconds=1,
        rules=[
            RetryRule("sdk.Busy", kind="rate_limited", after_seconds=80),
            RetryRule("sdk.Gone", retryable=False),
            RetryRule("sdk.Broken", kind="data"),
            RetryRule("sdk.Odd", kind="transient"),
            lambda _: None,
        ],
        by_kind={
            "rate_limited": RetryOverride(base_seconds=50, floor_seconds=50),
            "infrastructure": RetryOverride(base_seconds=50, floor_seconds=50),
            "transient": RetryOverride(attempts=2),
        },
    )

    schedules = previewed(policy)

    assert [(each.failures, times(each)) for each in schedules] == [
        ((), [(2, 1.0, 1.0)]),
        (("rate_limited", "infrastructure"), [(2, 50.0, 50.0)]),
        (("sdk.Busy",), [(2, 80.0, 100.0)]),
        (("sdk.Gone", "sdk.Broken"), []),
    ]
    assert schedules[-1].ends == "errors like this are not retried"


def test_a_rule_without_a_hash_does_not_hide_the_schedule():
    """A rule may be any object that can be called."""

    class Unhashable:
        __hash__ = None

        def __call__(self, error):
            return None

    assert len(previewed(RetryPolicy(rules=[Unhashable()]))) == 1


def test_retries_without_an_end_are_cut_short_in_the_preview():
    """A look at the schedule of work that is retried for ever would never come back."""
    (schedule,) = previewed(RetryPolicy(attempts=10**12))

    assert (len(schedule.starts), schedule.ends) == (1000, "later than these 1000 retries, which is all that is shown")


@pytest.mark.parametrize(
    "task", [SimpleNamespace(name="plain"), SimpleNamespace(name="c", policy=None), None, print], ids=str
)
def test_what_is_no_safe_task_is_refused(task):
    """The schedule shown would not be Celery's own, by which it is retried."""
    with pytest.raises(ConfigurationError, match="is no SafeTask"):
        preview_schedule(task)


@given(
    jitter=st.sampled_from(Jitter),
    attempts=st.integers(1, 12),
    base_seconds=st.floats(0.1, 100),
    total_seconds=st.none() | st.floats(100, 1000),
    wait_seconds=st.none() | st.floats(0, 90),
    seed=st.integers(0, 2**32),
)
def test_every_retry_that_is_made_was_previewed(*, jitter, attempts, base_seconds, total_seconds, wait_seconds, seed):
    """People plan by the preview: a retry outside of it is the surprise it is there to prevent."""
    rules = [] if wait_seconds is None else [RetryRule("sdk.Busy", after_seconds=wait_seconds)]
    policy = RetryPolicy(
        attempts=attempts, base_seconds=base_seconds, jitter=jitter, total_seconds=total_seconds, rules=rules
    )
    failure = Failure(FailureKind.TRANSIENT, effect_possible=False, retryable=True, retry_after_seconds=wait_seconds)
    schedule = previewed(policy)[-1]
    random, elapsed, made = Random(seed), 0.0, []

    for attempt in range(1, attempts + 1):
        decision = decide(policy, failure, attempt=attempt, elapsed_seconds=elapsed, random=random)
        if not isinstance(decision, Again):
            break
        elapsed += decision.delay_seconds
        made.append(elapsed)

    assert len(made) <= len(schedule.starts)
    assert len(made) >= sum(start.is_certain for start in schedule.starts)
    for at, start in zip(made, schedule.starts, strict=False):
        assert start.earliest_seconds - 1e-6 <= at <= start.latest_seconds + 1e-6
    if len(made) == len(schedule.starts):
        assert decision.reason == schedule.ends
