"""
What a worker says of its own life, in a file that a probe on the same host reads: no broker and no store is asked.

A worker whose process lives may consume nothing: its loop is blocked, its broker is away, or its poll was lost in a
reconnect (celery/celery#8030, celery/celery#8091, celery/celery#9054). A probe that asks it by the broker asks the very
thing that may be broken. So the worker writes when it was last seen to live, and whoever reads judges by the age:

| state | seen | a probe says |
|---|---|---|
| healthy | loop, broker and poll have answered lately | 0 |
| busy | pool `solo`: a body runs in the loop, within its budget | 0 |
| stopping | it was told to end, and lets its bodies: its consumer is closed | 0 |
| silent | the file is old: the process is frozen, or was killed | 1 |
| broker_silent | no round trip to the broker has come back | 1 |
| blocked | the consumer's loop does not turn | 1 |
| deaf | the loop turns and the broker answers, but not to the poll for messages | 1 |

Times are of the monotonic clock, which all processes of a machine share (`CLOCK_MONOTONIC`); a file from before its
last start is told by a time that has not come yet. A worker whose prefetch is used up does not poll, and need not; nor
does one that consumes no queue (`celery control cancel_consumer`).

Not covered: a process that is frozen in pool `solo` while a body runs is told once the body's budget is over.
"""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

_SUFFIX = ".health"


class Health(StrEnum):
    """How a worker is."""

    HEALTHY = "healthy"
    BUSY = "busy"
    STOPPING = "stopping"
    SILENT = "silent"
    BROKER_SILENT = "broker_silent"
    BLOCKED = "blocked"
    DEAF = "deaf"

    @property
    def is_good(self) -> bool:
        """Whether a probe should let the worker live."""
        return self in {Health.HEALTHY, Health.BUSY, Health.STOPPING}


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalSigns:
    """When what of a worker was last seen to live; monotonic seconds."""

    node: str
    namespace: str
    pid: int
    pool: str
    written: float
    loop: float
    """When the consumer's loop last turned."""
    broker: float
    """When a round trip to the broker was last sent that has come back."""
    poll: float | None = None
    """When the broker last answered the poll for messages, or none was due; None: this transport does not tell."""
    busy_until: float | None = None
    """Pool `solo`: when the budget of the body that runs is over."""
    busy_with: str | None = None
    """The task of that body."""
    is_stopping: bool = False
    """It was told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a worker is, and why."""

    signs: VitalSigns
    health: Health
    reason: str
    age_seconds: float
    """Of the oldest of its signs that counts."""


def judge(signs: VitalSigns, now: float, max_age_seconds: float) -> Finding:
    """Return how a worker is at `now`, monotonic seconds, if a sign may be as old as `max_age_seconds`."""

    def is_old(moment: float) -> bool:
        # A time that has not come yet is of before the machine's last start.
        return not 0 <= now - moment <= max_age_seconds

    is_silent, is_blocked = is_old(signs.written), is_old(signs.loop)
    is_busy = signs.busy_until is not None and signs.written <= now < signs.busy_until
    polled = now if signs.poll is None else signs.poll
    oldest = min(signs.written, signs.loop, signs.broker, polled)
    table = (
        # The first that holds; a later row may rest on an earlier one that did not.
        (is_silent and not is_busy, Health.SILENT, signs.written, "has said nothing for {}: frozen or killed"),
        (is_silent, Health.BUSY, signs.loop, "runs {task} in its loop, for {}"),
        (signs.is_stopping, Health.STOPPING, signs.written, "was told to end, and lets its bodies; seen {} ago"),
        (is_old(signs.broker), Health.BROKER_SILENT, signs.broker, "its broker has not answered for {}"),
        (is_blocked and is_busy, Health.BUSY, signs.loop, "runs {task} in its loop, for {}"),
        (is_blocked, Health.BLOCKED, signs.loop, "its consumer's loop has not turned for {}"),
        (is_old(polled), Health.DEAF, polled, "the broker has not answered its poll for messages for {}"),
        (True, Health.HEALTHY, oldest, "loop and broker have answered {} ago"),
    )
    health, since, reason = next((health, since, reason) for holds, health, since, reason in table if holds)
    age_seconds = max(0.0, now - since)
    reason = reason.format(f"{age_seconds:.0f} s", task=signs.busy_with)
    return Finding(signs=signs, health=health, reason=reason, age_seconds=age_seconds)


def default_directory() -> Path:
    """Return where the files of this user's workers are unless a setting says otherwise."""
    return Path(tempfile.gettempdir()) / f"celery-safeguards-{os.getuid()}"


class HealthFiles:
    """
    The files of one host's workers, one for each.

    Args:
        directory: made if it is missing. Defaults to one of this user's in the directory for temporary files, where
            strangers write, too: it is not used if it is theirs, or a link.

    Safe when: read while it is written: a file is replaced as a whole.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()
        self._must_be_ours = directory is None

    def write(self, signs: VitalSigns) -> None:
        """Replace a worker's file. Raises `OSError`, also where the default directory belongs to somebody else."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.directory.lstat()
        if self._must_be_ours and (not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid()):
            raise PermissionError(f"{self.directory} is not a directory of this user's")
        path = self._path(signs.namespace, signs.node)
        temporary = path.with_suffix(f".{signs.pid}.tmp")
        temporary.write_text(json.dumps(asdict(signs)), encoding="ascii")
        temporary.replace(path)

    def remove(self, namespace: str, node: str) -> None:
        """Remove the file of a worker that ends."""
        with suppress(OSError):
            self._path(namespace, node).unlink()

    def read(self, namespace: str, node: str | None = None) -> list[VitalSigns]:
        """Return what the workers of a namespace have said, by name; what is no such file is passed over."""
        found = []
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            signs = _read(path)
            if signs is not None and signs.namespace == namespace and node in {None, signs.node}:
                found.append(signs)
        return sorted(found, key=lambda signs: signs.node)

    def forget_dead(self, namespace: str) -> None:
        """Remove the files of workers that were killed, so that a probe does not complain of them for ever."""
        for signs in self.read(namespace):
            try:
                os.kill(signs.pid, 0)
            except ProcessLookupError:
                self.remove(signs.namespace, signs.node)
            except PermissionError:
                continue  # somebody has the pid by now, and it is none of ours to judge

    def _path(self, namespace: str, node: str) -> Path:
        # A node's name may hold what a file's name may not.
        return self.directory / f"{sha256(f'{namespace} {node}'.encode()).hexdigest()[:32]}{_SUFFIX}"


def _read(path: Path) -> VitalSigns | None:
    try:
        stored: Any = json.loads(path.read_text(encoding="ascii"))
        # A newer version may say more.
        known = {field.name for field in fields(VitalSigns)}
        return VitalSigns(**{name: value for name, value in dict(_mapping(stored)).items() if name in known})
    except (OSError, ValueError, TypeError):
        return None


def _mapping(stored: object) -> Mapping[str, Any]:
    if not isinstance(stored, Mapping):
        raise TypeError("a health file holds an object")
    return stored
