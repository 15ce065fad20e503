"""
Records in the project's database.

A first delivery is one statement to claim its key and one to write its outcome, four with a lock, where the database
can insert, step back and answer in one breath (PostgreSQL, SQLite). Whatever such a statement does not find as it
expects it is done again, in a transaction, by the rules that all stores share; so the statements below decide nothing
but the plainest case.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from celery_safeguards._store_view import StoreState, StoreView
from celery_safeguards.admission.atomic import Seen
from celery_safeguards.admission.rules import AdmissionRules, Room
from celery_safeguards.admission.store import Answer, Change, RecordKey
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.ledger.record import Record, RecordUnreadable, State
from celery_safeguards.locks.store import HeldLock, LockAsk
from django_celery_safeguards import rows
from django_celery_safeguards.bounds import unbounded_on
from django_celery_safeguards.house import STATE, House
from django_celery_safeguards.joined import JoinedConnection
from django_celery_safeguards.locks import OrmLockStore, free_plainly, take_plainly
from django_celery_safeguards.plain import PlainStatements, claimed_record
from django_celery_safeguards.purging import purge
from django_celery_safeguards.room import OrmRoom
from django_celery_safeguards.transactions import OrmTransaction, check_fits, claimed
from django_celery_safeguards.waking import send

T = TypeVar("T")
_STORED = (*rows.HEAD, "body", "expires_us")
_CLAIMS = frozenset({"owner", "fence", "lease_until_us", "lost_us", "rev"})


class _NotPlain(SafeguardsError):
    """Raised to leave a transaction without a trace: the rules must be asked."""


class OrmAdmissionStore(AdmissionRules):
    """
    Records in rows.

    Safe when: shared by threads; created before a fork and used after it; the user's transaction rolls back or is
    aborted; the database is restarted in between.
    """

    def __init__(self, house: House) -> None:
        super().__init__(house.lease_seconds)
        self.house = house
        self.locks = OrmLockStore(house, self.step)
        self._plain = PlainStatements(house)

    @property
    def alias(self) -> str:
        """See `AtomicStore.alias`."""
        return self.house.connection.alias

    @property
    def holds_locks_across_forks(self) -> bool:
        """Whether a fork beside a thread that is in a step leaves the child a lock that nobody opens: SQLite's own."""
        return self.house.dialect.vendor == "sqlite"

    @property
    def _is_joined(self) -> bool:
        return isinstance(self.house.connection, JoinedConnection)

    def joined(self) -> "OrmAdmissionStore":
        """See `AtomicStore.joined`."""
        house = self.house
        return OrmAdmissionStore(House(JoinedConnection(self.alias), house.namespace, house.lease_seconds))

    def transaction(self) -> OrmTransaction:
        """See `AtomicStore.transaction`."""
        check_fits(self.house.dialect, self.alias)
        return OrmTransaction(self.house, may_join=self._is_joined)

    def standing(self, key: RecordKey) -> Seen | None:
        """See `AtomicStore.standing`."""
        found = self.house.connection.transact(lambda cursor: claimed(self.house, cursor, key))
        return found and found[0]

    def unbounded(self) -> list[str]:
        """See `AtomicStore.unbounded`."""
        check_fits(self.house.dialect, self.alias)
        return unbounded_on(self.alias) if self.house.dialect.vendor == "postgresql" else []

    def step(self, act: Callable[[Room], T], *, heard: bool = True) -> T:
        """See `AdmissionRules.step`."""
        # Apart from the transaction: the state is one row, and everybody would wait for whoever writes it. So nobody is
        # heard by a caller's connection, whose transaction may be open for long.
        view = self.house.look(heard=heard and not self._is_joined)

        def transact(cursor: Any) -> T:
            room = OrmRoom(self.house, cursor, view)
            result = act(room)
            room.finish()
            if self.house.dialect.vendor == "postgresql":
                send(self.house, cursor, room.words)
            return result

        return self.house.connection.transact(transact)

    def view(self) -> StoreView:
        """See `AdmissionStore.view`."""
        return self.house.look(heard=False)

    def declare_new(self) -> None:
        """See `AdmissionStore.declare_new`."""
        self.house.declare_new()

    def purge(self, batch: int = 1_000) -> int:
        """
        Delete what nobody can find any more: records and counts past their retention, locks unused for a day.

        Nothing deletes by itself in a database: call this once in a while. Each batch is a transaction of its own.

        Returns:
            How many rows are gone.

        """
        return purge(self.house, batch)

    def read(self, key: RecordKey) -> Record | None:
        """See `AdmissionStore.read`."""
        return self.house.connection.run(lambda cursor: self._look_up(cursor, key))

    def read_many(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, Record | RecordUnreadable]:
        """See `AdmissionStore.read_many`."""
        names = {rows.record_id(self.house.namespace, key): key for key in keys}
        if not names:
            return {}
        also = f", {self.house.dialect.now_us}"
        select = self.house.tables.records.select_some(("id", *_STORED), len(names), also=also)

        def act(cursor: Any) -> Mapping[RecordKey, Record | RecordUnreadable]:
            cursor.execute(select, list(names))
            found = {}
            for id_, *stored, expires_us, now_us in cursor.fetchall():
                if not expires_us or expires_us > now_us:
                    found[names[id_]] = rows.record_or_error(stored)
            return found

        return self.house.connection.run(act)

    def admit(
        self,
        key: RecordKey,
        owner: str,
        change: Change,
        *,
        unproven: bool,
        epoch: str | None,
        lock: LockAsk | None = None,
    ) -> Answer:
        """See `AdmissionStore.admit`."""
        if unproven and self.house.dialect.returns:
            answer = self._claim_plainly(key, owner, change, epoch, lock) or self._found_plainly(key)
            if answer is not None:
                return answer
        return super().admit(key, owner, change, unproven=unproven, epoch=epoch, lock=lock)

    def settle(
        self,
        key: RecordKey,
        held: Record,
        expected: State,
        change: Change,
        *,
        recreate: bool = False,
        lock: HeldLock | None = None,
    ) -> Record:
        """See `AdmissionStore.settle`."""
        if self.house.dialect.returns and not _CLAIMS & change.fields.keys():
            written = self._settle_plainly(key, held, expected, change, lock)
            if written is not None:
                return written
        return super().settle(key, held, expected, change, recreate=recreate, lock=lock)

    # ------------------------------------------------------------------------------------------- the plainest cases

    def _claim_plainly(
        self, key: RecordKey, owner: str, change: Change, epoch: str | None, lock: LockAsk | None
    ) -> Answer | None:
        """Claim a key that has no row, and with it a lock that nobody has or waits for."""
        insert, values = self._plain.claim(key, owner, change, epoch)

        def act(cursor: Any) -> Answer | None:
            cursor.execute(insert, values)
            row = cursor.fetchone()
            return None if row is None else self._claimed(cursor, row, owner, change)

        if lock is None:
            return self.house.connection.run(act)

        def act_with(cursor: Any) -> Answer:
            answer = act(cursor)
            held = None if answer is None else take_plainly(self.house, cursor, lock, answer.view)
            if answer is None or held is None:
                raise _NotPlain
            return Answer(answer.view, answer.record, claimed=True, lock=held)

        return self._unless_not_plain(act_with)

    def _found_plainly(self, key: RecordKey) -> Answer | None:
        """Return the record of a duplicate: what is only read needs no transaction."""

        def act(cursor: Any) -> Answer | None:
            view = self.house.look_by(cursor, heard=True)
            record = self._look_up(cursor, key)
            return None if record is None else Answer(view, record, claimed=False)

        return self.house.connection.run(act)

    def _claimed(self, cursor: Any, row: Any, owner: str, change: Change) -> Answer:
        fence, began_us, lease_until_us, *values = row
        state = StoreState(**dict(zip(STATE, values, strict=True)))
        heard = state.heard(began_us, self.house.lease_us)
        if heard is not state:
            # Somebody faster is heard as well: nobody's word is missed.
            self.house.change_state(cursor, state, heard)
        head = {"owner": owner, "fence": fence, "rev": 1, "lease_until_us": lease_until_us}
        record = claimed_record(change, **head, series_began_us=began_us)
        return Answer(heard.view(began_us), record, claimed=True)

    def _settle_plainly(
        self, key: RecordKey, held: Record, expected: State, change: Change, lock: HeldLock | None
    ) -> Record | None:
        """Write an outcome on a record that stands as its owner knows it, and free a lock that nobody waits for."""
        update, values = self._plain.outcome(key, held, expected, change)

        def act(cursor: Any) -> Record | None:
            cursor.execute(update, values)
            row = cursor.fetchone()
            return row and held.having(**change.fields, **dict(zip(change.after_seconds, row, strict=False)))

        if lock is None:
            return self.house.connection.run(act)

        def act_with(cursor: Any) -> Record:
            record = act(cursor)
            if record is None or not free_plainly(self.house, cursor, lock):
                raise _NotPlain
            return record

        return self._unless_not_plain(act_with)

    def _unless_not_plain(self, act: Callable[[Any], T]) -> T | None:
        try:
            return self.house.connection.transact(act)
        except _NotPlain:
            return None

    def _look_up(self, cursor: Any, key: RecordKey) -> Record | None:
        records = self.house.tables.records
        also = f", {self.house.dialect.now_us}"
        select = records.select(_STORED, also=also)
        cursor.execute(select, [rows.record_id(self.house.namespace, key)])
        row = cursor.fetchone()
        if row is None:
            return None
        *stored, expires_us, now_us = row
        return None if expires_us and expires_us <= now_us else rows.record_of(stored)
