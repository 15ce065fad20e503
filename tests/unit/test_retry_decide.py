from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry.backoff import server_spread_seconds
from celery_safeguards.retry.classify import Failure
from celery_safeguards.retry.decide import Again, Bury, decide
from celery_safeguards.retry.policy import RetryOverride, RetryPolicy

REFUSED = Failure(FailureKind.TRANSIENT, effect_possible=False, retryable=True)
BAD_DATA = Failure(FailureKind.DATA, effect_possible=False, retryable=False)
UNRECOGNISED = Failure(FailureKind.BUG, effect_possible=True, retryable=True, recognised=False)


def told_to_wait(seconds):
    return Failure(FailureKind.RATE_LIMITED, effect_possible=False, retryable=True, retry_after_seconds=seconds)


def decided(policy, failure, *, attempt=1, elapsed_seconds=0.0, seed=1, asked_delay_seconds=None):
    return decide(
        policy,
        failure,
        attempt=attempt,
        elapsed_seconds=elapsed_seconds,
        random=Random(seed),
        asked_delay_seconds=asked_delay_seconds,
    )


def test_a_transient_failure_is_retried_within_the_first_ceiling():
    """A refused connection would cost the job."""
    decision = decided(RetryPolicy(), REFUSED)

    assert isinstance(decision, Again)
    assert 0.5 <= decision.delay_seconds <= 5.0


def test_the_last_attempt_is_buried_with_its_number():
    """The letter would not say that the attempts were used up."""
    assert decided(RetryPolicy(), REFUSED, attempt=4) == Bury(FailureKind.TRANSIENT, "attempt 4 of 4")


def test_an_attempt_beyond_a_limit_that_was_lowered_is_buried():
    """A deploy that lowers `attempts` would leave messages retrying for ever."""
    assert decided(RetryPolicy(attempts=2), REFUSED, attempt=3) == Bury(FailureKind.TRANSIENT, "attempt 3 of 2")


def test_without_a_policy_nothing_is_retried():
    """A task that never asked for it would run twice."""
    assert decided(None, REFUSED) == Bury(FailureKind.TRANSIENT, "no retry policy")


def test_data_errors_are_buried_at_the_first_attempt():
    """Input that can never pass would be tried for hours (param20h/PDF-Assistant-RAG#664)."""
    assert decided(RetryPolicy(), BAD_DATA) == Bury(FailureKind.DATA, "data errors are not retried")


def test_a_kind_of_two_words_is_readable_in_the_reason():
    """People would read identifiers in the dead letter."""
    lost = Failure(FailureKind.UNKNOWN_OUTCOME, effect_possible=True, retryable=False)

    assert decided(RetryPolicy(), lost) == Bury(FailureKind.UNKNOWN_OUTCOME, "unknown outcome errors are not retried")


def test_unrecognised_errors_are_retried_by_default():
    """An SDK's own connection error would cost the job."""
    assert isinstance(decided(RetryPolicy(), UNRECOGNISED), Again)


def test_unrecognised_errors_are_buried_where_the_policy_says_so():
    """A team that asked for it would see its bugs retried."""
    policy = RetryPolicy(retry_unrecognised=False)

    assert decided(policy, UNRECOGNISED) == Bury(FailureKind.BUG, "unrecognised errors are not retried")


def test_a_retry_that_would_begin_too_late_is_not_made():
    """A job that is worthless after a minute would still take effect later."""
    policy = RetryPolicy(total_seconds=60.0)

    decision = decided(policy, REFUSED, elapsed_seconds=60.5)

    assert decision == Bury(FailureKind.TRANSIENT, "would begin after total_seconds")


def test_a_server_that_asks_for_more_than_the_cap_is_honoured():
    """The client would come before the server's time and be refused again."""
    decision = decided(RetryPolicy(cap_seconds=300.0), told_to_wait(900.0))

    assert isinstance(decision, Again)
    assert decision.delay_seconds >= 900.0


def test_a_server_that_asks_for_more_than_the_total_time_leads_to_a_letter():
    """The task would come early, or begin after its time."""
    decision = decided(RetryPolicy(total_seconds=600.0), told_to_wait(900.0))

    assert decision == Bury(FailureKind.RATE_LIMITED, "would begin after total_seconds")


def test_a_server_that_asks_for_years_leads_to_a_letter():
    """The message would wait beyond its record, or break the date arithmetic of whoever publishes it."""
    decision = decided(RetryPolicy(), told_to_wait(1e300))

    assert decision == Bury(FailureKind.RATE_LIMITED, "asked to wait for 1e+300 seconds")


def test_a_server_that_says_at_once_does_not_switch_the_backoff_off():
    """All attempts would be burned within seconds against an overloaded server."""
    delays = [decided(RetryPolicy(), told_to_wait(0.0), attempt=3, seed=seed).delay_seconds for seed in range(100)]

    assert max(delays) > 30.0


def test_thirty_tasks_told_five_seconds_come_back_late_and_apart():
    """They would knock the service over again in the same instant (CERNDocumentServer/cds-videos#854)."""
    delays = [decided(RetryPolicy(), told_to_wait(5.0), seed=seed).delay_seconds for seed in range(30)]

    assert min(delays) >= 5.0
    assert max(delays) - min(delays) >= 1.0


def test_an_asked_delay_is_used_as_given():
    """`self.retry(countdown=60)` would wait for another time than it says."""
    assert decided(RetryPolicy(), REFUSED, asked_delay_seconds=60.0) == Again(60.0)


