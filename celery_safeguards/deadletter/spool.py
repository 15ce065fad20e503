"""
Where letters go while their store is down: one file each, moved to the store when it is back.

The promise: what `Spool.write` has returned from is on the disk, whole, and `drain` brings it to the store; nothing
may be acknowledged before one of the two has it.

    write    temporary file → fsync → rename → fsync of the directory
             a crash before the rename leaves a `.tmp`, which is never read: the message was not acknowledged
    drain    read → bury → unlink
             a crash before the unlink: the next drain buries the same letter again, which changes nothing

Two drains at once, in any processes, are harmless for the same reason.

Not covered: a disk that is lost with its host, or a directory in memory. Use one that outlives the container.
"""

import hashlib
import os
import re
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from celery_safeguards.deadletter.letter import Letter, LetterTooNew, LetterUnreadable
from celery_safeguards.deadletter.store import LetterStore
from celery_safeguards.errors import ConfigurationError, StoreUnavailable

_SUFFIX = ".letter"
_MAX_READABLE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """How a drain ended, in files."""

    moved: int
    """The store has their letters now."""

    left: int
    """Still there: the store went down, or they are of a newer version of this package, or not ours to read."""

    bad: int = 0
    """Could not be read, and were renamed to `.bad` for a person to look at."""


class Spool:
    """
    Letters in a directory.

    Args:
        directory: exists, writable, on the same file system throughout, kept across restarts.

    Raises:
        ConfigurationError: the directory is missing or not writable.

    Safe when: shared by several processes.

    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            # Not os.access: it answers for the mode bits, not for a read-only or full disk.
            with tempfile.TemporaryFile(dir=directory) as probe:
                probe.write(b"letter")
        except OSError as error:
            raise ConfigurationError(
                f"safeguards_spool_directory={str(directory)!r}: {error.strerror}; give an existing directory that the "
                f"worker may write to, on a disk that outlives it"
            ) from error

    def write(self, letter: Letter) -> Path:
        """
        Write a letter durably; writing the same burial again replaces the same file.

        Raises:
            StoreUnavailable: the disk did not take it.

        """
        path = self.directory / _file_name(letter)
        temporary = self.directory / f".{uuid.uuid4().hex}.tmp"
        try:
            try:
                _write_durably(temporary, letter.to_json().encode("ascii"))
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync_directory(self.directory)
        except OSError as error:
            raise StoreUnavailable(f"spool {self.directory}: {error}") from error
        return path

    def drain(self, store: LetterStore) -> Drained:
        """
        Bring all letters to the store, the oldest first, until it is down again.

        Safe when: killed at any point; run by several processes at once, which may then count the same file twice.
        """
        moved = left = bad = 0
        waiting = self._waiting()
        for position, path in enumerate(waiting):
            try:
                letter = Letter.from_json(path.read_text(encoding="ascii"))
                store.bury(letter)
                path.unlink(missing_ok=True)
                moved += 1
            except FileNotFoundError:
                continue  # another drain has moved it
            except StoreUnavailable:
                left += len(waiting) - position
                break
            except (LetterTooNew, OSError):
                left += 1
            except (LetterUnreadable, UnicodeDecodeError):
                with suppress(FileNotFoundError):  # another drain has renamed it
                    path.replace(path.with_suffix(".bad"))
                bad += 1
        return Drained(moved=moved, left=left, bad=bad)

    def _waiting(self) -> list[Path]:
        found = []
        for path in self.directory.glob(f"*{_SUFFIX}"):
            try:
                found.append((path.stat().st_mtime_ns, path))
            except FileNotFoundError:
                continue  # another drain has moved it
        return [path for _written, path in sorted(found)]


def bury_somewhere(
    letter: Letter, store: LetterStore | None, spool: Spool | None
) -> Literal["store", "spool", "known"]:
    """
    Bury a letter in the store, or in the spool while the store is down; None: it is known to be.

    Returns:
        Where it is now; `known`: the store had this burial already, so there is nothing new to announce. Only after
        one of these may the message be acknowledged.

    Raises:
        StoreUnavailable: neither has it; leave the message unacknowledged.

    """
    try:
        if store is not None:
            return "store" if store.bury(letter) else "known"
    except StoreUnavailable:
        if spool is None:
            raise
    if spool is None:
        raise StoreUnavailable("the store of letters is away")
    spool.write(letter)
    return "spool"


def _file_name(letter: Letter) -> str:
    """
    Return the name of one burial of one message.

    The digest tells apart what the readable part has lost. The task id is in it, because an unfenced replay that dies
    has its letter's id and burial 0 again: a drain that has read the first file must not unlink the second.
    """
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", letter.id)[:_MAX_READABLE]
    whole = "\0".join((letter.id, str(letter.burial), letter.task_id))
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{readable}.{letter.burial}.{digest}{_SUFFIX}"


def _write_durably(path: Path, content: bytes) -> None:
    # Only the owner may read it: a letter holds a message's arguments.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
