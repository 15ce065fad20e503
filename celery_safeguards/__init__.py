"""Celery tasks that survive duplicates, dead workers and failing dependencies."""

from celery_safeguards.holding import hold, hold_async
from celery_safeguards.ledger.decide import OnDead, OnUnknown
from celery_safeguards.locks.fencing import fenced_enter, fenced_set
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline.safe import Safe, current_safe
from celery_safeguards.policy import (
    CannotTell,
    DidNotHappen,
    EntityLock,
    Happened,
    Idempotent,
    OnStoreDown,
    Safeguards,
    Verify,
)
from celery_safeguards.retry.backoff import Jitter
from celery_safeguards.retry.policy import RetryOverride, RetryPolicy
from celery_safeguards.retry.rules import RetryRule
from celery_safeguards.retry.schedule import preview_schedule
from celery_safeguards.task import SafeTask

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - by what they are for
    # what a task is
    "SafeTask",
    "Safe",
    "current_safe",
    # what a task asks for
    "Safeguards",
    "Idempotent",
    "EntityLock",
    "RetryPolicy",
    "RetryRule",
    "RetryOverride",
    "Jitter",
    "Verify",
    "OnUnknown",
    "OnDead",
    "OnStoreDown",
    # what a verify function answers
    "Happened",
    "DidNotHappen",
    "CannotTell",
    # locks outside tasks, and writes that a late owner cannot make
    "hold",
    "hold_async",
    "fenced_enter",
    "fenced_set",
    # what a task's retries will be
    "preview_schedule",
    # the closed lists
    "Outcome",
    "FailureKind",
]
