"""
Redis: one client for each process, scripts from `.lua` files, one builder of keys.

| key | type | holds | expires |
|---|---|---|---|
| `{sg:<ns>:0}:meta:v1` | hash | epoch, when it was born, pulse, takeover pause | never |
| `{sg:<ns>:0}:record:v1:<scope>#<key>` | string | one idempotency record | retention |
| `{sg:<ns>:0}:lock:v1:<name>` | string | one lock: holder, fence, who is next | a day after its last use |
| `{sg:<ns>:0}:waiting:v1:<name>` | hash | who waits for a lock, since when | with the last who waits |
| `{sg:<ns>:0}:wake:v1:<owner>` | list | the word that wakes one who waits | seconds |
| `{sg:<ns>:0}:wake:v1:<owner>:freed` | string | the fence that an owner released, for its second try | seconds |
| `{sg:<ns>:0}:starts:v1:<task id>` | string | lost starts of unkeyed work | retention |
| `{sg:<ns>:0}:letter:v1:<id>` | hash | one dead letter | never; a purge removes it once it is over |
| `{sg:<ns>:0}:letters:v1` | sorted set | letter ids by time | never |
| `{sg:<ns>:0}:letters-over:v1` | sorted set | ids of letters that are over, by the time of that | never |
| `{sg:<ns>:0}:group:v1:<fingerprint>` | hash | one group of letters: its counts, what people say of it | never |
| `{sg:<ns>:0}:groups:v1` | sorted set | fingerprints by time | never |
| `{sg:<ns>:0}:group-letters:v1:<fingerprint>` | sorted set | ids of a group's letters by time | never |
| `{sg:<ns>:0}:job:v1:<id>` | hash | one replay of many letters | purged |
| `{sg:<ns>:0}:job-letters:v1:<id>` | list | its letters, 500 in each entry | with its end |
| `{sg:<ns>:0}:job-of-group:v1:<fingerprint>` | string | the last job of a group | with that job |
| `{sg:<ns>:0}:jobs:v1` | sorted set | ids of jobs by time | each with its job |
| `{sg:<ns>:0}:term:v1:<term>` | sorted set | ids of the letters that are found by it, by time | with the last of them |

All keys of a namespace share a hash tag, so that one script can touch several of them on a cluster. Retention is the
key's TTL; a lease never is: a record that vanished with its lease would read as "never started".
"""

import hashlib
import os
import threading
from collections.abc import Sequence
from importlib import resources
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from celery_safeguards._names import bounded_name
from celery_safeguards.errors import StoreUnavailable

LEFT_BEHIND = (ReadOnlyError, MasterDownError)
"""What a server answers that was demoted: it is no primary any more."""
_AWAY = (
    redis.ConnectionError,
    redis.TimeoutError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
    OSError,
)
_GONE = (redis.ConnectionError, ConnectionError)
_AWAY_REPLIES = ("OOM", "MISCONF", "NOREPLICAS", "LOADING", "READONLY", "MASTERDOWN", "BUSY")
_MAX_READABLE_BYTES = 200


class Keys:
    """The names of everything one namespace keeps in Redis."""

    def __init__(self, namespace: str, shard: int = 0) -> None:
        self.tag = f"{{sg:{namespace}:{shard}}}"
        self.meta = f"{self.tag}:meta:v1"
        self.letters = f"{self.tag}:letters:v1"
        self.letters_over = f"{self.tag}:letters-over:v1"
        self.groups = f"{self.tag}:groups:v1"
        self.jobs = f"{self.tag}:jobs:v1"

    def record(self, scope: str, key: str) -> str:
        """Return a record's key: readable, and of bounded length whatever the idempotency key holds."""
        return f"{self.tag}:record:v1:{bounded_name(f'{scope}#{key}', _MAX_READABLE_BYTES)}"

    def starts(self, task_id: str) -> str:
        """Return the key that counts an unkeyed message's lost starts."""
        return f"{self.tag}:starts:v1:{bounded_name(task_id, _MAX_READABLE_BYTES)}"

    def lock(self, name: str) -> str:
        """Return a lock's key."""
        return f"{self.tag}:lock:v1:{bounded_name(name, _MAX_READABLE_BYTES)}"

    def waiting(self, name: str) -> str:
        """Return the key of those who wait for a lock."""
        return f"{self.tag}:waiting:v1:{bounded_name(name, _MAX_READABLE_BYTES)}"

    def wake(self, owner: str) -> str:
        """Return the key of the list that wakes one who waits."""
        return f"{self.tag}:wake:v1:{owner}"

    def letter(self, letter_id: str) -> str:
        """Return a letter's key."""
        return f"{self.tag}:letter:v1:{letter_id}"

    def group(self, fingerprint: str) -> str:
        """Return the key of a group of letters."""
        return f"{self.tag}:group:v1:{bounded_name(fingerprint, _MAX_READABLE_BYTES)}"

    def group_letters(self, fingerprint: str) -> str:
        """Return the key of the ids of a group's letters."""
        return f"{self.tag}:group-letters:v1:{bounded_name(fingerprint, _MAX_READABLE_BYTES)}"

    def job(self, job_id: str) -> str:
        """Return the key of a replay job."""
        return f"{self.tag}:job:v1:{bounded_name(job_id, _MAX_READABLE_BYTES)}"

    def job_letters(self, job_id: str) -> str:
        """Return the key of a job's letters."""
        return f"{self.tag}:job-letters:v1:{bounded_name(job_id, _MAX_READABLE_BYTES)}"

    def job_of_group(self, fingerprint: str) -> str:
        """Return the key of a group's last job."""
        return f"{self.tag}:job-of-group:v1:{bounded_name(fingerprint, _MAX_READABLE_BYTES)}"

    def term(self, term: str) -> str:
        """Return the key of the ids of the letters that are found by a term."""
        return f"{self.tag}:term:v1:{term}"


