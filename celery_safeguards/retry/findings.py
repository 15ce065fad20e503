"""
What is odd in a task's schedule: it can hold, but hardly as it was meant. What can never hold is refused at import.

| id | finding |
|---|---|
| SG110 | a delay is longer than the broker leaves a message unacknowledged: it is delivered again while it waits |
| SG111 | `total_seconds` is below a first delay: whether there is any retry is left to chance |
| SG112 | `attempts` counts starts that `total_seconds` never leaves room for |

SG110 rests on how the stock transports wait: a message with a countdown is taken from the queue at once, held by a
worker, and counts as unacknowledged from then on (celery/kombu#337). Other transports have no such timeout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from celery_safeguards.findings import Finding
from celery_safeguards.retry.policy import RetryPolicy
from celery_safeguards.retry.schedule import Case, PlannedStart, cases_of, planned_starts

_MOST_LOOKED_AT = 10_000


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a message may wait for its countdown: the visibility timeout without the time that its body may take."""

    visibility_timeout_seconds: float
    time_limit_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The longest countdown after which the body can still end in time."""
        return self.visibility_timeout_seconds - self.time_limit_seconds


def budget_of(task: Any, timeout_seconds: float | None) -> Budget | None:
    """Return a task's budget under its broker's visibility timeout; None where there is no such timeout."""
    if timeout_seconds is None:
        return None
    return Budget(timeout_seconds, float(task.time_limit or task.app.conf.task_time_limit or 0.0))


def schedule_findings(name: str, policy: RetryPolicy | None, budget: Budget | None) -> tuple[Finding, ...]:
    """
    Return what is odd in a policy's schedules.

    Args:
        name: the task's.
        policy: None has no schedule, and so no findings.
        budget: None where the broker has no visibility timeout.

    """
    return tuple(
        each for case, names in cases_of(policy).items() for each in _of_case(_where(name, names), case, budget)
    )


def _where(name: str, failures: tuple[str, ...]) -> str:
    return f"{name}, {', '.join(failures)}" if failures else name


def _of_case(where: str, case: Case, budget: Budget | None) -> Iterator[Finding]:
    policy = case.policy
    # Far more than anyone waits for; a policy that retries for ever must not hold a worker up.
    starts = list(islice(planned_starts(case), _MOST_LOOKED_AT))
    if policy is None or not starts:
        return
    longest = _longest_of(policy, starts)
    if budget is not None and longest > budget.seconds:
        limit = f" beside its time limit of {budget.time_limit_seconds:g} s" if budget.time_limit_seconds else ""
        yield Finding(
            "SG110",
            f"{where}: a delay may be {longest:g} s, and the visibility timeout of "
            f"{budget.visibility_timeout_seconds:g} s leaves {max(0.0, budget.seconds):g} s{limit}; lower cap_seconds, "
            "or raise visibility_timeout in broker_transport_options for all workers",
        )
    total = policy.total_seconds
    first = starts[0].delay.latest_seconds
    if total is not None and first > total:
        yield Finding(
            "SG111",
            f"{where}: total_seconds={total:g} is below the first delay of up to {first:g} s; "
            f"raise total_seconds, or lower base_seconds={policy.base_seconds:g}",
        )
    last = starts[-1].attempt
    if total is not None and last < min(policy.attempts, _MOST_LOOKED_AT + 1):
        yield Finding(
            "SG112",
            f"{where}: attempts={policy.attempts}, but total_seconds={total:g} is over after "
            f"attempt {last} even if every delay is the shortest; lower attempts, or raise total_seconds",
        )


def longest_delay_seconds(policy: RetryPolicy | None) -> float:
    """Return the longest delay between two attempts under a policy, whatever fails; 0: there is no retry."""
    return max(
        (
            _longest_of(case.policy, starts)
            for case in cases_of(policy)
            if case.policy is not None and (starts := list(islice(planned_starts(case), _MOST_LOOKED_AT)))
        ),
        default=0.0,
    )


def all_delays_seconds(policy: RetryPolicy | None) -> float:
    """Return how long after its first failure a task may start for the last time; 0: there is no retry."""
    starts = (list(islice(planned_starts(case), _MOST_LOOKED_AT)) for case in cases_of(policy))
    return max((each[-1].latest_seconds for each in starts if each), default=0.0)


def _longest_of(policy: RetryPolicy, starts: list[PlannedStart]) -> float:
    longest = starts[-1].delay.latest_seconds
    return longest if policy.total_seconds is None else min(longest, policy.total_seconds)
