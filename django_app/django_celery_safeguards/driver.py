"""What is asked of the database drivers: a connection that nobody shares, and an end to every wait."""

import copy
import math
import weakref
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

from django.db.utils import OperationalError

from celery_safeguards.clock import SystemClock
from django_celery_safeguards.sql import set_up_clock

T = TypeVar("T")
_PREPARED_AFTER_TIMES = 5
"""psycopg's own default, which Django switches off."""


def own_settings(wrapper: Any, timeout_seconds: float) -> dict[str, Any]:
    """Return the project's settings of a database without what would share or delay a connection."""
    own = copy.deepcopy(wrapper.settings_dict)
    own.update(AUTOCOMMIT=True, ATOMIC_REQUESTS=False, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False)
    options, whole_seconds = own["OPTIONS"], math.ceil(timeout_seconds)
    for name in ("pool", "isolation_level", "server_side_binding"):
        options.pop(name, None)
    if wrapper.vendor == "sqlite":
        options["timeout"] = timeout_seconds
    elif wrapper.vendor == "postgresql":
        # libpq counts whole seconds, and takes 1 for 2.
        options["connect_timeout"] = max(2, whole_seconds)
    else:
        options.update(connect_timeout=whole_seconds, read_timeout=whole_seconds, write_timeout=whole_seconds)
    return dict(own)


def set_up(wrapper: Any, timeout_seconds: float) -> None:
    """Give a connection that was just opened its clock and its time limits."""
    if wrapper.vendor == "sqlite":
        set_up_clock(wrapper.connection)
        return
    if wrapper.vendor == "postgresql":
        # The second for a process that is frozen between two statements: it would keep its rows from all others.
        timeout_ms = str(max(1, round(timeout_seconds * 1_000)))
        sets = "SELECT set_config('statement_timeout', %s, false), "
        sets += "set_config('idle_in_transaction_session_timeout', %s, false), "
        sets += "set_config('default_transaction_isolation', 'read committed', false), pg_backend_pid()"
        values: list[Any] = [timeout_ms, timeout_ms]
    else:
        sets, values = "SET SESSION innodb_lock_wait_timeout = %s", [max(1, math.ceil(timeout_seconds))]
    with wrapper.cursor() as cursor:
        cursor.execute(sets, values)
        told = cursor.fetchone() if wrapper.vendor == "postgresql" else None
    raw = wrapper.connection
    if told and hasattr(raw, "wait"):
        # Through a proxy: a connection that held itself would be closed late.
        raw.wait = partial(_wait, type(raw).wait, weakref.proxy(raw), _silence_seconds(timeout_seconds))
        _prepare(wrapper, backend_pid=told[-1])


def _prepare(wrapper: Any, backend_pid: int) -> None:
    """
    Let the server keep the plans of statements that come again: planning costs it more than the work itself.

    Only where the session that answers is the one that was greeted. A pooler that gives each transaction another
    session makes up its greeting: there a statement of ours would meet another process's plan, under the same name.
    """
    raw = wrapper.connection
    threshold = wrapper.settings_dict["OPTIONS"].get("prepare_threshold", _PREPARED_AFTER_TIMES)
    if threshold is not None and raw.info.backend_pid == backend_pid:
        # Not before: psycopg 2 has none.
        from django.db.backends.postgresql.base import ServerBindingCursor  # noqa: PLC0415

        raw.cursor_factory, raw.prepare_threshold = ServerBindingCursor, threshold


def _silence_seconds(timeout_seconds: float) -> float:
    """Return after how long a server is given up: it should have ended the statement itself; who listens waits, too."""
    return 1.5 * max(1.0, timeout_seconds)


def _wait(
    wait: Callable[..., Any], raw: Any, most_seconds: float, answer: Generator[Any, Any, Any], **given: Any
) -> Any:
    return wait(raw, _within(answer, most_seconds), **given)


def _within(answer: Generator[Any, Any, T], most_seconds: float) -> Generator[Any, Any, T]:
    """
    Pass on what psycopg's `Connection.wait` is given to wait for, and give up in time.

    A server that is frozen, or gone without a word, ends no statement, and libpq waits for its answer for ever: the
    main process could not end the children whose claims it cannot renew.
    """
    ends = SystemClock.monotonic_seconds() + most_seconds
    try:
        wanted = next(answer)
        while True:
            ready = yield wanted
            if not ready and SystemClock.monotonic_seconds() > ends:
                raise OperationalError(f"no answer within {most_seconds:g} s")
            wanted = answer.send(ready)
    except StopIteration as stop:
        result: T = stop.value
        return result