def test_an_asked_delay_overrules_the_kind():
    """A body that asks for a retry after a validation error, for a reason of its own, would not get it."""
    assert decided(RetryPolicy(), BAD_DATA, asked_delay_seconds=60.0) == Again(60.0)


def test_an_asked_delay_below_zero_means_at_once():
    """A countdown computed from a date that has passed would be refused."""
    assert decided(RetryPolicy(), REFUSED, asked_delay_seconds=-3.0) == Again(0.0)


def test_an_asked_delay_does_not_overrule_the_attempts():
    """`self.retry()` in a loop would go on for ever."""
    decision = decided(RetryPolicy(), REFUSED, attempt=4, asked_delay_seconds=1.0)

    assert decision == Bury(FailureKind.TRANSIENT, "attempt 4 of 4")


def test_an_asked_delay_does_not_overrule_the_total_time():
    """A manual retry would begin after the task's time."""
    decision = decided(RetryPolicy(total_seconds=60.0), REFUSED, elapsed_seconds=50.0, asked_delay_seconds=11.0)

    assert decision == Bury(FailureKind.TRANSIENT, "would begin after total_seconds")


@pytest.mark.parametrize(
    "mistake",
    [{"attempt": 0}, {"elapsed_seconds": float("nan")}, {"asked_delay_seconds": float("inf")}],
    ids=str,
)
def test_a_mistake_of_the_caller_is_raised(mistake):
    """A zero-based attempt would start every body once too often, unseen."""
    with pytest.raises(ValueError, match="attempts count from 1"):
        decided(RetryPolicy(), REFUSED, **mistake)


failures = st.builds(
    Failure,
    st.sampled_from(FailureKind),
    st.booleans(),
    st.booleans(),
    st.none() | st.floats(0.0, 1e9),
    st.booleans(),
)


@given(
    failure=failures,
    attempts=st.integers(1, 20),
    attempt=st.integers(1, 20),
    elapsed_seconds=st.floats(0.0, 1e5),
    total_seconds=st.none() | st.floats(0.001, 1e5),
    asked_delay_seconds=st.none() | st.floats(-1e5, 1e5),
    seed=st.integers(0, 2**32),
)
def test_no_failure_gets_more_attempts_or_time_than_the_policy_has(
    *, failure, attempts, attempt, elapsed_seconds, total_seconds, asked_delay_seconds, seed
):
    """Some combination of error and hint would retry for ever."""
    policy = RetryPolicy(attempts=attempts, base_seconds=0.001, total_seconds=total_seconds)

    decision = decided(
        policy,
        failure,
        attempt=attempt,
        elapsed_seconds=elapsed_seconds,
        seed=seed,
        asked_delay_seconds=asked_delay_seconds,
    )

    if isinstance(decision, Again):
        assert attempt < attempts
        assert decision.delay_seconds >= 0.0
        assert total_seconds is None or elapsed_seconds + decision.delay_seconds <= total_seconds


@given(st.integers(1, 3), st.none() | st.floats(0.0, 604_800.0), st.integers(0, 2**32))
def test_a_delay_is_never_before_the_server_and_never_beyond_cap_or_spread(attempt, wait, seed):
    """The visibility timeout is checked against the longest delay; one beyond it would be delivered twice."""
    decision = decided(RetryPolicy(), told_to_wait(wait), attempt=attempt, seed=seed)

    longest = 300.0 if wait is None else max(300.0, wait + server_spread_seconds(wait))
    assert (wait or 0.0) <= decision.delay_seconds <= longest


# --- by kind


BY_KIND = RetryPolicy(
    attempts=3,
    by_kind={
        "rate_limited": RetryOverride(attempts=6, base_seconds=100, factor=1, floor_seconds=50),
        "infrastructure": RetryOverride(attempts=1),
    },
)
LIMITED = Failure(FailureKind.RATE_LIMITED, effect_possible=False, retryable=True)
OUT_OF_ORDER = Failure(FailureKind.INFRASTRUCTURE, effect_possible=False, retryable=True)


def test_a_kind_has_its_own_delays():
    """A rate limit would be met again after the seconds that suit a lost connection."""
    limited = [decided(BY_KIND, LIMITED, seed=seed).delay_seconds for seed in range(50)]
    refused = [decided(BY_KIND, REFUSED, seed=seed).delay_seconds for seed in range(50)]

    assert 50 <= min(limited)
    assert max(limited) <= 100
    assert max(refused) <= 5


def test_the_kind_of_the_last_failure_decides_over_the_one_number_of_attempts():
    """Failures that take turns in their kind would each have attempts of their own, and never end."""
    decisions = [decided(BY_KIND, failure, attempt=4) for failure in (LIMITED, REFUSED, OUT_OF_ORDER)]

    assert isinstance(decisions[0], Again)
    assert decisions[1:] == [
        Bury(FailureKind.TRANSIENT, "attempt 4 of 3"),
        Bury(FailureKind.INFRASTRUCTURE, "attempt 4 of 1"),
    ]


def test_a_kind_with_one_attempt_is_buried_at_its_first_failure():
    """There would be no way to say that one kind is never retried."""
    assert decided(BY_KIND, OUT_OF_ORDER) == Bury(FailureKind.INFRASTRUCTURE, "attempt 1 of 1")
