import copy
import dataclasses
import pickle

import pytest

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry.backoff import Jitter
from celery_safeguards.retry.policy import RetryOverride, RetryPolicy
from celery_safeguards.retry.rules import RetryRule


def test_defaults_are_four_starts_within_five_minutes_of_delay():
    """Tasks that only say `RetryPolicy()` would get other delays than the documented ones."""
    policy = RetryPolicy()

    assert dataclasses.asdict(policy) == {
        "attempts": 4,
        "base_seconds": 5.0,
        "factor": 3.0,
        "cap_seconds": 300.0,
        "floor_seconds": None,
        "jitter": "full",
        "jitter_ratio": None,
        "total_seconds": None,
        "retry_unrecognised": True,
        "rules": (),
        "by_kind": {},
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
        {"floor_seconds": -1},
        {"floor_seconds": True},
        {"floor_seconds": 5.1},
        {"jitter_ratio": 0},
        {"jitter_ratio": 1.1},
        {"jitter_ratio": 0.2},
        {"total_seconds": 0},
        {"total_seconds": False},
        {"total_seconds": float("inf")},
        {"total_seconds": 0.4},
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


# --- jitter


@pytest.mark.parametrize("given", ["equal", Jitter.EQUAL])
def test_a_mode_may_be_named_or_taken_from_the_list(given):
    """Two ways to say the same would be two policies."""
    assert RetryPolicy(jitter=given) == RetryPolicy(jitter="equal")


def test_an_unknown_mode_names_the_nearest():
    """A typing slip would silently become full jitter."""
    with pytest.raises(ConfigurationError) as refused:
        RetryPolicy(jitter="decorelated")

    assert str(refused.value) == (
        "RetryPolicy(jitter='decorelated'): choose from ['full', 'equal', 'decorrelated', 'ratio']; "
        "did you mean 'decorrelated'?"
    )


def test_a_ratio_without_its_mode_is_refused():
    """Somebody would believe in ten per cent, and get full jitter."""
    with pytest.raises(ConfigurationError, match="give it with jitter='ratio'"):
        RetryPolicy(jitter_ratio=0.1)

    assert RetryPolicy(jitter="ratio", jitter_ratio=0.1).jitter_ratio == 0.1


def test_decorrelated_jitter_needs_room_to_grow():
    """All delays would be the base: a herd, in the mode that was chosen against it."""
    with pytest.raises(ConfigurationError, match=r"RetryPolicy\(factor=1\): give more than 1"):
        RetryPolicy(jitter="decorrelated", factor=1)


@pytest.mark.parametrize(("jitter", "shortest"), [("full", 0.5), ("equal", 2.5), ("ratio", 4.5), ("decorrelated", 5.0)])
def test_a_total_time_below_the_shortest_first_delay_is_refused(jitter, shortest):
    """No retry could ever be made, whatever `attempts` promises."""
    with pytest.raises(ConfigurationError, match=rf"give at least {shortest:g}, the shortest first delay"):
        RetryPolicy(jitter=jitter, total_seconds=shortest - 0.01)

    assert RetryPolicy(jitter=jitter, total_seconds=shortest).attempts == 4
    assert RetryPolicy(jitter=jitter, total_seconds=shortest - 0.01, attempts=1).attempts == 1


# --- by kind


def test_a_kind_changes_what_it_gives_and_keeps_the_rest():
    """A rate limit's own base would silently bring the default cap, or attempts, with it."""
    policy = RetryPolicy(
        attempts=6,
        factor=2,
        cap_seconds=900,
        total_seconds=7200,
        by_kind={"rate_limited": RetryOverride(attempts=10, base_seconds=30)},
    )

    limited = policy.for_kind(FailureKind.RATE_LIMITED)

    assert limited == RetryPolicy(attempts=10, base_seconds=30, factor=2, cap_seconds=900, total_seconds=7200)
    assert policy.for_kind(FailureKind.TRANSIENT) == RetryPolicy(
        attempts=6, factor=2, cap_seconds=900, total_seconds=7200
    )


def test_a_kinds_jitter_does_not_inherit_the_ratio_of_another_mode():
    """A policy with a ratio could not give one kind another mode."""
    policy = RetryPolicy(jitter="ratio", jitter_ratio=0.3, by_kind={"infrastructure": RetryOverride(jitter="equal")})

    assert policy.for_kind(FailureKind.INFRASTRUCTURE) == RetryPolicy(jitter="equal")


def test_admission_is_held_to_the_largest_cap_of_any_kind():
    """A retry that the kind's own cap allows would be buried when it arrives."""
    by_kind = {"rate_limited": RetryOverride(attempts=10), "infrastructure": RetryOverride(base_seconds=1)}

    assert RetryPolicy(attempts=4, by_kind=by_kind).most_attempts == 10
    assert RetryPolicy(attempts=4, by_kind={"rate_limited": RetryOverride(attempts=2)}).most_attempts == 4


def test_policies_with_rules_and_kinds_are_values():
    """Two tasks that share a policy could not be compared, and a policy could not be copied or sent to a child."""
    rule = RetryRule("sdk.Busy", kind="rate_limited")
    first = RetryPolicy(rules=[rule], by_kind={"data": RetryOverride(attempts=1), "bug": RetryOverride(attempts=2)})
    second = RetryPolicy(
        rules=(rule,), by_kind={FailureKind.BUG: RetryOverride(attempts=2), FailureKind.DATA: RetryOverride(attempts=1)}
    )

    assert (first, hash(first)) == (second, hash(second))
    assert pickle.loads(pickle.dumps(first)) == first
    assert copy.deepcopy(first) == first
    assert first != RetryPolicy(rules=(rule,))


def test_what_was_given_as_kinds_may_change_afterwards():
    """Tasks would be retried by what somebody did to a dict after their policy was made."""
    given = {"data": RetryOverride(attempts=1)}
    policy = RetryPolicy(by_kind=given)

    given["bug"] = RetryOverride(attempts=9)

    assert policy == RetryPolicy(by_kind={"data": RetryOverride(attempts=1)})
    with pytest.raises(TypeError):
        policy.by_kind["bug"] = RetryOverride(attempts=9)


@pytest.mark.parametrize(
    ("by_kind", "said"),
    [
        ({"rate_limit": RetryOverride(attempts=2)}, "did you mean 'rate_limited'?"),
        ({"rate_limited": {"attempts": 2}}, "give RetryOverride(...), what it changes"),
        ({"rate_limited": RetryPolicy()}, "give RetryOverride(...), what it changes"),
        ([("rate_limited", RetryOverride(attempts=2))], "give {kind: RetryOverride(...)}"),
        (
            {"rate_limited": RetryOverride(base_seconds=600)},
            "RetryPolicy(by_kind={'rate_limited': ...}) makes RetryPolicy(cap_seconds=300.0): give seconds",
        ),
        ({"bug": RetryOverride(factor=1, jitter="decorrelated")}, "makes RetryPolicy(factor=1): give more than 1"),
    ],
    ids=["name", "dict", "policy", "pairs", "cap", "jitter"],
)
def test_kinds_that_cannot_hold_are_refused(by_kind, said):
    """The slip would be found at the first failure of that kind, in production."""
    with pytest.raises(ConfigurationError) as refused:
        RetryPolicy(by_kind=by_kind)

    assert said in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"base_seconds": -1},
        {"factor": 0.9},
        {"cap_seconds": 0},
        {"floor_seconds": -0.1},
        {"jitter": "none"},
        {"jitter_ratio": 2},
        {},
    ],
    ids=str,
)
def test_an_override_that_cannot_hold_is_refused_where_it_is_written(wrong):
    """The error would name the policy that uses it, not the line that is wrong."""
    with pytest.raises(ConfigurationError, match=r"^RetryOverride\("):
        RetryOverride(**wrong)
