"""
Whether the owner of a lock is shown dead, for whoever wants to release its lock.

Pure: what was read and asked comes in, what it shows comes out. What could not be found out shows nothing: a worker
that does not answer may be busy, cut off or frozen, and it is a frozen owner that a second one must not meet.

| found | shows |
|---|---|
| the lease is over, and the store was not away | anybody may have the lock by now |
| its process was on this host, and does not exist | it is dead |
| its worker has the task | it lives, whatever else was found |
| its worker, up since before the lock was taken, has neither the task nor its process | it is dead |
| its worker does not have the task, but its process | nothing: a task that is terminated is forgotten before it ends |
| its worker was started after the lock was taken | nothing: the one before it may still be ending its tasks |
| no answer, of the worker or of the broker; another host | nothing |
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from celery_safeguards.clock import to_seconds
from celery_safeguards.locks.store import LockState
from celery_safeguards.printable import duration

_CLOSE_SECONDS = 2.0
"""A worker tells its age in whole seconds, and two clocks are compared."""


class Shows(StrEnum):
    """What one finding shows of the owner."""

    DEAD = "dead"
    ALIVE = "alive"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found out, or could not be, in words."""

    shows: Shows
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """
    What a worker says of a task.

    Attributes:
        has_task: whether it runs it, or has received it.
        up_seconds: for how long it has been up.
        has_process: whether the owner's pid is one of its pool's children.

    """

    has_task: bool
    up_seconds: float
    has_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    What was found out about an owner.

    Attributes:
        now_us: the store's time when the lock was read.
        takeover_from_us: when the store lets anybody take a lapsed lock.
        host: the name of this host.
        pid_space: which processes can be seen from here.
        pid_exists: whether the owner's pid does, as seen from here.
        worker: what its worker answers; None: it did not.
        broker_answers: whether the broker does, by which a worker is asked.

    """

    now_us: int
    takeover_from_us: int
    host: str
    pid_space: str
    pid_exists: bool
    worker: WorkerAnswer | None
    broker_answers: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """All findings about one owner."""

    findings: tuple[Finding, ...]

    @property
    def is_dead(self) -> bool:
        """Whether the owner is shown dead: by something, and by nothing alive."""
        shown = {each.shows for each in self.findings}
        return Shows.DEAD in shown and Shows.ALIVE not in shown


def evidence_of(state: LockState, found: Found) -> Evidence:
    """Return what is shown of the owner of a lock that somebody holds."""
    if found.now_us >= max(state.lease_until_us, found.takeover_from_us):
        # Decisive, whatever else is found: whoever asks for the lock gets it.
        over_seconds = to_seconds(found.now_us - state.lease_until_us)
        return Evidence((Finding(Shows.DEAD, f"its lease is over since {duration(over_seconds)}"),))
    return Evidence((_of_lease(state, found), _of_process(state, found), *_of_worker(state, found)))


def _of_lease(state: LockState, found: Found) -> Finding:
    if state.is_held(found.now_us):
        left_seconds = to_seconds(state.lease_until_us - found.now_us)
        return Finding(Shows.NOTHING, f"its lease runs for {duration(left_seconds)}")
    left_seconds = to_seconds(found.takeover_from_us - found.now_us)
    why = "the store was away, and its owner may renew it"
    return Finding(Shows.NOTHING, f"its lease is over, but {why}: wait for {duration(left_seconds)}")


def _of_process(state: LockState, found: Found) -> Finding:
    pid, host = state.holder.get("pid"), state.holder.get("host")
    if not pid or host != found.host:
        return Finding(Shows.NOTHING, f"it is on host {host or 'unknown'}, and this is {found.host}")
    if state.holder.get("pid_space") != found.pid_space:
        return Finding(Shows.NOTHING, f"it is on this host, but its process {pid} cannot be seen from this container")
    if found.pid_exists:
        return Finding(Shows.NOTHING, f"process {pid} exists on this host; perhaps it is another one by now")
    return Finding(Shows.DEAD, f"process {pid} does not exist on this host")


def _of_worker(state: LockState, found: Found) -> Iterator[Finding]:
    worker, task_id = state.holder.get("worker"), state.holder.get("task_id")
    if not worker or not task_id:
        yield Finding(Shows.NOTHING, "it is no task of a worker that could be asked")
    elif not found.broker_answers:
        yield Finding(Shows.NOTHING, f"the broker does not answer, so worker {worker} cannot be asked: it is not known")
    elif found.worker is None:
        yield Finding(Shows.NOTHING, f"worker {worker} does not answer, which is unknown, not dead")
    elif found.worker.has_task:
        yield Finding(Shows.ALIVE, f"worker {worker} has task {task_id}")
    elif found.worker.up_seconds < to_seconds(found.now_us - state.since_us) + _CLOSE_SECONDS:
        why = "was started after the lock was taken: the one before it may still be ending its tasks"
        yield Finding(Shows.NOTHING, f"worker {worker} does not have task {task_id}, but {why}")
    elif found.worker.has_process:
        why = f"still has its process {state.holder.get('pid')}, in which it may be ending"
        yield Finding(Shows.NOTHING, f"worker {worker} does not have task {task_id} any more, but {why}")
    else:
        yield Finding(Shows.DEAD, f"worker {worker} answers, and does not have task {task_id} any more")
