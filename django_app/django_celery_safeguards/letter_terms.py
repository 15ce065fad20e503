"""
What letters are found by, in the project's database: a row for each letter and term, written in the transaction that
writes the letter.

A row repeats the time of the letter's last failure, so the newest letters of a term are one range of an index, read
from its end: a page costs the same with ten letters of a term or a million. The letter's own row says by a digest which
rows it has; so a change that leaves them as they are costs no statement, and a letter of an older version, which has
none, gets its rows by its next change.
"""

import hashlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter import changes
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.terms import terms_of
from django_celery_safeguards.house import House
from django_celery_safeguards.models import NAME_CHARS
from django_celery_safeguards.sql import parameters, shown

MOST_LOOKED_AT = 5_000
_ROWS_A_STATEMENT = 200
_KEY = ("namespace", "term", "last_failed_us", "letter_row")
_Place = tuple[int, str]
"""Where a letter stands: its last failure in microseconds, and the id of its row."""


def digest_of(letter: Letter) -> str:
    """Return what a letter's row says of its rows here."""
    whole = f"{to_us(letter.last_failed_seconds)} {' '.join(terms_of(letter))}"
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


class OrmTerms:
    """The terms of one namespace; see `OrmLetterStore`."""

    def __init__(self, house: House) -> None:
        self._house = house

    def write(self, cursor: Any, letters: Iterable[tuple[str, Letter, str]]) -> None:
        """
        Have letters found by their terms.

        Args:
            cursor: in the transaction that has written the letters.
            letters: of each the id of its row, the letter as it is written, and what its row said of its rows here
                before; empty: it has none.

        """
        changed = [(row, letter, written) for row, letter, written in letters if written != digest_of(letter)]
        if not changed:
            return
        table = self._house.tables.terms
        # Not where there are none: in MariaDB that would hold the gap which another letter's rows go to.
        outdated = [row for row, _, written in changed if written]
        if outdated:
            where = f"{table.list(['letter_row'])} IN ({parameters(len(outdated))})"
            cursor.execute(f"DELETE FROM {table.name} WHERE {where}", outdated)
        rows = [
            (self._house.namespace, term, to_us(letter.last_failed_seconds), row)
            for row, letter, _ in changed
            for term in terms_of(letter)
        ]
        for first in range(0, len(rows), _ROWS_A_STATEMENT):
            some = rows[first : first + _ROWS_A_STATEMENT]
            values = ", ".join([f"({parameters(len(_KEY))})"] * len(some))
            insert = f"INSERT INTO {table.name} ({table.list(_KEY)}) VALUES {values}"
            cursor.execute(insert, [each for row in some for each in row])

    def page(
        self, terms: Sequence[str], given: Mapping[str, str | None], limit: int, before: str | None
    ) -> tuple[list[str], str | None]:
        """
        Return the ids of the rows of letters that have one of these terms, and the cursor of the next page.

        One call looks at no more than `MOST_LOOKED_AT` letters of each term: a rare filter gets a short page, and a
        cursor.

        Args:
            terms: a range of the index is read for each.
            given: what the letters' columns must hold; None: whatever they do.
            limit: >= 1, rows at most.
            before: cursor of an earlier page.

        """
        changes.require_limit(limit)
        place = None
        if before is not None:
            seconds, row = changes.from_cursor(before)
            place = (to_us(seconds), shown(row, 64))
        wanted = {name: shown(value, NAME_CHARS) for name, value in given.items() if value is not None}

        def act(cursor: Any) -> tuple[list[list[_Place]], list[_Place]]:
            found, ends = [], []
            for term in terms:
                range_ = _Range(self._house, term, before=place)
                if wanted:
                    range_, end = range_.bounded(cursor)
                    ends += end
                found.append(range_.read(cursor, wanted, limit + 1))
            return found, ends

        found, ends = self._house.connection.run(act)
        # Each is the newest first, and so is what they are merged to; a letter that has two of the terms comes twice.
        merged = list(dict.fromkeys(heapq.merge(*found, reverse=True)))
        # Beyond the nearest end of what was looked at, the term that ended there may have more.
        horizon = max(ends, default=None)
        places = [each for each in merged if horizon is None or each >= horizon]
        last = places[limit - 1] if len(places) > limit else horizon
        rows = [row for _, row in places[:limit]]
        return rows, None if last is None else changes.to_cursor(last[0] / 1_000_000, last[1])


@dataclass(frozen=True, slots=True)
class _Range:
    """The letters of a term, the newest first: those behind a place, down to another one."""

    house: House
    term: str
    before: _Place | None = None
    until: _Place | None = None

    def bounded(self, cursor: Any) -> tuple["_Range", list[_Place]]:
        """Return as much of it as one call looks at, and where that ends, if it does."""
        sql, values = self._asked({}, f"LIMIT 1 OFFSET {MOST_LOOKED_AT - 1}")
        cursor.execute(sql, values)
        end = [(at_us, row) for at_us, row in cursor.fetchall()]
        return replace(self, until=end[0] if end else None), end

    def read(self, cursor: Any, wanted: Mapping[str, str], limit: int) -> list[_Place]:
        """Return the first places of those whose letters have what is wanted."""
        sql, values = self._asked(wanted, f"LIMIT {limit}")
        cursor.execute(sql, values)
        return [(at_us, row) for at_us, row in cursor.fetchall()]

    def _asked(self, wanted: Mapping[str, str], limit: str) -> tuple[str, list[Any]]:
        terms, letters = self.house.tables.terms, self.house.tables.letters
        namespace, term, at, row = (f"{terms.name}.{terms.list([each])}" for each in _KEY)
        tables, where = terms.name, f"{namespace} = %s AND {term} = %s"
        values: list[Any] = [self.house.namespace, self.term]
        # Of each pair the first condition is the range of the index; with one of both it would be read from its end.
        for place, than in ((self.before, "<"), (self.until, ">")):
            if place is not None:
                or_that = "" if than == "<" else "="
                where += f" AND {at} {than}= %s AND ({at} {than} %s OR {row} {than}{or_that} %s)"
                values += [place[0], *place]
        if wanted:
            # SQLite takes the tables of a CROSS JOIN in this order: the index gives the order of the page.
            tables += f" CROSS JOIN {letters.name}"
            where += f" AND {letters.name}.{letters.list(['id'])} = {row}"
            for name, value in wanted.items():
                where += f" AND {letters.name}.{letters.list([name])} = %s"
                values.append(value)
        return f"SELECT {at}, {row} FROM {tables} WHERE {where} ORDER BY {at} DESC, {row} DESC {limit}", values
