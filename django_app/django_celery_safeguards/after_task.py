"""
What a worker does with database connections after each task.

A body that leaves a transaction open breaks every later task of its process (mozilla/addons-server PR#653): Celery
closes the connection, and Django opens no new one inside an atomic block that nobody will leave.

    t0 a body enters `atomic()` in a generator, or by hand, and never leaves it    t1 Celery closes its connection
    t2 the next task finds a connection that is closed, and so does every other until the process ends

So what is left open is rolled back and thrown away, and the log says which task left it. A guarded body is told before
its success is recorded: its attempt has failed, since what it wrote is not committed. A plain task has its outcome by
then; where that is success, it is one whose rows are gone.

Where tasks run in threads or greenlets the safeguards' own connection is closed as well: there are as many as there are
threads, and an idle one is missing elsewhere. A child of a process pool keeps its one. A web process keeps none for the
question that it asks twice a minute when it publishes, nor does a test that runs tasks eagerly: its runner drops the
database.
"""

import logging
from typing import Any

from celery.signals import after_task_publish, task_postrun, worker_init, worker_process_init
from django.db import DatabaseError, InterfaceError, connections

from celery_safeguards.errors import SafeguardsError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.ensuring import check_bodies
from django_celery_safeguards.connection import close_own_of_this_thread
from django_celery_safeguards.signals import transaction_left_open

logger = logging.getLogger(__name__)
OF_A_BODY = "sg_of_a_body"
"""Marks the block around an atomic body, which ends after it."""
_ONE_THREAD = ("prefork", "solo")


def watch_tasks() -> None:
    """Have every worker of this process look after each task, and other processes close our own connection."""
    task_postrun.connect(_close_own_of_eager, dispatch_uid=f"{__name__}.eager")
    after_task_publish.connect(_close_own_of_publisher, dispatch_uid=f"{__name__}.publisher")
    worker_init.connect(_on_worker, dispatch_uid=__name__)
    # A child that was not forked has set Django up by itself.
    worker_process_init.connect(_on_child, dispatch_uid=__name__)


def _on_worker(sender: Any = None, **_: Any) -> None:
    after_task_publish.disconnect(dispatch_uid=f"{__name__}.publisher")
    _watch_bodies()
    if not _name_of(getattr(sender, "pool_cls", "")).endswith(_ONE_THREAD):
        task_postrun.connect(_close_own, dispatch_uid=f"{__name__}.own")


def _on_child(**_: Any) -> None:
    after_task_publish.disconnect(dispatch_uid=f"{__name__}.publisher")
    _watch_bodies()


def _watch_bodies() -> None:
    check_bodies(refuse_what_is_left)
    task_postrun.connect(_roll_back_what_is_left, dispatch_uid=f"{__name__}.left")


class TransactionLeftOpen(SafeguardsError):
    """Raised after a guarded body that has left a transaction open: what it wrote there is not committed."""

    sg_failure_kind = FailureKind.BUG


def refuse_what_is_left(task: Any, request: Any) -> None:
    """
    Roll back what a body has left open, and fail it.

    Raises:
        TransactionLeftOpen: names the database.

    """
    left = [] if request.is_eager else _roll_back(task, request.id)
    if left:
        raise TransactionLeftOpen("the body has left " + ", ".join(left))


def _name_of(pool: Any) -> str:
    return pool if isinstance(pool, str) else str(pool.__module__)


def _roll_back_what_is_left(sender: Any = None, task_id: str | None = None, **_: Any) -> None:
    if sender is not None and not sender.request.is_eager:
        _roll_back(sender, task_id)


def _roll_back(task: Any, task_id: str | None) -> list[str]:
    """Throw away what is left open, tell of it, and return it in words."""
    left = []
    for connection in connections.all(initialized_only=True):
        state = _left_in(connection)
        if state is None:
            continue
        try:
            connection.close()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("database %r could not be closed: %s", connection.alias, error)
        # Closed, it would still count as inside its atomic block. The next task gets another.
        del connections[connection.alias]
        logger.error(
            "%s[%s] left database %r in %s: what it had not committed is rolled back",
            task.name,
            task_id,
            connection.alias,
            state,
        )
        transaction_left_open.send(task, task_id=task_id, alias=connection.alias, state=state)
        left.append(f"database {connection.alias!r} in {state}")
    return left


def _left_in(connection: Any) -> str | None:
    """Return in words why the next task could not use a connection; None: it can."""
    if connection.in_atomic_block:
        blocks = connection.atomic_blocks
        # A test's own, around all that it does.
        is_a_tests = any(getattr(block, "_from_testcase", False) for block in blocks)
        is_a_bodys = len(blocks) == 1 and hasattr(blocks[0], OF_A_BODY)
        return None if is_a_tests or is_a_bodys else "an atomic block"
    raw = connection.connection
    if raw is None:
        return None
    if not connection.autocommit and connection.settings_dict["AUTOCOMMIT"]:
        return "manual transaction management"
    if connection.vendor == "sqlite":
        return "a transaction" if raw.in_transaction else None
    if connection.vendor == "postgresql" and not raw.closed and raw.info.transaction_status:
        return "a transaction"
    return None


def _close_own(sender: Any = None, **_: Any) -> None:
    if sender is not None and not sender.request.is_eager:
        close_own_of_this_thread()


def _close_own_of_eager(sender: Any = None, **_: Any) -> None:
    if sender is not None and sender.request.is_eager:
        close_own_of_this_thread()


def _close_own_of_publisher(**_: Any) -> None:
    close_own_of_this_thread()
