"""What can be found out from here about a lock's owner: its process, if it was on this host, and its worker's word."""

import os
from typing import Any

from kombu.exceptions import OperationalError

from celery_safeguards._names import host_name, pid_space
from celery_safeguards.locks.evidence import Found, WorkerAnswer
from celery_safeguards.locks.store import LockState
from celery_safeguards.wiring import Wiring

ANSWER_SECONDS = 1.0


def find_out(app: Any, name: str) -> tuple[LockState, Found]:
    """Return how a lock stands, and what is known of its owner; takes two seconds where a worker is to be asked."""
    wiring = Wiring.of(app)
    # Being heard comes first: whoever is first after an outage is told that nobody takes a lapsed lock for one lease.
    wiring.locks.renew([])
    state, now_us = wiring.locks.read(name)
    takeover_from_us = wiring.admission.view().takeover_from_us
    worker, task_id = str(state.holder.get("worker") or ""), str(state.holder.get("task_id") or "")
    is_to_be_asked = state.owner and worker and task_id and now_us < max(state.lease_until_us, takeover_from_us)
    return state, Found(
        now_us=now_us,
        takeover_from_us=takeover_from_us,
        host=host_name(),
        pid_space=pid_space(),
        pid_exists=_exists(state.holder.get("pid")),
        worker=ask_worker(app, worker, task_id, state.holder.get("pid")) if is_to_be_asked else None,
    )


def ask_worker(app: Any, worker: str, task_id: str, pid: int | None = None) -> WorkerAnswer | None:
    """
    Ask a worker for a task and the process that ran it; None: it did not answer, or could not be asked.

    Not by `inspect active`: the child takes its lock before the main process reads that the task was accepted. And all
    answers are waited for: of two workers of one name, which Celery only warns of, either may have it.
    """
    with app.connection_for_write() as connection:
        refused = (*connection.connection_errors, *connection.channel_errors, OperationalError, OSError)
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=ANSWER_SECONDS)
            tasks = _ask(app, connection, worker, "query_task", {"ids": [task_id]})
            stats = _ask(app, connection, worker, "stats", {})
        except refused:
            return None
    ups = [each["uptime"] for each in stats if isinstance(each.get("uptime"), int | float)]
    if not tasks or not ups or any("error" in each for each in tasks):
        return None
    return WorkerAnswer(
        has_task=any(task_id in each for each in tasks),
        up_seconds=min(ups),
        has_process=any(pid in ((each.get("pool") or {}).get("processes") or ()) for each in stats),
    )


def _ask(app: Any, connection: Any, worker: str, command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    replies = app.control.broadcast(
        command,
        arguments=arguments,
        destination=[worker],
        connection=connection,
        reply=True,
        timeout=ANSWER_SECONDS,
    )
    return [answer for reply in replies or () for answer in reply.values() if isinstance(answer, dict)]


def _exists(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
