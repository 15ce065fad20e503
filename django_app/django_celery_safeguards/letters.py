"""
Dead letters in the project's database.

The promise: every change is a transaction that holds the letter's row from reading it to writing it, so of any number
of writers in any number of processes each change has one winner, decided by the same functions as in every other store.
What a group counts is written in that transaction.

Not covered: an answer that is lost. The change is then made once more, and the caller is told of the state that its own
first try has brought about. Letters never expire.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter import changes, store
from celery_safeguards.deadletter.group import GroupChange, GroupStatus, LetterGroup
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State, letter_or_error, readable
from celery_safeguards.deadletter.steps import LetterSteps
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.outcome import FailureKind
from django_celery_safeguards.house import House
from django_celery_safeguards.letter_groups import Move, OrmGroups, page_of
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
                self._groups.count(cursor, [(None, buried)], has_died=True)
                return True
            changed = changes.reburial(letter)(stored)
            if changed is not None:
                self._update(cursor, changed)
                self._groups.count(cursor, [((counted_in, stored.state), changed)], has_died=True)
            return changed is not None

        return self._house.connection.transact(act)

    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""
        return self._house.connection.run(lambda cursor: self._read(cursor, letter_id, "")[0], is_large=True)

    def get_many(self, letter_ids: Sequence[str]) -> Mapping[str, Letter | LetterUnreadable]:
        """See `LetterStore.get_many`."""
        rows = self._house.connection.run(lambda cursor: self._rows(cursor, letter_ids, ""), is_large=True)
        return {id_: found for id_, (found, _) in rows.items()}

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
        found = [(name, letter_or_error(text)) for _, _, text, name in rows]
        letters = tuple(each for _, each in found if isinstance(each, Letter))
        unreadable = tuple(name for name, each in found if isinstance(each, LetterUnreadable))
        return store.Page(letters=letters, next_cursor=cursor, unreadable=unreadable)

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
                self._groups.count(cursor, [((counted_in, stored.state), changed)], has_died=False)
            return changed

        return self._house.connection.transact(act)

    def _apply_each(self, wanted: Mapping[str, changes.Change]) -> Mapping[str, Letter | SafeguardsError | None]:
        def act(cursor: Any) -> Mapping[str, Letter | SafeguardsError | None]:
            made: dict[str, Letter | SafeguardsError | None] = dict.fromkeys(wanted)
            moves: list[Move] = []
            # All rows are held before the first is changed, in the order of their names: as whoever else holds several.
            for letter_id, row in self._rows(cursor, list(wanted), self._house.dialect.for_update).items():
                try:
                    stored = readable(row[0])
                    changed = made[letter_id] = wanted[letter_id](stored)
                except (*changes.OF_ONE_LETTER, LetterUnreadable) as error:
                    made[letter_id] = error
                    continue
                if changed is not None:
                    moves.append(((row[1], stored.state), changed))
            if moves:
                rows = [self._row(letter) for _left, letter in moves]
                cursor.executemany(self._house.tables.letters.update(_COLUMNS), rows)
                self._groups.count(cursor, moves, has_died=False)
            return made

        return self._house.connection.transact(act)

    def _read(self, cursor: Any, letter_id: str, for_update: str) -> tuple[Letter | None, str]:
        """Return a letter, and the group that it is counted in."""
        select = self._house.tables.letters.select(("letter", "fingerprint")) + for_update
        cursor.execute(select, [self._id(letter_id)])
        row = cursor.fetchone()
        return (None, "") if row is None else (Letter.from_json(row[0]), row[1])

    def _rows(
        self, cursor: Any, letter_ids: Sequence[str], for_update: str
    ) -> dict[str, tuple[Letter | LetterUnreadable, str]]:
        """Return those letters that are there, and the groups that they are counted in."""
        names = {self._id(letter_id): letter_id for letter_id in letter_ids}
        if not names:
            return {}
        table = self._house.tables.letters
        columns = ("id", "letter", "fingerprint")
        select = f"{table.select_some(columns, len(names))} ORDER BY {table.list(['id'])}{for_update}"
        cursor.execute(select, list(names))
        return {names[id_]: (letter_or_error(text), group) for id_, text, group in cursor.fetchall()}

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
