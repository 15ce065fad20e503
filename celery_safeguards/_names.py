"""Names: of user text, readable and of bounded length whatever that text is; and of this host and its processes."""

import hashlib
import socket
from functools import cache
from pathlib import Path

_HEAD_CHARS = 80
_DIGEST_CHARS = 40
_BUILT_IN = ("celery.", "celery_safeguards.")


def is_built_in(task: str) -> bool:
    """Whether a task of this name is Celery's or this package's own: no project has written it, or declares it."""
    return task.startswith(_BUILT_IN)


def bounded_name(name: str, max_bytes: int) -> str:
    """Return the name as it is; beyond the limit, or if nothing can encode it, its head and a digest of the whole."""
    try:
        whole = name.encode()
        if len(whole) <= max_bytes:
            return name
    except UnicodeEncodeError:
        # Half a surrogate pair: a shell hands over bytes that are no text as such halves, too.
        whole = name.encode("utf-8", "surrogatepass")
    # Within the limit, too: a name that is bounded once more stays the same.
    head = name[:_HEAD_CHARS].encode("utf-8", "surrogatepass")[: max_bytes - _DIGEST_CHARS - 1]
    return f"{head.decode('utf-8', 'ignore')}~{hashlib.sha256(whole).hexdigest()[:_DIGEST_CHARS]}"


@cache
def host_name() -> str:
    """Return this host's name, asked for once in a process."""
    return socket.gethostname()


@cache
def pid_space() -> str:
    """Return what tells containers of one host name apart, whose pids mean other processes; '' where there is none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
