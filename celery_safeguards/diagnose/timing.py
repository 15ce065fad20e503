"""
Whether each guarded task's time fits into what its broker, its worker and its store allow, with the sum shown.

A task without a hard limit, or `max_lease_seconds`, has no sum: that is said once (`SG105`), and its known part is
still compared. Where workers renew what they hold there is nothing to compare.
"""

from collections.abc import Iterator
from typing import Any

from celery_safeguards.delivery.visibility import Hold, rounds_before
from celery_safeguards.diagnose.surroundings import Surroundings
from celery_safeguards.diagnose.tasks import guarded, named, unguarded
from celery_safeguards.findings import Finding
from celery_safeguards.policy import Declared
from celery_safeguards.retry.findings import all_delays_seconds, budget_of, longest_delay_seconds, schedule_findings
from celery_safeguards.wiring import Wiring

_LONG_DELAY_SECONDS = 300.0
_NO_HARD_LIMIT = {"solo", "thread", "eventlet"}
_NO_SOFT_LIMIT = {*_NO_HARD_LIMIT, "gevent"}


def timing_findings(app: Any, around: Surroundings) -> Iterator[Finding]:
    """Return what is odd in the times of an app's guarded tasks."""
    yield from odd_schedules(app, around)
    yield from _held_too_long(app, around)
    yield from _unbounded(app, around)
    yield from _kept_too_short(app, around)
    yield from _void_limits(app, around)
    yield from _delayed_without_limit(app, around)


def odd_schedules(app: Any, around: Surroundings) -> Iterator[Finding]:
    """Return what is odd in the retry schedules of guarded tasks."""
    for name, task in guarded(app):
        yield from schedule_findings(name, task.policy.retry, budget_of(task, schedule_timeout_seconds(around)))


def schedule_timeout_seconds(around: Surroundings) -> float | None:
    """Return the visibility timeout that a schedule alone may exceed; RabbitMQ's is compared with the whole sum."""
    return None if around.visibility.broker == "amqp" else around.patience_seconds


def _held_too_long(app: Any, around: Surroundings) -> Iterator[Finding]:
    patience, rounds = around.patience_seconds, rounds_before(around.prefetch_multiplier)
    late = [(name, task) for name, task in guarded(app) if task.acks_late]
    if patience is None or not late:
        return
    if rounds is None:
        yield Finding(
            "SG108",
            f"worker_prefetch_multiplier=0 takes all that is queued, and each message may wait for longer than the "
            f"{around.patience_name} of {patience:g} s; give 1",
        )
    is_amqp, before = around.visibility.broker == "amqp", _longest_body(app)
    early = _longest_body(app, early_alone=True) if around.takes_ahead else ("", 0.0)
    for name, task in late:
        hold = _hold_of(task, around, rounds or 0, before, early)
        budget = budget_of(task, schedule_timeout_seconds(around))
        if hold.seconds <= patience or any(f.id == "SG110" for f in schedule_findings(name, task.policy.retry, budget)):
            continue
        remedy = (
            "RabbitMQ then closes the channel, and no client can extend it: shorten the sum, or raise consumer_timeout "
            "on the server and safeguards_consumer_timeout_seconds with it"
            if is_amqp
            else "lower worker_prefetch_multiplier, time_limit or cap_seconds, or raise visibility_timeout in "
            "broker_transport_options for all workers"
        )
        limit = f"the {around.patience_name} of {patience:g} s"
        yield Finding("SG150" if is_amqp else "SG104", f"{name}: {hold}, above {limit}; {remedy}")


def _longest_body(app: Any, *, early_alone: bool = False) -> tuple[str, float]:
    """Return which task's body may take longest, and its limit; tasks without one are not known to."""
    every = [(name, task) for name, task in [*guarded(app), *unguarded(app)] if not (early_alone and task.acks_late)]
    limits = {name: limit for name, each in every if (limit := _limit(each)) is not None}
    longest = max(limits, key=lambda name: limits[name], default="")
    return longest, limits.get(longest, 0.0)


