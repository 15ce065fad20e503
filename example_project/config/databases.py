"""A database of the project, from its URL."""

from urllib.parse import unquote, urlsplit

# A worker that is gone, or hangs, must not keep its transaction open, and with it the key that it works on.
_BOUNDS = {
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": 30,
    "tcp_keepalives_interval": 10,
    "tcp_keepalives_count": 3,
}


def database(url):
    """
    Return Django's settings of the database at a URL, in which `%` writes what would have a meaning there.

    Raises:
        ValueError: it is neither `sqlite:///` nor `postgresql://`.

    """
    parts = urlsplit(url)
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme == "sqlite":
        # One writer at a time, who says so at once: web process, worker and safeguards write to one file.
        pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
        options = {"init_command": pragmas, "transaction_mode": "IMMEDIATE"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    if parts.scheme != "postgresql":
        raise ValueError(f"{parts.scheme!r}: give sqlite:///path or postgresql://user:password@host:port/name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": {"options": " ".join(f"-c {name}={value}" for name, value in _BOUNDS.items())},
    }
