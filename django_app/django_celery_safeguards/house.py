"""One namespace in one database: its state, and the steps that change its rows."""

import uuid
from typing import Any

from django.db.utils import IntegrityError

from celery_safeguards._names import bounded_name
from celery_safeguards._store_view import StoreState, StoreView, begun
from celery_safeguards.clock import to_us
from django_celery_safeguards import models
from django_celery_safeguards.connection import OwnConnection
from django_celery_safeguards.sql import Dialect, Table

_MAX_NAMESPACE_CHARS = 100
STATE = ("epoch", "admit_from_us", "takeover_from_us", "pulse_us", "away_from_us")


def stored_namespace(namespace: str) -> str:
    """Return a namespace as its rows name it: of bounded length."""
    return bounded_name(namespace, _MAX_NAMESPACE_CHARS)


class House:
    """
    Where the rows of one namespace live.

    Safe when: shared by threads; created before a fork and used after it.

    Args:
        connection: to the database.
        namespace: of the fleet.
        lease_seconds: how long a claim holds without renewal.

    """

    def __init__(self, connection: OwnConnection, namespace: str, lease_seconds: float) -> None:
        self.connection = connection
        self.namespace = stored_namespace(namespace)
        self.lease_seconds = lease_seconds
        self.lease_us = to_us(lease_seconds)
        self.tables = Tables(connection.unopened)

    @property
    def dialect(self) -> Dialect:
        """How the database is spoken to."""
        return self.connection.dialect

    def look(self, *, heard: bool = True) -> StoreView:
        """Return the store's time, epoch and pauses, and count the caller as heard."""
        return self.connection.run(lambda cursor: self.look_by(cursor, heard=heard))

    def look_by(self, cursor: Any, *, heard: bool) -> StoreView:
        """Look by a cursor that is in no transaction: all claims of a fleet would wait for this row."""
        while True:
            cursor.execute(self.tables.state.select(STATE, by=("namespace",), also=self._also_now), [self.namespace])
            row = cursor.fetchone()
            if row is None:
                cursor.execute(f"SELECT {self.dialect.now_us}")
                self._begin(cursor, begun(uuid.uuid4().hex, int(cursor.fetchone()[0]), self.lease_us))
                continue
            *values, now_us = row
            state = StoreState(**dict(zip(STATE, values, strict=True)))
            after = state.heard(int(now_us), self.lease_us) if heard else state
            if after is state or self.change_state(cursor, state, after):
                return after.view(int(now_us))

    def declare_new(self) -> None:
        """Lift the pause that follows a new epoch."""
        now_us = self.look(heard=False).now_us

        def act(cursor: Any) -> None:
            cursor.execute(
                self.tables.state.select(STATE, by=("namespace",)) + self.dialect.for_update, [self.namespace]
            )
            state = StoreState(**dict(zip(STATE, cursor.fetchone(), strict=True)))
            self.change_state(cursor, state, state.declared_new(now_us))

        self.connection.transact(act)

    def change_state(self, cursor: Any, seen: StoreState, after: StoreState) -> bool:
        """Write the store's state as it was seen to become; False: somebody else was faster."""
        cursor.execute(
            self.tables.state.update(STATE, by=("namespace", "epoch", "pulse_us")),
            [*(getattr(after, name) for name in STATE), self.namespace, seen.epoch, seen.pulse_us],
        )
        return bool(cursor.rowcount)

    @property
    def _also_now(self) -> str:
        return f", {self.dialect.now_us}"

    def _begin(self, cursor: Any, state: StoreState) -> None:
        insert = self.tables.state.insert(("namespace", *STATE))
        try:
            cursor.execute(insert, [self.namespace, *(getattr(state, name) for name in STATE)])
        except IntegrityError:
            # Of all who find the store new, one names its epoch.
            return


class Tables:
    """The tables of the app in one database."""

    def __init__(self, wrapper: Any) -> None:
        self.state = Table(models.StoreState, wrapper)
        self.records = Table(models.IdempotencyRecord, wrapper)
        self.locks = Table(models.LeaseLock, wrapper)
        self.waiters = Table(models.LockWaiter, wrapper)
        self.starts = Table(models.StartCount, wrapper)
        self.letters = Table(models.DeadLetter, wrapper)
        self.groups = Table(models.LetterGroup, wrapper)
        self.jobs = Table(models.ReplayJob, wrapper)
        self.job_parts = Table(models.ReplayJobPart, wrapper)
        self.terms = Table(models.LetterTerm, wrapper)