class Script:
    """A script and the digest that a server knows it by."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def of(cls, *paths: str) -> "Script":
        """Return the script of `.lua` files of this package, joined: first the functions that the last one calls."""
        folder = resources.files(__package__ or "")
        return cls("\n".join(folder.joinpath(path).read_text(encoding="utf-8") for path in paths))


class Client:
    """
    A Redis client that no fork shares.

    It speaks over redis-py's own connections, one for each thread: redis-py's client, pool and packing of arguments
    take longer than the server's script (redis-py 8.1; `benchmarks.overhead`).
    The connection is opened on first use in each process. Every round trip has a timeout, and whatever says that the
    server is away, read-only or full is raised as `StoreUnavailable`.

    Safe when: used by several threads; used before and after a fork; interrupted by a signal at any point.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self.url = url
        self.timeout_seconds = timeout_seconds
        self._local = threading.local()

    def run(self, script: "Script", keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """
        Run a script, one round trip once the server knows it.

        Raises:
            StoreUnavailable: the server is away, or did not answer in time: the script may or may not have run.

        """
        operands = (len(keys), *keys, *args)
        with _naming(self):
            try:
                return self._ask(_packed(("EVALSHA", script.sha, *operands)))
            except NoScriptError:
                # A server that is new, restarted or failed over: this also makes it known.
                return self._ask(_packed(("EVAL", script.source, *operands)))

    def command(self, *words: str | int) -> Any:
        """Run one command of Redis; see `run`. A command that blocks must end within the timeout of a round trip."""
        with _naming(self):
            return self._ask(_packed(words))

    def _ask(self, packed: bytes) -> Any:
        connection = self._connected()
        try:
            return _exchange(connection, packed)
        except _GONE:
            # One immediate retry, for a connection that the server has closed meanwhile: every script may run twice.
            # Not after a timeout, which would double the wait.
            return _exchange(connection, packed)

    def _connected(self) -> Any:
        """Return this thread's connection in this process; it opens, and opens again, when something is sent."""
        local = self._local
        if getattr(local, "pid", None) != os.getpid():
            # A socket in the file system knows no keepalive, and redis-py refuses the option.
            over_tcp = {} if self.url.startswith("unix:") else {"socket_keepalive": True}
            pool = redis.ConnectionPool.from_url(
                self.url,
                socket_timeout=self.timeout_seconds,
                socket_connect_timeout=self.timeout_seconds,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
                **over_tcp,
            )
            local.connection, local.pid = pool.make_connection(), os.getpid()
        return local.connection

    def close(self) -> None:
        """Close this thread's connection; the next use opens another."""
        found, self._local = getattr(self._local, "connection", None), threading.local()
        if found is not None:
            found.disconnect()

    def describe(self) -> str:
        """Return the server's address without its password."""
        address = self.url.split("@")[-1] if "@" in self.url else self.url
        return f"redis at {address}"


class _naming:  # noqa: N801 - read as a word: `with _naming(client):`
    """Raise whatever says that the server is away, read-only or full as `StoreUnavailable` that names the server."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and is_away(error):
            raise StoreUnavailable(f"{self._client.describe()}: {error}") from error


def is_away(error: BaseException) -> bool:
    """Whether an error says that the server is away, read-only, loading or full: the question was not wrong."""
    if isinstance(error, _AWAY) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RedisError) and str(error).startswith(_AWAY_REPLIES)


def _exchange(connection: Any, packed: bytes) -> Any:
    try:
        connection.send_packed_command([packed], check_health=False)
        return connection.read_response()
    except ResponseError as error:
        if isinstance(error, LEFT_BEHIND):
            # After a failover: the next question opens a connection anew, and is led to the primary by its address.
            connection.disconnect()
        raise
    except BaseException:
        # Also a time limit's exception, between the two: the answer would be taken for the next question's.
        connection.disconnect()
        raise


def _packed(command: Sequence[str | int]) -> bytes:
    """Return a command as the protocol wants it: an array of strings, each with its length in bytes."""
    parts = [b"*%d\r\n" % len(command)]
    for each in command:
        data = str(each).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
