"""All findings of an app that need no connection."""

from collections.abc import Iterator
from typing import Any

from celery_safeguards.diagnose.looks import further_findings
from celery_safeguards.diagnose.tasks import atomic_stores, declaration_findings, guarded, short_locks
from celery_safeguards.findings import Finding
from celery_safeguards.retry.findings import budget_of, schedule_findings, visibility_timeout_seconds


def examine(app: Any) -> list[Finding]:
    """
    Return what a person should look at before a worker of this app runs; no store is asked.

    Raises:
        ConfigurationError: it could not run.

    """
    atomic_stores(app)
    return [*declaration_findings(app), *_odd_schedules(app), *short_locks(app), *further_findings(app)]


def _odd_schedules(app: Any) -> Iterator[Finding]:
    timeout = visibility_timeout_seconds(app)
    for name, task in guarded(app):
        yield from schedule_findings(name, task.policy.retry, budget_of(task, timeout))
