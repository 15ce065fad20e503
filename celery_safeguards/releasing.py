"""
The release of a lock whose owner is gone: what can be found out about the owner, and the release itself.

    look(app, name)                 a `Look`: how the lock stands, who waits, and what shows that its owner is dead
    release(app, look, by, reason)  this owner's claim at this fence, and nobody else's; a line in the log

The command line and the admin both go this way and say the same words. What shows that an owner is dead is decided in
`locks.evidence`; here it is gathered: from the store, from the processes of this host, and from the owner's worker.

A look is over in time, also for a web request: the store's answers have their own limit, and all that is asked of the
broker is over within `BROKER_SECONDS`. What did not answer by then is unknown, and shows nothing.

Not covered: what `_bounded` does not bound, the name lookup of the broker's host and the sockets of other transports
than Redis and AMQP. And of two people who release at the same instant, both may be told that they did.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kombu.exceptions import OperationalError

from celery_safeguards._bounded import bound_connection
from celery_safeguards._names import host_name, pid_space
from celery_safeguards._publishing import Publishing, publish_under_way
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.locks.evidence import Evidence, Found, WorkerAnswer, evidence_of
from celery_safeguards.locks.shown import who
from celery_safeguards.locks.store import HeldLock, LockAsk, LockState, Waiting, lost
from celery_safeguards.printable import clean
from celery_safeguards.wiring import Wiring

logger = logging.getLogger("celery_safeguards")
ANSWER_SECONDS = 1.0
"""For each of two questions: all of a worker's answers are waited for."""

BROKER_SECONDS = 4.0
"""For both of them, connecting included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A lock, and what was found out about its owner."""

    state: LockState
    found: Found
    waiting: tuple[Waiting, ...]

    @property
    def evidence(self) -> Evidence:
        """What is shown of the owner; of a lock that somebody holds."""
        return evidence_of(self.state, self.found)

    @property
    def findings(self) -> list[str]:
        """What was found, each with what it shows."""
        return [f"{each.shows}: {each.text}" for each in self.evidence.findings]

    @property
    def how(self) -> str:
        """By what right it is released, in words."""
        return "its owner shown dead" if self.evidence.is_dead else "OVERRIDE, its owner not shown dead"

    @property
    def mark(self) -> str:
        """A text that tells this owner at this fence from every other one."""
        told = json.dumps([self.state.name, self.state.owner, self.state.fence])
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def released(self) -> str:
        """That it is released, in words."""
        return f"lock {self.state.name} of {who(self.state.holder)} is released"

    @property
    def not_released(self) -> str:
        """That it is not, in words."""
        return f"lock {self.state.name} is not released: its owner, {who(self.state.holder)}, is not shown dead"


def look(app: Any, name: str) -> Look:
    """Return how a lock stands, and what is known of its owner; takes two seconds where a worker is to be asked."""
    wiring = Wiring.of(app)
    # Being heard comes first: whoever is first after an outage is told that nobody takes a lapsed lock for one lease.
    wiring.locks.renew([])
    state, now_us = wiring.locks.read(name)
    takeover_from_us = wiring.admission.view().takeover_from_us
    worker, task_id = str(state.holder.get("worker") or ""), str(state.holder.get("task_id") or "")
    answer, broker_answers = None, True
    if state.owner and worker and task_id and now_us < max(state.lease_until_us, takeover_from_us):
        try:
            answer = ask_worker(app, worker, task_id, state.holder.get("pid"))
        except StoreUnavailable as error:
            logger.info("%s", error)
            broker_answers = False
    found = Found(
        now_us=now_us,
        takeover_from_us=takeover_from_us,
        host=host_name(),
        pid_space=pid_space(),
        pid_exists=_exists(state.holder.get("pid")),
        worker=answer,
        broker_answers=broker_answers,
    )
    return Look(state=state, found=found, waiting=tuple(wiring.locks.waiting(name)))


def release(app: Any, seen: Look, *, by: str, reason: str | None) -> None:
    """
    Release the lock of the owner that was looked at; whether it may be is the caller's to decide.

    Raises:
        LockLost: it is released by now, or another owner's, and was left alone.

    """
    locks, state = Wiring.of(app).locks, seen.state
    held = HeldLock(ask=LockAsk(name=state.name, owner=state.owner, lease_seconds=1.0), fence=state.fence)
    now, _ = locks.read(state.name)
    # A release that is sent twice is no error to the store: who comes second would be told that he did it.
    if (now.owner, now.fence) != (state.owner, state.fence):
        raise lost(held, now)
    locks.release(held)
    _log(seen, by, reason)


def _log(seen: Look, by: str, reason: str | None) -> None:
    state = seen.state
    message = "lock %s at fence %s released by %s, %s (reason: %s); it was held by %s (%s)"
    known = "; ".join(seen.findings)
    words = (state.name, state.fence, by, seen.how, reason or "none given", who(state.holder), known)
    logger.warning(message, *(clean(word) for word in words))


def ask_worker(app: Any, worker: str, task_id: str, pid: int | None = None) -> WorkerAnswer | None:
    """
    Ask a worker for a task and the process that ran it; None: it did not answer.

    Not by `inspect active`: the child takes its lock before the main process reads that the task was accepted. And all
    answers are waited for: of two workers of one name, which Celery only warns of, either may have it.

    Raises:
        StoreUnavailable: the broker did not answer.

    """
    with _broker(app) as connection:
        tasks = _ask(app, connection, worker, "query_task", {"ids": [task_id]})
        stats = _ask(app, connection, worker, "stats", {})
    ups = [each["uptime"] for each in stats if isinstance(each.get("uptime"), int | float)]
    if not tasks or not ups or any("error" in each for each in tasks):
        return None
    return WorkerAnswer(
        has_task=any(task_id in each for each in tasks),
        up_seconds=min(ups),
        has_process=any(pid in ((each.get("pool") or {}).get("processes") or ()) for each in stats),
    )


@contextmanager
def _broker(app: Any) -> Iterator[Any]:
    """Connect to the broker; all of it, the closing too, is over in time."""
    clock = Wiring.of(app).clock
    ends = clock.monotonic_seconds() + BROKER_SECONDS
    connection = bound_connection(app.connection_for_write())
    away = (*connection.connection_errors, *connection.channel_errors, OperationalError, OSError)
    try:
        with publish_under_way(Publishing(clock, BROKER_SECONDS, ends, "a question to a worker")), connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=ANSWER_SECONDS)
            yield connection
    except away as error:
        raise StoreUnavailable(f"broker at {connection.as_uri()}: {error}") from error


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
