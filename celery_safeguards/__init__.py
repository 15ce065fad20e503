"""Celery tasks that survive duplicates, dead workers and failing dependencies."""

from celery_safeguards.ledger.decide import OnDead, OnUnknown
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.pipeline.safe import Safe, current_safe
from celery_safeguards.policy import (
    CannotTell,
    DidNotHappen,
    Happened,
    Idempotent,
    OnStoreDown,
    Safeguards,
    Verify,
)
from celery_safeguards.retry.policy import RetryPolicy
from celery_safeguards.task import SafeTask

__version__ = "0.1.0"

__all__ = [
    "CannotTell",
    "DidNotHappen",
    "FailureKind",
    # what a verify function answers
    "Happened",
    "Idempotent",
    "OnDead",
    "OnStoreDown",
    "OnUnknown",
    # the closed lists
    "Outcome",
    "RetryPolicy",
    "Safe",
    # what a task is
    "SafeTask",
    # what a task asks for
    "Safeguards",
    "Verify",
    "current_safe",
]
