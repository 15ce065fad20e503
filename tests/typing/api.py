"""
The public API as users write it; checked by `mypy --strict` and never run.
"""

from datetime import datetime
from typing import Any, assert_type

import redis
from celery import Celery, shared_task

from celery_safeguards import (
    CannotTell,
    DidNotHappen,
    EntityLock,
    FailureKind,
    Happened,
    Idempotent,
    Jitter,
    OnDead,
    OnStoreDown,
    OnUnknown,
    Outcome,
    RetryOverride,
    RetryPolicy,
    RetryRule,
    Safe,
    Safeguards,
    SafeTask,
    Verify,
    current_safe,
    fenced_enter,
    fenced_set,
    hold,
    hold_async,
    preview_schedule,
)
from celery_safeguards.holding import LockHandle
from celery_safeguards.pipeline.safe import LockView
from celery_safeguards.policy import Busy
from celery_safeguards.retry.schedule import Preview, Schedule

app = Celery("shop", task_cls=SafeTask)
client = redis.Redis()


def find_payment(order_id: int, idempotency_key: str) -> Happened | DidNotHappen | CannotTell:
    """Answer in each of the three ways."""
    if not order_id:
        return CannotTell("no such order")
    return Happened({"key": idempotency_key}) if order_id > 1 else DidNotHappen()


def find_by_number(order_id: int) -> DidNotHappen:
    """A function that knows one answer only fits as well."""
    return DidNotHappen()


def order_is_paid(result: dict[str, Any], order_id: int) -> bool:
    """Check the effect, not the return value."""
    return bool(result) and order_id > 0


VERIFY = Verify(find_payment, after_seconds=30, asks=5)
PAYMENTS = Safeguards(retry=RetryPolicy(attempts=6, base_seconds=5, factor=3, cap_seconds=300, total_seconds=3600))


def meaning_of_gateway_error(error: BaseException) -> RetryRule | None:
    """Answer for some errors, and leave the others to the next rule."""
    return RetryRule(kind="rate_limited", after_seconds=30) if error.args == ("busy",) else None


OVERRIDES = {FailureKind.INFRASTRUCTURE: RetryOverride(jitter="equal", floor_seconds=1)}
EVERY_RETRY: list[RetryPolicy] = [
    RetryPolicy(jitter=Jitter.DECORRELATED, floor_seconds=2),
    RetryPolicy(jitter="ratio", jitter_ratio=0.2),
    RetryPolicy(rules=[RetryRule(KeyError, retryable=False), meaning_of_gateway_error]),
    RetryPolicy(rules=(RetryRule(("sdk.Busy", OSError), kind=FailureKind.RATE_LIMITED, effect_possible=False),)),
    RetryPolicy(by_kind={"rate_limited": RetryOverride(attempts=10, base_seconds=30, factor=2, cap_seconds=900)}),
    RetryPolicy(by_kind=OVERRIDES),
]
CHARGE = PAYMENTS | Safeguards(
    idempotent=Idempotent(
        "payment:{order_id}",
        on_unknown=VERIFY,
        on_dead=OnDead.REFUSE,
        scope="payments",
        fingerprint=("order_id", "amount"),
        retention_seconds=86_400,
        store_result=True,
    ),
    ensure=order_is_paid,
    on_store_down=OnStoreDown.WAIT,
    max_lost_starts=3,
    max_lease_seconds=600,
)
assert_type(CHARGE, Safeguards)

EVERY_ANSWER: list[Safeguards] = [
    Safeguards(idempotent=Idempotent("a:{b}", on_unknown="rerun", on_dead="run")),
    Safeguards(idempotent=Idempotent("a:{b}", on_unknown=OnUnknown.QUARANTINE)),
    Safeguards(idempotent=Idempotent("a:{b}", on_unknown=Verify(find_by_number))),
    Safeguards(repeatable=True, retry=None, on_store_down="run_unprotected"),
    Safeguards(at_most_once=True, ensure=None),
]
EVERY_LOCK: list[EntityLock] = [
    EntityLock("order:{order_id}"),
    EntityLock("order:{order_id}", scope="mail", lease_seconds=30, max_hold_seconds=600),
    EntityLock("order:{order_id}", busy="wait", wait_seconds=5),
    EntityLock("all", busy=Busy.SKIP, skip_result={"skipped": True}),
]
STOCK = Safeguards(repeatable=True, lock=EntityLock("stock:{sku}")) | Safeguards(lock=None)


@app.task(base=SafeTask, bind=True, safeguards=CHARGE)  # type: ignore[untyped-decorator]
def charge(self: SafeTask, order_id: int, amount: int) -> dict[str, Any]:
    """Use what a bound body has."""
    assert_type(self.safe, Safe)
    self.safe.checkpoint()
    if amount < 0:
        raise self.retry(countdown=5, max_retries=2)
    return {"key": self.safe.idempotency_key, "attempt": self.safe.attempt, "id": self.safe.task_id}


@shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True))  # type: ignore[untyped-decorator]
def sync(sku: str) -> str | None:
    """Use what an unbound body has."""
    safe = current_safe()
    assert_type(safe, Safe)
    assert_type(safe.attempt, int)
    assert_type(safe.task_id, str)
    assert_type(safe.idempotency_key, str | None)
    return safe.idempotency_key


class Report(SafeTask):
    """A class-based task."""

    name = "shop.report"
    safeguards = Safeguards(repeatable=True)

    def run(self, day: datetime) -> str:
        """Override the body with a signature of its own."""
        return day.isoformat()


@shared_task(base=SafeTask, bind=True, safeguards=STOCK)  # type: ignore[untyped-decorator]
def count(self: SafeTask, sku: str) -> None:
    """Write under the token of the task's lock."""
    assert_type(self.safe.lock, LockView | None)
    if self.safe.lock is not None:
        assert_type(self.safe.lock.token, int)
        assert_type(self.safe.lock.name, str)
        fenced_enter(client, sku, self.safe.lock.token)


def set_free(sku: str, free: int) -> int:
    """Hold a lock in plain code."""
    with hold(app, EVERY_LOCK[0], sku=sku) as lock:
        assert_type(lock, LockHandle)
        lock.checkpoint()
        fenced_set(client, sku, free, lock.token, ttl_seconds=60)
        return lock.token


async def set_free_async(sku: str, free: int) -> None:
    """Hold a lock in a coroutine."""
    async with hold_async(app, EVERY_LOCK[0], sku=sku) as lock:
        assert_type(lock, LockHandle)
        fenced_set(client, sku, free, lock.token)


def is_over(outcome: Outcome, kind: FailureKind) -> bool:
    """Use the closed lists."""
    return outcome is Outcome.DEAD_LETTERED and not kind.effect_possible


def first_retry_seconds(task: SafeTask) -> float:
    """Look ahead."""
    preview = preview_schedule(task)
    assert_type(preview, Preview)
    assert_type(preview.schedules, tuple[Schedule, ...])
    return preview.schedules[0].starts[0].earliest_seconds
