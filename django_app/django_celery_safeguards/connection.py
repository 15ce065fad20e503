"""
A connection of our own, beside the one that the user's code works with.

What the safeguards know must outlive the user's rollback, and must be written while the user's connection is in an
aborted transaction; so it never passes through `django.db.connections`, which Celery closes around each task as well.
Each thread of each process has one, opened on first use:

    t0 the main process has a connection   t1 it forks a child   t2 the child closes its copy of the socket, says
    nothing to the server, and opens its own when it first needs one

A connection that the server has closed meanwhile is opened again and the call made once more: every step of the stores
may run twice. A statement that took too long is not, which would double the wait.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.db.utils import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)

from celery_safeguards.errors import ConfigurationError, SafeguardsError, StoreUnavailable
from django_celery_safeguards.driver import own_settings, set_up
from django_celery_safeguards.sql import Dialect

_CONFLICT_TRIES = 20
# Deadlock and serialization failure, as PostgreSQL and MariaDB tell them: whoever begins anew finds the other's work.
_CONFLICTS = frozenset({"40001", "40P01", 1213})

T = TypeVar("T")


class OwnConnection:
    """
    The safeguards' connection to one database of the project.

    Safe when: used by several threads; used before and after a fork; interrupted by a signal at any point.

    Args:
        alias: of the database in the project's settings.
        timeout_seconds: how long connecting, a statement, or waiting for another writer may take.

    """

    def __init__(self, alias: str, timeout_seconds: float) -> None:
        self.alias = alias
        self.timeout_seconds = timeout_seconds
        # Never opened: it knows how this database is spoken to.
        self.unopened = connections.create_connection(alias)
        self.dialect = Dialect.of(self.unopened)
        self._local = threading.local()

    def run(self, act: Callable[[Any], T], *, is_large: bool = False) -> T:
        """
        Let `act` use a cursor, each statement by itself.

        Args:
            act: may be called twice.
            is_large: what it reads is to be let go of with its cursor, and not with the next statement.

        Raises:
            StoreUnavailable: the database is away, or did not answer in time: it may or may not have been done.

        """
        return self._run(lambda opened: self._with_cursor(opened, act, is_large=is_large))

    def transact(self, act: Callable[[Any], T]) -> T:
        """Let `act` use a cursor in one transaction, again from the start where another writer came between."""
        return self._run(lambda opened: self._in_transaction(opened, act))

    def raw(self) -> Any:
        """Return the driver's connection, opened."""
        return self._opened().wrapper.connection

    @contextlib.contextmanager
    def guarded(self) -> Any:
        """Raise as `run` does whatever the driver itself raises, which Django does not pass through."""
        opened = self._opened()
        try:
            yield opened.wrapper.connection
        except opened.wrapper.Database.Error as error:
            self.close()
            raise self._unavailable(error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close this thread's connection; the next use opens another."""
        opened, self._local.opened = getattr(self._local, "opened", None), None
        if opened is not None:
            opened.close()

    def wrapper(self) -> Any:
        """Return this thread's connection as Django wraps it, opened."""
        return self._opened().wrapper

    def _run(self, act: Callable[["_Opened"], T]) -> T:
        try:
            return self._run_here(act)
        except SynchronousOnlyOperation:
            # An event loop runs in this thread, and Django lets nobody ask a database there: a view that publishes has
            # not asked for one. Nothing was done yet.
            with ThreadPoolExecutor(1) as beside:
                return beside.submit(self._run_and_close, act).result()

    def _run_and_close(self, act: Callable[["_Opened"], T]) -> T:
        try:
            return self._run_here(act)
        finally:
            self.close()

    def _run_here(self, act: Callable[["_Opened"], T]) -> T:
        for is_last in (False, True):
            opened = self._opened()
            try:
                return act(opened)
            except SafeguardsError:
                raise
            except (DatabaseError, InterfaceError) as error:
                is_lost = isinstance(error, OperationalError | InterfaceError) and opened.is_lost(error)
                self.close()
                if (is_lost or _is_outdated(error)) and not is_last:
                    continue
                if isinstance(error, DataError | NotSupportedError):
                    raise
                raise self._unavailable(error) from error
            except BaseException:
                # A time limit's exception as well, in the midst of an answer: the next question would be given it.
                self.close()
                raise
        raise AssertionError("the second try returns or raises")

    def _with_cursor(self, opened: "_Opened", act: Callable[[Any], T], *, is_large: bool) -> T:
        with opened.wrapper.cursor() if is_large else opened.cursor() as cursor:
            return act(cursor)

    def _in_transaction(self, opened: "_Opened", act: Callable[[Any], T]) -> T:
        for left in reversed(range(_CONFLICT_TRIES)):
            with opened.cursor() as cursor:
                cursor.execute(self.dialect.begin)
                try:
                    result = act(cursor)
                    cursor.execute("COMMIT")
                except SafeguardsError:
                    cursor.execute("ROLLBACK")
                    raise
                except DatabaseError as error:
                    if not left or not _is_conflict(error):
                        raise
                    cursor.execute("ROLLBACK")
                else:
                    return result
        raise AssertionError("the last try returns or raises")

    def _opened(self) -> "_Opened":
        opened: _Opened | None = getattr(self._local, "opened", None)
        if opened is None or opened.pid != os.getpid():
            self._local.opened = opened = self._open()
            self._local.ending = _Ending(opened)
            _of_this_thread().add(self)
        return opened

    def _open(self) -> "_Opened":
        wrapper = connections.create_connection(self.alias)
        wrapper.settings_dict = own_settings(wrapper, self.timeout_seconds)
        # Closed by whichever thread collects it, once the thread that used it is over.
        wrapper.inc_thread_sharing()
        try:
            wrapper.ensure_connection()
            set_up(wrapper, self.timeout_seconds)
        except (DatabaseError, InterfaceError) as error:
            with contextlib.suppress(DatabaseError, InterfaceError):
                wrapper.close()
            raise self._unavailable(error) from error
        return _Opened(wrapper)

    def _unavailable(self, error: Exception) -> SafeguardsError:
        hint = ""
        if self.dialect.vendor == "sqlite" and "locked" in str(error):
            blocks = _blocks_of_this_thread(self.alias)
            if any(getattr(block, "_from_testcase", False) for block in blocks):
                # At once: the test would wait for itself, again and again.
                return ConfigurationError(
                    f"database {self.alias!r}: the transaction of this TestCase has it, and SQLite has one writer: "
                    "keep the records of the test in memory, by django_celery_safeguards.testing.fresh_store()"
                )
            hint = "; the transaction that is open in this thread may have it: SQLite has one writer" if blocks else ""
        said = str(error).strip()
        if isinstance(error, ProgrammingError) or "no such table" in said:
            # PostgreSQL quotes the statement below, which says nothing to who runs a command.
            said = said.partition("\n")[0]
            hint = f"; if its tables are missing, run `manage.py migrate --database {self.alias}`"
        return StoreUnavailable(f"database {self.alias!r}: {said or type(error).__name__}{hint}")


class _Opened:
    """One open connection."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self.pid = os.getpid()
        # A new one would learn anew how each kind of value is sent. SQLite's keeps a read open until it is closed.
        self._kept = wrapper.cursor() if wrapper.vendor == "postgresql" else None
        _OPEN.add(self)

    def cursor(self) -> contextlib.AbstractContextManager[Any]:
        """Return a cursor for a `with`."""
        return self.wrapper.cursor() if self._kept is None else contextlib.nullcontext(self._kept)

    def is_lost(self, error: Exception) -> bool:
        """Whether the server has ended it: one that is merely slow is not asked again."""
        raw = self.wrapper.connection
        if raw is None or self.wrapper.vendor == "mysql":
            return raw is None or not self.wrapper.is_usable()
        # Its last word comes before the socket's end, which the driver has then not seen yet.
        severity = getattr(getattr(error.__cause__, "diag", None), "severity_nonlocalized", None)
        return severity in {"FATAL", "PANIC"} or bool(getattr(raw, "closed", False))

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        raw = self.wrapper.connection
        # Collected in a thread that runs an event loop, where Django lets nobody wait: this is no wait.
        with contextlib.suppress(DatabaseError, InterfaceError, SynchronousOnlyOperation):
            self.wrapper.close()
        # Also where Django does not: of a database in memory it keeps the connection, as if it were the only one.
        if raw is not None and not getattr(raw, "closed", False):
            with contextlib.suppress(self.wrapper.Database.Error):
                raw.close()


class _Ending:
    """Closes a connection with the thread that it belongs to; nothing else holds one, so it goes in time."""

    def __init__(self, opened: _Opened) -> None:
        self._opened = opened

    def __del__(self) -> None:
        self._opened.close()


def close_own_of_this_thread() -> None:
    """Close what this thread has open of the safeguards' connections; whoever needs one next opens it."""
    for own in list(_of_this_thread()):
        own.close()


def _of_this_thread() -> "weakref.WeakSet[OwnConnection]":
    # One set for each thread: a shared one would change under whoever walks it.
    found: weakref.WeakSet[OwnConnection] | None = getattr(_THREAD, "used", None)
    if found is None:
        _THREAD.used = found = weakref.WeakSet()
    return found


_THREAD = threading.local()
_OPEN: "weakref.WeakSet[_Opened]" = weakref.WeakSet()
_INHERITED: list[Any] = []


def _leave_to_the_parent() -> None:
    """Close a child's copies of its parent's sockets, without a word to the server on the other end."""
    for opened in list(_OPEN):
        raw = opened.wrapper.connection
        # Kept for ever: what is collected says goodbye to the server, on a socket that is the parent's.
        _INHERITED.append((opened, raw))
        if opened.wrapper.vendor == "postgresql" and raw is not None and not raw.closed:
            with contextlib.suppress(OSError):
                os.close(raw.fileno())
    _OPEN.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)


def _blocks_of_this_thread(alias: str) -> list[Any]:
    """Return the atomic blocks that the user's code is in, without connecting for it."""
    opened = (each for each in connections.all(initialized_only=True) if each.alias == alias)
    return [block for each in opened for block in each.atomic_blocks]


def _is_outdated(error: DatabaseError | InterfaceError) -> bool:
    """Whether a migration has changed the columns that a kept plan returns; nothing was done then."""
    diag = getattr(error.__cause__, "diag", None)
    return getattr(diag, "source_function", None) == "RevalidateCachedQuery"


def _is_conflict(error: DatabaseError) -> bool:
    cause = error.__cause__
    code = getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)
    return isinstance(error, IntegrityError) or (isinstance(code, str | int) and code in _CONFLICTS)
