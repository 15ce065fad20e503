"""
Dead letters in the project's database.

The promise: every change is a transaction that holds the letter's row from reading it to writing it, so of any number
of writers in any number of processes each change has one winner, decided by the same functions as in every other store.

Not covered: an answer that is lost. The change is then made once more, and the caller is told of the state that its own
first try has brought about. Letters never expire.
"""

from collections.abc import Sequence
from typing import Any

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter import changes, store
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State
from celery_safeguards.deadletter.steps import LetterSteps
from celery_safeguards.outcome import FailureKind
from django_celery_safeguards.house import House
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import row_id, shown

_COLUMNS = (
    *("state", "task", "kind", "key", "scope", "group", "first_failed_us", "last_failed_us", "letter"),
    *("task_id", "reason", "error", "attempts", "namespace", "letter_id"),
)


class OrmLetterStore(LetterSteps):
    """
    A `LetterStore` in rows.

    Safe when: used by several threads and processes; used before and after a fork; the user's transaction rolls back.
    """

    def __init__(self, house: House) -> None:
        self._house = house

    def bury(self, letter: Letter) -> bool:
        """See `LetterStore.bury`."""

        def act(cursor: Any) -> bool:
            stored = self._read(cursor, letter.id, self._house.dialect.for_update)
            if stored is None:
                self._insert(cursor, changes.as_buried(letter))
                return True
            changed = changes.reburial(letter)(stored)
            if changed is not None:
                self._update(cursor, changed)
            return changed is not None

        return self._house.connection.transact(act)

    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""
        return self._house.connection.run(lambda cursor: self._read(cursor, letter_id, ""), is_large=True)

    def list(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        state: State | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
    ) -> store.Page:
        """See `LetterStore.list`."""
        changes.require_limit(limit)
        table = self._house.tables.letters
        wanted: dict[str, Any] = {"namespace": self._house.namespace}
        given = {"state": state, "task": task, "kind": kind}
        wanted |= {name: shown(value, NAME_CHARS) for name, value in given.items() if value}
        where, values = table.are(wanted), list(wanted.values())
        if before is not None:
            seconds, id_ = changes.from_cursor(before)
            at, name = table.list(["last_failed_us"]), table.list(["id"])
            where += f" AND ({at} < %s OR ({at} = %s AND {name} < %s))"
            values += [to_us(seconds), to_us(seconds), shown(id_, 64)]
        order = f"ORDER BY {table.list(['last_failed_us'])} DESC, {table.list(['id'])} DESC LIMIT {limit + 1}"
        columns = table.list(("id", "last_failed_us", "letter", "letter_id"))
        select = f"SELECT {columns} FROM {table.name} WHERE {where} {order}"

        def act(cursor: Any) -> Any:
            cursor.execute(select, values)
            return cursor.fetchall()

        rows = self._house.connection.run(act, is_large=True)
        return _page(rows[:limit], is_last=len(rows) <= limit)

    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        """Return the changed letter; None: there is none, or it stays as it is."""

        def act(cursor: Any) -> Letter | None:
            stored = self._read(cursor, letter_id, self._house.dialect.for_update)
            changed = None if stored is None else change(stored)
            if changed is not None:
                self._update(cursor, changed)
            return changed

        return self._house.connection.transact(act)

    def _read(self, cursor: Any, letter_id: str, for_update: str) -> Letter | None:
        cursor.execute(self._house.tables.letters.select(("letter",)) + for_update, [self._id(letter_id)])
        row = cursor.fetchone()
        return None if row is None else Letter.from_json(row[0])

    def _insert(self, cursor: Any, letter: Letter) -> None:
        cursor.execute(self._house.tables.letters.insert((*_COLUMNS, "id")), self._row(letter))

    def _update(self, cursor: Any, letter: Letter) -> None:
        cursor.execute(self._house.tables.letters.update(_COLUMNS), self._row(letter))

    def _row(self, letter: Letter) -> Sequence[Any]:
        error = f"{letter.error_type}: {letter.error_message}" if letter.error_type else letter.error_message
        names = (letter.task, letter.kind, letter.key, letter.scope, letter.group_id)
        return [
            letter.state,
            *(shown(name, NAME_CHARS) for name in names),
            to_us(letter.first_seen_seconds),
            to_us(letter.last_failed_seconds),
            letter.to_json(),
            *(shown(text, NAME_CHARS) for text in (letter.task_id, letter.reason, error)),
            letter.attempts,
            self._house.namespace,
            shown(letter.id, NAME_CHARS),
            self._id(letter.id),
        ]

    def _id(self, letter_id: str) -> str:
        return row_id(self._house.namespace, letter_id)


def _page(rows: Any, *, is_last: bool) -> store.Page:
    letters, unreadable = [], []
    for _, _, text, name in rows:
        try:
            letters.append(Letter.from_json(text))
        except LetterUnreadable:
            unreadable.append(name)
    cursor = None if is_last else changes.to_cursor(rows[-1][1] / 1_000_000, rows[-1][0])
    return store.Page(letters=tuple(letters), next_cursor=cursor, unreadable=tuple(unreadable))