def _hold_of(task: Any, around: Surroundings, rounds: int, before: tuple[str, float], early: tuple[str, float]) -> Hold:
    delay = 0.0 if around.are_delays_native else longest_delay_seconds(task.policy.retry)
    if not around.are_delays_native and (task.plan is not None or task.lock_plan is not None):
        delay = max(delay, Wiring.of(task.app).settings.deferral_cap_seconds)
    (body_before, body_before_seconds), (early_body, early_body_seconds) = before, early
    return Hold(
        rounds=rounds,
        body_before_seconds=body_before_seconds,
        body_before=body_before,
        delay_seconds=delay,
        body_seconds=_limit(task),
        early_body_seconds=early_body_seconds,
        early_body=early_body,
    )


def _unbounded(app: Any, around: Surroundings) -> Iterator[Finding]:
    if around.patience_seconds is None:
        return
    names = [name for name, task in guarded(app) if task.acks_late and _limit(task) is None]
    if names:
        yield Finding(
            "SG105",
            f"{named(names)}: neither time_limit nor max_lease_seconds is set, so it cannot be told whether it ends "
            f"within the {around.patience_name} of {around.patience_seconds:g} s; give each a time_limit",
        )


def _kept_too_short(app: Any, around: Surroundings) -> Iterator[Finding]:
    timeout = around.visibility.latest_seconds or 0.0
    for name, task in guarded(app):
        policy = task.policy
        if policy.declared is not Declared.IDEMPOTENT:
            continue
        attempts, limit = policy.retry.most_attempts if policy.retry else 1, _limit(task) or 0.0
        delays, total = all_delays_seconds(policy.retry), policy.retry.total_seconds if policy.retry else None
        work, how = delays + attempts * limit, f"delays of up to {delays:g} s + {attempts} bodies of {limit:g} s"
        # The last body begins before the total time is over.
        if total is not None and total + limit < work:
            work, how = total + limit, f"total_seconds={total:g} + a last body of {limit:g} s"
        if policy.idempotent.retention_seconds < work + timeout:
            yield Finding(
                "SG106",
                f"{name}: retention_seconds={policy.idempotent.retention_seconds:g}, and its message may come back "
                f"after {how} + a redelivery after {timeout:g} s = {work + timeout:g} s, and later if it is "
                "published with an ETA; it would run again",
            )


def _void_limits(app: Any, around: Surroundings) -> Iterator[Finding]:
    hard = [name for name, task in guarded(app) if task.time_limit and around.pool in _NO_HARD_LIMIT]
    soft = [name for name, task in guarded(app) if task.soft_time_limit and around.pool in _NO_SOFT_LIMIT]
    for names, option in ((hard, "time_limit"), (soft, "soft_time_limit")):
        if names:
            yield Finding(
                "SG107",
                f"{named(names)}: {option} does nothing in the pool {around.pool!r}; run it with --pool=prefork, or "
                "have the body look at self.safe.checkpoint(), which raises after the deadline",
            )


def _delayed_without_limit(app: Any, around: Surroundings) -> Iterator[Finding]:
    holds = around.visibility.broker in {"redis", "sqs"} or (
        around.visibility.broker == "amqp" and not around.are_delays_native
    )
    # Celery before 5.6 has no such limit.
    if not holds or "worker_eta_task_limit" not in app.conf or app.conf.worker_eta_task_limit:
        return
    names = [name for name, task in guarded(app) if longest_delay_seconds(task.policy.retry) >= _LONG_DELAY_SECONDS]
    if names:
        yield Finding(
            "SG113",
            f"{named(names)}: a delay may be {_LONG_DELAY_SECONDS:g} s or more, and a worker takes every delayed "
            "message at once and holds it; worker_eta_task_limit bounds how many",
        )


def _limit(task: Any) -> float | None:
    """Return after how long a body has certainly ended."""
    hard = task.time_limit or task.app.conf.task_time_limit
    policy = getattr(task, "policy", None)
    given = hard or (policy.max_lease_seconds if policy is not None else None)
    return float(given) if given else None
