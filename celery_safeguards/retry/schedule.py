"""
A task's retries ahead of time: when each further start comes, and where the policy buries.

    first failure ──▶ attempt 2 ──▶ attempt 3 ──▶ …  ──▶ dead letter
    0                 |<- earliest … latest ->|          attempts used up, or total_seconds over

Times are seconds of wall time after the first failure. A body is taken to need no time: what it needs comes on top,
and is counted by `total_seconds`.

Not shown: an attempt that may have had an effect is first answered by `on_unknown`, and may end there; nor what nobody
knows ahead: a server's Retry-After, what a rule's function answers, the countdown of a `self.retry()`, deferrals, the
queue. Failures of several kinds share one attempt number; the times then lie in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry.backoff import Bounds, bounds_with_wait, delay_bounds
from celery_safeguards.retry.policy import RetryPolicy
from celery_safeguards.retry.rules import RetryRule

_MOST_SHOWN = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStart:
    """One further start of the body; all times in seconds."""

    attempt: int
    """2 is the first retry."""

    delay: Bounds
    """Between which delays after the failure before it the policy draws."""

    earliest_seconds: float
    """After the first failure, if every delay is the shortest."""

    latest_seconds: float
    """After the first failure, if every delay is the longest that `total_seconds` allows."""

    is_certain: bool
    """Whether `total_seconds` leaves room for it however long the delays are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What follows a first failure of some kinds, if all attempts fail alike."""

    failures: tuple[str, ...]
    """Kinds, or the classes of a rule; empty: every failure that has no schedule of its own."""

    starts: tuple[PlannedStart, ...]
    """The retries in their order; empty: buried at once."""

    ends: str
    """Why the policy buries then, in the words of the dead letter."""

    @property
    def total_seconds(self) -> float:
        """The longest time from the first failure to the last start; 0: there is no retry."""
        return self.starts[-1].latest_seconds if self.starts else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The schedules of one task: the policy's own first, then those that differ from it."""

    task: str
    schedules: tuple[Schedule, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """What a schedule depends on."""

    policy: RetryPolicy | None
    wait_seconds: float | None = None
    retries: bool = True


def preview_schedule(task: Any) -> Preview:
    """
    Return when a task's retries come, without running anything.

    Args:
        task: a registered `SafeTask`; what `@shared_task` returns will do.

    Raises:
        ConfigurationError: it is no `SafeTask`, so that its retries are Celery's.

    """
    schedules = [_schedule(names, case) for case, names in cases_of(_policy_of(task)).items()]
    return Preview(task=str(task.name), schedules=tuple(schedules))


def cases_of(policy: RetryPolicy | None) -> dict[Case, tuple[str, ...]]:
    """Return the different cases of a policy, each with the failures it is for; the policy's own has no name."""
    if policy is None:
        return {Case(None): ()}
    own = Case(policy.for_kind(None))
    named: dict[Case, list[str]] = {}
    for kind in policy.by_kind:
        named.setdefault(Case(policy.for_kind(FailureKind(kind))), []).append(str(kind))
    for rule in policy.rules:
        # A rule that only names a kind is shown with the kind.
        if isinstance(rule, RetryRule) and (rule.retries is False or rule.after_seconds is not None):
            of_kind = own.policy if rule.kind is None else policy.for_kind(FailureKind(rule.kind))
            case = Case(of_kind, rule.after_seconds) if rule.retries else Case(None, retries=False)
            named.setdefault(case, []).append(rule.named())
    named.pop(own, None)
    return {own: (), **{case: tuple(names) for case, names in named.items()}}


def planned_starts(case: Case) -> Iterator[PlannedStart]:
    """Yield the starts that a case may lead to, and none that `total_seconds` rules out."""
    policy = case.policy
    if policy is None:
        return
    total = policy.total_seconds
    earliest = latest = 0.0
    for failed in range(1, policy.attempts):
        delay = bounds_with_wait(delay_bounds(policy, failed), case.wait_seconds)
        earliest, latest = earliest + delay.earliest_seconds, latest + delay.latest_seconds
        if total is not None and earliest > total:
            return
        yield PlannedStart(
            attempt=failed + 1,
            delay=delay,
            earliest_seconds=earliest,
            latest_seconds=latest if total is None else min(latest, total),
            is_certain=total is None or latest <= total,
        )


def _policy_of(task: Any) -> RetryPolicy | None:
    policy = getattr(task, "policy", None)
    if policy is None or not hasattr(policy, "retry") or getattr(task, "is_built_in", False):
        name = getattr(task, "name", None) or repr(task)
        raise ConfigurationError(f"{name} is no SafeTask: Celery retries it, by its own options")
    retry = policy.retry
    return retry if isinstance(retry, RetryPolicy) else None


def _schedule(names: tuple[str, ...], case: Case) -> Schedule:
    starts, policy = tuple(islice(planned_starts(case), _MOST_SHOWN)), case.policy
    if policy is None:
        ends = "no retry policy" if case.retries else "errors like this are not retried"
    elif len(starts) == _MOST_SHOWN:
        ends = f"later than these {_MOST_SHOWN} retries, which is all that is shown"
    elif len(starts) + 1 < policy.attempts:
        ends = "would begin after total_seconds"
    else:
        ends = f"attempt {policy.attempts} of {policy.attempts}"
    return Schedule(failures=names, starts=starts, ends=ends)
