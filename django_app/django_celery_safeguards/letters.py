"""
Dead letters in the project's database.

The promise: every change is a transaction that holds the letter's row from reading it to writing it, so of any number
of writers in any number of processes each change has one winner, decided by the same functions as in every other store.
What a group counts is written in that transaction.

Not covered: an answer that is lost. The change is then made once more, and the caller is told of the state that its own
first try has brought about. Letters never expire.
"""

from collections.abc import Sequence
from typing import Any

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter import changes, store
from celery_safeguards.deadletter.group import GroupChange, GroupStatus, LetterGroup
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State
from celery_safeguards.deadletter.steps import LetterSteps
from celery_safeguards.outcome import FailureKind
from django_celery_safeguards.house import House
from django_celery_safeguards.letter_groups import OrmGroups, page_of
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import row_id, shown

_COLUMNS = (
    *("state", "task", "kind", "key", "scope", "group", "first_failed_us", "last_failed_us", "letter"),
    *("task_id", "reason", "error", "attempts", "fingerprint", "namespace", "letter_id"),
)


class OrmLetterStore(LetterSteps):
    """
    A `LetterStore` in rows.

    Safe when: used by several threads and processes; used before and after a fork; the user's transaction rolls back.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._groups = OrmGroups(house)

    def bury(self, letter: Letter) -> bool:
        """See `LetterStore.bury`."""

        def act(cursor: Any) -> bool:
            stored, counted_in = self._read(cursor, letter.id, self._house.dialect.for_update)
            if stored is None:
                buried = changes.as_buried(letter)
                self._insert(cursor, buried)
                self._groups.count(cursor, None, buried, has_died=True)
                return True
            changed = changes.reburial(letter)(stored)
            if changed is not None:
                self._update(cursor, changed)
                self._groups.count(cursor, (counted_in, stored.state), changed, has_died=True)
            return changed is not None

        return self._house.connection.transact(act)

    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""
        return self._house.connection.run(lambda cursor: self._read(cursor, letter_id, "")[0], is_large=True)

    def list(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        state: State | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
        fingerprint: str | None = None,
    ) -> store.Page:
        """See `LetterStore.list`."""
        given = {"state": state, "task": task, "kind": kind, "fingerprint": fingerprint}
        columns = ("id", "last_failed_us", "letter", "letter_id")
        rows, cursor = page_of(self._house, self._house.tables.letters, columns, given, limit, before)
        letters, unreadable = [], []
        for _, _, text, name in rows:
            try:
                letters.append(Letter.from_json(text))
            except LetterUnreadable:
                unreadable.append(name)
        return store.Page(letters=tuple(letters), next_cursor=cursor, unreadable=tuple(unreadable))

    def groups(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        status: GroupStatus | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
    ) -> store.GroupPage:
        """See `LetterStore.groups`."""
        return self._groups.page(limit, before, {"status": status, "task": task, "kind": kind})

    def get_group(self, fingerprint: str) -> LetterGroup | None:
        """See `LetterStore.get_group`."""
        return self._groups.get(fingerprint)

    def _apply_to_group(self, fingerprint: str, change: GroupChange) -> LetterGroup | None:
        return self._groups.apply(fingerprint, change)

    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        def act(cursor: Any) -> Letter | None:
            stored, counted_in = self._read(cursor, letter_id, self._house.dialect.for_update)
            changed = None if stored is None else change(stored)
            if stored is not None and changed is not None:
                self._update(cursor, changed)
                self._groups.count(cursor, (counted_in, stored.state), changed, has_died=False)
            return changed

        return self._house.connection.transact(act)

    def _read(self, cursor: Any, letter_id: str, for_update: str) -> tuple[Letter | None, str]:
        """Return a letter, and the group that it is counted in."""
        select = self._house.tables.letters.select(("letter", "fingerprint")) + for_update
        cursor.execute(select, [self._id(letter_id)])
        row = cursor.fetchone()
        return (None, "") if row is None else (Letter.from_json(row[0]), row[1])

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
            letter.fingerprint,
            self._house.namespace,
            shown(letter.id, NAME_CHARS),
            self._id(letter.id),
        ]

    def _id(self, letter_id: str) -> str:
        return row_id(self._house.namespace, letter_id)
