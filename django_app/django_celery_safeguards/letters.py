"""
Dead letters in the project's database.

The promise: every change is a transaction that holds the letter's row from reading it to writing it, so of any number
of writers in any number of processes each change has one winner, decided by the same functions as in every other store.
What a group counts and what a letter is found by is written in that transaction.

Not covered: an answer that is lost. The change is then made once more, and the caller is told of the state that its own
first try has brought about. Letters never expire: those that are over are removed by `remove`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter import changes, retention
from celery_safeguards.deadletter.group import GroupChange, GroupStatus, LetterGroup
from celery_safeguards.deadletter.lately import LatelyKnown
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State, letter_or_error
from celery_safeguards.deadletter.port.reading import GroupPage, Page
from celery_safeguards.deadletter.steps import LetterSteps
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.outcome import FailureKind
from django_celery_safeguards.house import House
from django_celery_safeguards.letter_groups import Move, OrmGroups
from django_celery_safeguards.letter_terms import OrmTerms, Written, digest_of
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.ranges import Range, letter_ranges, page_of, rows_of
from django_celery_safeguards.sql import parameters, row_id, rows_as_json, shown

_COLUMNS = (
    *("state", "task", "kind", "key", "scope", "group", "first_failed_us", "last_failed_us", "letter"),
    *("task_id", "reason", "error", "attempts", "fingerprint", "terms_written", "over_us", "namespace", "letter_id"),
)

_LETTER = _COLUMNS.index("letter")
_MOST_ATTEMPTS = 2**31 - 1
"""That a row can tell."""
_MOST_CHARS_TOGETHER = 10_000_000
"""Of letters in one parameter: a hundred of the largest would be more than PostgreSQL takes."""


class _AsRead(NamedTuple):
    """A letter as it is stored, the group that counts it, and what its row says of its terms."""

    letter: Letter
    counted_in: str
    terms_written: str
    text: str


_Write = tuple[_AsRead | None, Letter]
"""A letter as it was read, and as it is now."""


class OrmLetterStore(LetterSteps):
    """
    A `LetterStore` in rows.

    Safe when: used by several threads and processes; used before and after a fork; the user's transaction rolls back.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._groups = OrmGroups(house)
        self._terms = OrmTerms(house)
        self._lately = LatelyKnown()

    def bury(self, letter: Letter) -> bool:
        """See `LetterStore.bury`."""

        def act(cursor: Any) -> bool:
            as_read = self._read(cursor, letter.id, self._house.dialect.for_update)
            changed = changes.as_buried(letter) if as_read is None else changes.reburial(letter)(as_read.letter)
            if changed is not None:
                self._write(cursor, [(as_read, changed)], has_died=True)
            return changed is not None

        return self._house.connection.transact(act)

    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""
        found = self._house.connection.run(lambda cursor: self._read(cursor, letter_id, ""), is_large=True)
        return None if found is None else found.letter

    def get_many(self, letter_ids: Sequence[str]) -> Mapping[str, Letter | LetterUnreadable]:
        """See `LetterStore.get_many`."""
        rows = self._house.connection.run(lambda cursor: self._several(cursor, letter_ids, ""), is_large=True)
        return {id_: found.letter if isinstance(found, _AsRead) else found for id_, found in rows.items()}

    def list(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        state: State | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
        fingerprint: str | None = None,
        terms: Sequence[str] = (),
    ) -> Page:
        """See `LetterStore.list`."""
        given = {"state": state, "task": task, "kind": kind, "fingerprint": fingerprint}
        wanted = {name: shown(value, NAME_CHARS) for name, value in given.items() if value is not None}
        also: Mapping[str, str] = wanted
        if terms:
            ranges = self._terms.ranges(terms)
        else:
            each_equal, also = letter_ranges(wanted)
            namespace, table = {"namespace": self._house.namespace}, self._house.tables.letters
            ranges = [Range(table=table, equal={**namespace, **equal}) for equal in each_equal]
        return self._page(ranges, also, limit, before)

    def over(self, before_seconds: float, *, limit: int = 50, before: str | None = None) -> Page:
        """See `LetterStore.over`."""
        place = changes.to_cursor(before_seconds, "") if before is None else before
        namespace, table = self._house.namespace, self._house.tables.letters
        of_states = [{"namespace": namespace, "state": state} for state in (*retention.OVER, "archived")]
        return self._page([Range(table=table, equal=each, at="over_us") for each in of_states], {}, limit, place)

    def remove(self, letter_ids: Sequence[str], before_seconds: float) -> int:
        """See `LetterStore.remove`."""

        def act(cursor: Any) -> int:
            read = self._several(cursor, letter_ids, self._house.dialect.for_update)
            found = {id_: each for id_, each in read.items() if isinstance(each, _AsRead)}
            gone = {id_: each for id_, each in found.items() if retention.is_over(each.letter, before_seconds)}
            if not gone:
                return 0
            table, ids = self._house.tables.letters, [self._id(letter_id) for letter_id in gone]
            self._terms.remove(cursor, [self._id(id_) for id_, each in gone.items() if each.terms_written])
            cursor.execute(f"DELETE FROM {table.name} WHERE {table.list(['id'])} IN ({parameters(len(ids))})", ids)
            self._groups.leave(cursor, [(each.counted_in, each.letter.state) for each in gone.values()])
            return len(ids)

        return self._house.connection.transact(act)

    def remove_group(self, fingerprint: str, before_seconds: float) -> bool:
        """See `LetterStore.remove_group`."""
        return self._groups.remove(fingerprint, before_seconds)

    def groups(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        status: GroupStatus | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
    ) -> GroupPage:
        """See `LetterStore.groups`."""
        return self._groups.page(limit, before, {"status": status, "task": task, "kind": kind})

    def get_group(self, fingerprint: str) -> LetterGroup | None:
        """See `LetterStore.get_group`."""
        return self._groups.get(fingerprint)

    def _page(self, ranges: Sequence[Range], also: Mapping[str, str], limit: int, before: str | None) -> Page:
        ids, cursor = page_of(self._house, ranges, also, limit, before)
        rows = rows_of(self._house, self._house.tables.letters, ("letter", "letter_id"), ids)
        found = [(name, letter_or_error(text)) for _, text, name in rows]
        letters = tuple(each for _, each in found if isinstance(each, Letter))
        unreadable = tuple(name for name, each in found if isinstance(each, LetterUnreadable))
        return Page(letters=letters, next_cursor=cursor, unreadable=unreadable)

    def _apply_to_group(self, fingerprint: str, change: GroupChange) -> LetterGroup | None:
        return self._groups.apply(fingerprint, change)

    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        def act(cursor: Any) -> Letter | None:
            as_read = self._read(cursor, letter_id, self._house.dialect.for_update)
            changed = None if as_read is None else change(as_read.letter)
            if changed is not None:
                self._write(cursor, [(as_read, changed)], has_died=False)
            return changed

        return self._house.connection.transact(act)

    def _apply_each(self, wanted: Mapping[str, changes.Change]) -> Mapping[str, Letter | SafeguardsError | None]:
        def act(cursor: Any) -> Mapping[str, Letter | SafeguardsError | None]:
            made: dict[str, Letter | SafeguardsError | None] = dict.fromkeys(wanted)
            writes: list[_Write] = []
            # All rows are held before the first is changed, in the order of their names: as whoever else holds several.
            for letter_id, found in self._several(cursor, list(wanted), self._house.dialect.for_update).items():
                if isinstance(found, LetterUnreadable):
                    made[letter_id] = found
                    continue
                try:
                    changed = made[letter_id] = wanted[letter_id](found.letter)
                except changes.OF_ONE_LETTER as error:
                    made[letter_id] = error
                    continue
                if changed is not None:
                    writes.append((found, changed))
            self._write(cursor, writes, has_died=False)
            return made

        return self._house.connection.transact(act)

    def _read(self, cursor: Any, letter_id: str, for_update: str) -> _AsRead | None:
        select = self._house.tables.letters.select(("letter", "fingerprint", "terms_written")) + for_update
        cursor.execute(select, [self._id(letter_id)])
        row = cursor.fetchone()
        return None if row is None else _AsRead(Letter.from_json(row[0]), row[1], row[2], row[0])

    def _several(
        self, cursor: Any, letter_ids: Sequence[str], for_update: str
    ) -> dict[str, _AsRead | LetterUnreadable]:
        """Return those letters that are there, in the order of their rows' names."""
        names = {self._id(letter_id): letter_id for letter_id in letter_ids}
        if not names:
            return {}
        table = self._house.tables.letters
        columns = ("id", "letter", "fingerprint", "terms_written")
        select = f"{table.select_some(columns, len(names))} ORDER BY {table.list(['id'])}{for_update}"
        cursor.execute(select, list(names))
        found: dict[str, _AsRead | LetterUnreadable] = {}
        for id_, text, counted_in, terms_written in cursor.fetchall():
            letter = self._lately.read(text)
            found[names[id_]] = (
                letter if isinstance(letter, LetterUnreadable) else _AsRead(letter, counted_in, terms_written, text)
            )
        return found

    def _write(self, cursor: Any, writes: Sequence[_Write], *, has_died: bool) -> None:
        """Write letters in place of what was read, or a new one, and count them."""
        if not writes:
            return
        table = self._house.tables.letters
        written = [self._written(as_read, letter) for as_read, letter in writes]
        rows = [self._row(each) for each in written]
        if len(rows) == 1:
            is_new = writes[0][0] is None
            cursor.execute(table.insert((*_COLUMNS, "id")) if is_new else table.update(_COLUMNS), rows[0])
        elif self._house.dialect.reads_rows and sum(len(row[_LETTER]) for row in rows) <= _MOST_CHARS_TOGETHER:
            cursor.execute(table.update_each(_COLUMNS), [rows_as_json((*_COLUMNS, "id"), rows)])
        else:
            cursor.executemany(table.update(_COLUMNS), rows)
        if len(rows) > 1:
            for (as_read, letter), row in zip(writes, rows, strict=True):
                self._lately.keep(row[_LETTER], letter, instead_of=as_read.text if as_read else "")
        self._terms.write(cursor, written)
        # Last: of all that is written here, others wait for the group's row alone.
        unreadable = self._groups.count(
            cursor, [_move(as_read, letter) for as_read, letter in writes], has_died=has_died
        )
        for as_read, letter in writes:
            if letter.fingerprint in unreadable and (as_read is None or as_read.counted_in != letter.fingerprint):
                cursor.execute(table.update(["fingerprint"]), ["", self._id(letter.id)])

    def _written(self, as_read: _AsRead | None, letter: Letter) -> Written:
        before, had = (as_read.letter, as_read.terms_written) if as_read else (None, "")
        return Written(self._id(letter.id), before, letter, had, digest_of(letter))

    def _row(self, written: Written) -> Sequence[Any]:
        letter = written.letter
        error, reason = letter.shown_error or letter.error_message, letter.shown_reason or letter.reason
        error = f"{letter.error_type}: {error}" if letter.error_type else error
        names = (letter.task, letter.kind, letter.key, letter.scope, letter.group_id)
        over = retention.over_since(letter)
        return [
            letter.state,
            *(shown(name, NAME_CHARS) for name in names),
            to_us(letter.first_seen_seconds),
            to_us(letter.last_failed_seconds),
            letter.to_json(),
            *(shown(text, NAME_CHARS) for text in (letter.task_id, reason, error)),
            # Of a stranger's message it is any number at all; the letter keeps it as it is.
            min(max(letter.attempts, 0), _MOST_ATTEMPTS),
            letter.fingerprint,
            written.has,
            None if over is None else to_us(over),
            self._house.namespace,
            shown(letter.id, NAME_CHARS),
            written.row,
        ]

    def _id(self, letter_id: str) -> str:
        return row_id(self._house.namespace, letter_id)


def _move(as_read: _AsRead | None, letter: Letter) -> Move:
    return None if as_read is None else (as_read.counted_in, as_read.letter.state), letter
