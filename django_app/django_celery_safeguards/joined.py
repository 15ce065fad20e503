"""
The project's own connection, for what belongs to its caller: an eager task's records live and die with its transaction.

So a `TestCase` rolls them back with everything else, and an in-memory database is the one that the test sees.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections, transaction
from django.db.utils import DatabaseError, InterfaceError

from celery_safeguards.errors import SafeguardsError
from django_celery_safeguards.connection import OwnConnection
from django_celery_safeguards.sql import set_up_clock

T = TypeVar("T")


class JoinedConnection(OwnConnection):
    """
    One thread's connection to one database of the project, in the place of one of our own.

    What listens for words from other processes still has its own: they come after a COMMIT only.
    """

    def __init__(self, alias: str) -> None:
        super().__init__(alias, 0.0)

    def run(self, act: Callable[[Any], T], *, is_large: bool = False) -> T:  # noqa: ARG002 - all are let go of at once
        """Let `act` use a cursor. Raises `StoreUnavailable`."""
        try:
            with self.wrapper().cursor() as cursor:
                return act(cursor)
        except (DatabaseError, InterfaceError) as error:
            raise self._unavailable(error) from error

    def transact(self, act: Callable[[Any], T]) -> T:
        """Let `act` use a cursor in a transaction, or in a part of the one that is open."""
        try:
            with transaction.atomic(using=self.alias), self.wrapper().cursor() as cursor:
                return act(cursor)
        except SafeguardsError:
            raise
        except (DatabaseError, InterfaceError) as error:
            raise self._unavailable(error) from error

    def wrapper(self) -> Any:
        """Return the connection, opened."""
        wrapper = connections[self.alias]
        wrapper.ensure_connection()
        if wrapper.vendor == "sqlite":
            set_up_clock(wrapper.connection)
        return wrapper

    def close(self) -> None:
        """Leave it as it is: it is its caller's."""
