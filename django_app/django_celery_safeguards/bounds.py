"""
What bounds a transaction whose client is gone without a word, such as a host without power.

Until the server notices, it keeps the transaction's try-lock, and every delivery of the key is put off. By default
PostgreSQL notices a dead host after two hours, and never a client that is alive and has forgotten its transaction.
"""

import copy
from typing import Any

from django.db import connections
from django.db.utils import DatabaseError, InterfaceError

from celery_safeguards.errors import StoreUnavailable

_NOTICED_WITHIN_SECONDS = 600
_ASKED = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")


def unbounded_on(alias: str) -> list[str]:
    """
    Return what is missing in the sessions that the project opens on a PostgreSQL database, with the remedy.

    Raises:
        StoreUnavailable: the database did not answer.

    """
    wrapper = connections.create_connection(alias)
    # By a connection of its own: the threads and sockets of a pool would be the main process's, and its children's.
    wrapper.settings_dict = copy.deepcopy(wrapper.settings_dict)
    wrapper.settings_dict["OPTIONS"].pop("pool", None)
    try:
        with wrapper.cursor() as cursor:
            return [*_idle(cursor), *_keepalives(cursor)]
    except (DatabaseError, InterfaceError) as error:
        raise StoreUnavailable(f"database {alias!r}: {str(error).strip()}") from error
    finally:
        # At once: the main process forks children.
        wrapper.close()


def _idle(cursor: Any) -> list[str]:
    if _setting(cursor, "idle_in_transaction_session_timeout"):
        return []
    missing = (
        "idle_in_transaction_session_timeout is 0: a worker that hangs in a transaction keeps its key for ever; "
        "set it for the role or in OPTIONS, above the longest pause of a body between two statements"
    )
    return [missing]


def _keepalives(cursor: Any) -> list[str]:
    # 0 in a session over TCP means the system's default; through a socket in the file system nothing can get lost.
    cursor.execute("SELECT inet_server_addr() IS NOT NULL")
    if not cursor.fetchone()[0]:
        return []
    idle, interval, count = (_setting(cursor, name) for name in _ASKED)
    noticed_seconds = idle + interval * count
    if noticed_seconds <= _NOTICED_WITHIN_SECONDS:
        return []
    missing = (
        f"its server notices a dead client host after {noticed_seconds} s: until then the key stays locked; set "
        "tcp_keepalives_idle, tcp_keepalives_interval and tcp_keepalives_count on the server or in OPTIONS, for "
        "instance to 30, 10 and 3"
    )
    return [missing]


def _setting(cursor: Any, name: str) -> int:
    cursor.execute("SELECT setting::bigint FROM pg_settings WHERE name = %s", [name])
    return int(cursor.fetchone()[0])
