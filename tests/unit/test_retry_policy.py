import dataclasses

import pytest

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.retry.policy import RetryPolicy


def test_defaults_are_four_starts_within_five_minutes_of_delay():
    """Tasks that only say `RetryPolicy()` would get other delays than the documented ones."""
    policy = RetryPolicy()

    assert dataclasses.asdict(policy) == {
        "attempts": 4,
        "base_seconds": 5.0,
        "factor": 3.0,
        "cap_seconds": 300.0,
        "total_seconds": None,
        "retry_unrecognised": True,
    }


def test_nothing_can_be_stored_on_a_policy():
    """Concurrent runs would use each other's delay (celery/celery#10456)."""
    policy = RetryPolicy()

    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.attempts = 9


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": True},
        {"attempts": 2.0},
        {"attempts": "4"},
        {"base_seconds": 0},
        {"base_seconds": -1.0},
        {"base_seconds": True},
        {"base_seconds": "5"},
        {"base_seconds": float("nan")},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": None},
        {"factor": 10**400},
        {"cap_seconds": 4.9},
        {"cap_seconds": float("inf")},
        {"cap_seconds": None},
        {"total_seconds": 0},
        {"total_seconds": False},
        {"total_seconds": float("inf")},
        {"retry_unrecognised": 1},
    ],
    ids=str,
)
def test_a_value_that_cannot_hold_is_refused_by_field_and_value(wrong):
    """A typing slip would be found in production, at the first failure, instead of at import."""
    ((field, value),) = wrong.items()

    with pytest.raises(ConfigurationError, match=rf"RetryPolicy\({field}=") as refused:
        RetryPolicy(**wrong)

    assert f"{field}={value!r}): give " in str(refused.value)


def test_a_cap_below_the_base_names_both():
    """Somebody who sets the base to an hour would silently get five minutes (hypothesis/lms PR#5511)."""
    with pytest.raises(ConfigurationError) as refused:
        RetryPolicy(base_seconds=3600.0)

    assert str(refused.value) == "RetryPolicy(cap_seconds=300.0): give seconds, at least base_seconds=3600.0"
