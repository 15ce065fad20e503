"""
Lost starts of work that has no key: a message that kills its process again and again must end as a dead letter.

A first delivery costs nothing here. One that the broker marks as redelivered counts its start before the body and
takes it back after any outcome; a first delivery whose child dies is counted by the worker's main process, which sees
it. The mark alone proves nothing, also prefetched messages get it, so only starts without an outcome add up.

Not covered: the first start of a message whose whole worker was killed; such a message is started once more.
"""

import threading
from typing import Protocol

from celery_safeguards._redis import Client, Keys, Script

_STARTS = Script.of("admission/starts.lua")
_KEEP_SECONDS = 604_800


class StartCounter(Protocol):
    """
    Counts starts without an outcome, by task id.

    Every method raises `StoreUnavailable` when the store did not answer; a start may then be counted twice, never lost.
    """

    def begin(self, task_id: str, limit: int) -> int | None:
        """Count a start and return the count, or None if `limit` is reached: then nothing is counted or started."""
        ...

    def end(self, task_id: str) -> None:
        """Forget the count: the start has an outcome."""
        ...

    def undo(self, task_id: str, count: int) -> None:
        """Take back the start that made this count: it was put off. Nothing if another was counted since."""
        ...

    def read(self, task_id: str) -> int:
        """Return the count."""
        ...


class RedisStartCounter:
    """Start counts in Redis, kept for a week."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def begin(self, task_id: str, limit: int) -> int | None:
        """Count a start, unless the limit is reached."""
        count = int(self._run("begin", task_id, limit))
        return count or None

    def end(self, task_id: str) -> None:
        """Forget the count."""
        self._run("end", task_id, 0)

    def undo(self, task_id: str, count: int) -> None:
        """Take back the start that made this count."""
        self._run("undo", task_id, count)

    def read(self, task_id: str) -> int:
        """Return the count."""
        return int(self._run("read", task_id, 0))

    def _run(self, step: str, task_id: str, limit: int) -> int:
        args: list[str | int] = [step, limit, _KEEP_SECONDS]
        return int(self._client.run(_STARTS, [self._keys.starts(task_id)], args))


class MemoryStartCounter:
    """Start counts of one process."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin(self, task_id: str, limit: int) -> int | None:
        """Count a start, unless the limit is reached."""
        with self._lock:
            count = self._counts.get(task_id, 0)
            if count >= limit:
                return None
            self._counts[task_id] = count + 1
            return count + 1

    def end(self, task_id: str) -> None:
        """Forget the count."""
        with self._lock:
            self._counts.pop(task_id, None)

    def undo(self, task_id: str, count: int) -> None:
        """Take back the start that made this count."""
        with self._lock:
            if self._counts.get(task_id) == count:
                self._counts[task_id] = count - 1

    def read(self, task_id: str) -> int:
        """Return the count."""
        return self._counts.get(task_id, 0)
