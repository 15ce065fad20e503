"""
Groups of dead letters in the project's database, counted in the transaction that writes the letter.

Nobody waits for anybody who waits for him: a transaction holds one letter's row first, then the rows of one group or
two, in the order of their fingerprints.

A failure storm writes one group's row once for each letter, one after the other; each holds it for two statements.

A group that cannot be read (damaged, or written by a newer version) stays as it is: a letter that joins it is written
all the same, as one that no group counts, and is counted at its next change once the group can be read.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter.group import GroupChange, LetterGroup, group_of, holding, without
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State
from celery_safeguards.deadletter.port.reading import GroupPage
from celery_safeguards.deadletter.retention import is_forgotten
from django_celery_safeguards.house import House
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.ranges import Range, page_of, rows_of
from django_celery_safeguards.sql import row_id, shown

_COLUMNS = (
    *("task", "kind", "error_type", "sample", "status", "assignee", "failures", "letters", "open_letters"),
    *("first_failed_us", "last_failed_us", "group", "namespace", "fingerprint"),
)

Move = tuple[tuple[str, State] | None, Letter]
logger = logging.getLogger(__name__)


class OrmGroups:
    """The groups of one namespace; see `OrmLetterStore`."""

    def __init__(self, house: House) -> None:
        self._house = house

    def count(self, cursor: Any, moves: Sequence[Move], *, has_died: bool) -> Collection[str]:
        """
        Count letters where they are now; returns the groups that cannot be read, and count nothing.

        Args:
            cursor: in the transaction that has written the letters.
            moves: of each, the group that it was counted in with its state there (no group: in none), and the letter.
            has_died: whether these were failures.

        """
        moves = [(left, letter) for left, letter in moves if has_died or left != (letter.fingerprint, letter.state)]
        befores = {left[0] for left, _ in moves if left and left[0]}
        groups: dict[str, LetterGroup] = {}
        unreadable: set[str] = set()
        for fingerprint in sorted(befores | {letter.fingerprint for _, letter in moves}):
            try:
                stored = self._read(cursor, fingerprint, self._house.dialect.for_update)
            except LetterUnreadable as error:
                logger.error("group %s counts nothing: %s", fingerprint, error)  # noqa: TRY400 - it says why
                unreadable.add(fingerprint)
                continue
            groups |= {} if stored is None else {fingerprint: stored}
        known = set(groups)
        for left, letter in moves:
            if left and left[0] in groups:
                groups[left[0]] = without(groups[left[0]], left[1])
            if letter.fingerprint not in unreadable:
                groups[letter.fingerprint] = holding(
                    groups.get(letter.fingerprint) or group_of(letter), letter, has_died=has_died
                )
        for fingerprint, group in groups.items():
            self._write(cursor, group, is_new=fingerprint not in known)
        return unreadable

    def leave(self, cursor: Any, left: Sequence[tuple[str, State]]) -> None:
        """Count letters that are gone no more; `left`: of each the group that counted it, and its state there."""
        for fingerprint in sorted({name for name, _ in left if name}):
            try:
                group = self._read(cursor, fingerprint, self._house.dialect.for_update)
            except LetterUnreadable:
                continue
            if group is None:
                continue
            for _, state in (each for each in left if each[0] == fingerprint):
                group = without(group, state)
            self._write(cursor, group, is_new=False)

    def remove(self, fingerprint: str, before_seconds: float) -> bool:
        """See `LetterStore.remove_group`."""

        def act(cursor: Any) -> bool:
            # A burial holds its letter first and this row last: it waits here, and then finds no group, and begins one.
            stored = self._read(cursor, fingerprint, self._house.dialect.for_update)
            is_removed = stored is not None and is_forgotten(stored, before_seconds)
            if is_removed:
                cursor.execute(self._house.tables.groups.delete(), [self._id(fingerprint)])
            return is_removed

        return self._house.connection.transact(act)

    def get(self, fingerprint: str) -> LetterGroup | None:
        """See `LetterStore.get_group`."""
        return self._house.connection.run(lambda cursor: self._read(cursor, fingerprint, ""))

    def page(self, limit: int, before: str | None, wanted: Mapping[str, str | None]) -> GroupPage:
        """See `LetterStore.groups`."""
        columns = {name: shown(value, NAME_CHARS) for name, value in wanted.items() if value is not None}
        status = {name: columns.pop(name) for name in ("status",) if name in columns}
        range_ = Range(table=self._house.tables.groups, equal={"namespace": self._house.namespace, **status})
        ids, cursor = page_of(self._house, [range_], columns, limit, before)
        groups, unreadable = [], []
        for _, text, fingerprint in rows_of(self._house, range_.table, ("group", "fingerprint"), ids):
            try:
                groups.append(LetterGroup.from_json(text))
            except LetterUnreadable:
                unreadable.append(fingerprint)
        return GroupPage(groups=tuple(groups), next_cursor=cursor, unreadable=tuple(unreadable))

    def apply(self, fingerprint: str, change: GroupChange) -> LetterGroup | None:
        """Change a group as it is stored; None: there is none."""

        def act(cursor: Any) -> LetterGroup | None:
            stored = self._read(cursor, fingerprint, self._house.dialect.for_update)
            changed = None if stored is None else change(stored)
            if changed is not None:
                self._write(cursor, changed, is_new=False)
            return changed

        return self._house.connection.transact(act)

    def _read(self, cursor: Any, fingerprint: str, for_update: str) -> LetterGroup | None:
        cursor.execute(self._house.tables.groups.select(("group",)) + for_update, [self._id(fingerprint)])
        row = cursor.fetchone()
        return None if row is None else LetterGroup.from_json(row[0])

    def _write(self, cursor: Any, group: LetterGroup, *, is_new: bool) -> None:
        texts = (group.task, group.kind, group.error_type, group.sample, group.status, group.assignee)
        values = [
            *(shown(text, NAME_CHARS) for text in texts),
            *(group.failures, group.letters, group.counts.get("open", 0)),
            *(to_us(group.first_failed_seconds), to_us(group.last_failed_seconds)),
            *(group.to_json(), self._house.namespace, group.fingerprint),
        ]
        table = self._house.tables.groups
        statement = table.insert((*_COLUMNS, "id")) if is_new else table.update(_COLUMNS)
        cursor.execute(statement, [*values, self._id(group.fingerprint)])

    def _id(self, fingerprint: str) -> str:
        return row_id(self._house.namespace, fingerprint)
