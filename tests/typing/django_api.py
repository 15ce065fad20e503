"""
What the Django app adds, as users write it; checked by `mypy --strict` and never run.
"""

from typing import Any, assert_type

from celery import chain, shared_task

from celery_safeguards import EntityLock, Safeguards, hold
from django_celery_safeguards import SafeTask, fenced_enter, fenced_update, publish_on_commit, updated_exactly
from django_celery_safeguards.testing import fresh_store
from tests.typing.api import app

ONE_ROW = Safeguards(repeatable=True, lock=EntityLock("stock:{sku}"), ensure=updated_exactly(1))
COUNTED = ONE_ROW | Safeguards(ensure=updated_exactly(2, of="rows"))


@shared_task(base=SafeTask, bind=True, safeguards=ONE_ROW)  # type: ignore[untyped-decorator]
def count(self: SafeTask, stock: Any, free: int) -> int:
    """Write under the token of the task's lock."""
    if self.safe.lock is None:
        return 0
    assert_type(fenced_enter(stock, self.safe.lock), int)
    return fenced_update(stock, self.safe.lock, fence_field="token", free=free)


def publish(task: SafeTask) -> Any:
    """Publish after COMMIT."""
    task.delay_on_commit(1)
    task.apply_async_on_commit((1,), {"free": 2}, using="default", queue="mail")
    return publish_on_commit(chain(task.s(1), task.s()), using="default")


def charge_in_a_test(task: SafeTask) -> int:
    """Look at the records of one test."""
    with fresh_store("memory://", app=app) as store:
        task.delay(1)
        return len(store.letters.list().letters)


def set_free(stock: Any, free: int) -> int:
    """Write under the token of a lock in plain code."""
    with hold(app, EntityLock("stock:{sku}"), sku="A-1") as lock:
        return fenced_update(stock, lock, free=free)
