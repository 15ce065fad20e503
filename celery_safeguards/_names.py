"""Names: of user text, readable and of bounded length whatever that text is; and of this host."""

import hashlib
import socket
from functools import cache

_HEAD_CHARS = 80


def bounded_name(name: str, max_bytes: int) -> str:
    """Return the name as it is, or beyond the limit its head and a digest of the whole."""
    whole = name.encode("utf-8", "surrogatepass")
    if len(whole) <= max_bytes:
        return name
    return f"{name[:_HEAD_CHARS]}~{hashlib.sha256(whole).hexdigest()[:40]}"


@cache
def host_name() -> str:
    """Return this host's name, asked for once in a process."""
    return socket.gethostname()
