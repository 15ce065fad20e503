import pytest
from celery import Celery

from celery_safeguards import RetryOverride, RetryPolicy, RetryRule
from celery_safeguards.retry.findings import Budget, budget_of, schedule_findings

HOUR = Budget(3600)


def found(policy, budget=HOUR):
    return [each.id for each in schedule_findings("shop.pay", policy, budget)]


@pytest.mark.parametrize(
    "policy",
    [
        None,
        RetryPolicy(),
        RetryPolicy(attempts=1, total_seconds=0.1),
        RetryPolicy(attempts=20, base_seconds=3600, cap_seconds=3600),
        # The cap is far away, and six attempts never come near it.
        RetryPolicy(attempts=6, cap_seconds=86_400),
        # What would be too long is ruled out by the total time.
        RetryPolicy(attempts=8, cap_seconds=86_400, total_seconds=3600),
        RetryPolicy(attempts=4, total_seconds=5),
        RetryPolicy(attempts=10**9, total_seconds=86_400),
    ],
    ids=["none", "default", "one attempt", "at the budget", "cap unreached", "cut", "time", "for ever"],
)
def test_a_schedule_that_makes_sense_has_no_finding(policy):
    """Findings that cry wolf are switched off, and a strict worker would not start."""
    assert found(policy) == []


def test_a_delay_beyond_the_visibility_timeout_is_found():
    """The waiting message is restored once in each timeout, and all its copies fire at the end (celery/kombu#337)."""
    policy = RetryPolicy(attempts=3, base_seconds=3000, factor=2, cap_seconds=7200)

    (finding,) = schedule_findings("shop.pay", policy, HOUR)

    assert str(finding) == (
        "SG110 redelivered while it waits: shop.pay: a delay may be 6000 s, and the visibility timeout of 3600 s "
        "leaves 3600 s; lower cap_seconds, or raise visibility_timeout in broker_transport_options for all workers"
    )
    assert found(policy, None) == []
    assert found(policy, Budget(6001)) == []


def test_the_bodys_time_limit_comes_off_the_budget():
    """A message that waits for nearly the whole timeout is delivered again while its body runs."""
    policy = RetryPolicy(attempts=2, base_seconds=3590, cap_seconds=3590)

    assert found(policy) == []
    assert found(policy, Budget(3600, time_limit_seconds=60)) == ["SG110"]


@pytest.mark.parametrize(
    ("changes", "failures"),
    [
        ({"by_kind": {"rate_limited": RetryOverride(base_seconds=4000, cap_seconds=4000)}}, "shop.pay, rate_limited:"),
        ({"rules": [RetryRule("sdk.Busy", after_seconds=3000)]}, "shop.pay, sdk.Busy:"),
    ],
    ids=["kind", "rule"],
)
def test_a_kind_and_a_rule_are_looked_at_for_themselves(changes, failures):
    """The general case is fine, and the rate limit is what runs for hours."""
    (finding,) = schedule_findings("shop.pay", RetryPolicy(**changes), HOUR)

    assert finding.id == "SG110"
    assert failures in finding.text


def test_a_total_time_below_the_first_delay_is_found():
    """Whether the task is retried at all would be thrown by dice."""
    policy = RetryPolicy(attempts=2, total_seconds=3)

    (finding,) = schedule_findings("shop.pay", policy, None)

    assert str(finding) == (
        "SG111 perhaps no retry: shop.pay: total_seconds=3 is below the first delay of up to 5 s; raise total_seconds, "
        "or lower base_seconds=5"
    )


def test_attempts_that_no_delay_can_reach_are_found():
    """Somebody would count on ten attempts where there is time for four."""
    policy = RetryPolicy(attempts=10, base_seconds=10, jitter="equal", factor=2, total_seconds=40)

    (finding,) = schedule_findings("shop.pay", policy, None)

    assert str(finding) == (
        "SG112 attempts that never come: shop.pay: attempts=10, but total_seconds=40 is over after attempt 4 even if "
        "every delay is the shortest; lower attempts, or raise total_seconds"
    )


# --- the body's side


@pytest.mark.parametrize(("limit", "default", "seconds"), [(None, None, 3600), (None, 60, 3540), (100, 60, 3500)])
def test_budget_takes_the_tasks_limit_before_the_apps(limit, default, seconds):
    """The limit that ends the body is the task's own, where it has one."""
    app = Celery("findings", broker="memory://", set_as_current=False)
    app.conf.task_time_limit = default

    @app.task(name="shop.pay", shared=False, time_limit=limit)
    def task():
        return None

    assert budget_of(task, 3600.0).seconds == seconds
    assert budget_of(task, None) is None
