"""
What letters are found by, in the project's database: a row for each letter and term, written in the transaction that
writes the letter.

A row repeats the time of the letter's last failure, so the newest letters of a term are one range of an index, read
from its end: a page costs the same with ten letters of a term or a million. The letter's own row says by a digest which
rows it has; so a change that leaves them as they are costs no statement, and a letter of an older version, which has
none, gets its rows by its next change. Of a letter that has come to be found by more, the new rows alone are written.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.terms import terms_of
from django_celery_safeguards.house import House
from django_celery_safeguards.ranges import Range
from django_celery_safeguards.sql import parameters

_ROWS_A_STATEMENT = 200
_KEY = ("namespace", "term", "last_failed_us", "letter_row")


def digest_of(letter: Letter) -> str:
    """Return what a letter's row says of its rows here."""
    whole = f"{to_us(letter.last_failed_seconds)} {' '.join(terms_of(letter))}"
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


class Written(NamedTuple):
    """
    A letter as it is written.

    Attributes:
        row: the id of its row.
        before: as it was read; None: it is new.
        letter: as it is now.
        had: what its row said of its rows here; empty: it had none.
        has: what its row says of them now.

    """

    row: str
    before: Letter | None
    letter: Letter
    had: str
    has: str


class OrmTerms:
    """The terms of one namespace; see `OrmLetterStore`."""

    def __init__(self, house: House) -> None:
        self._house = house

    def write(self, cursor: Any, letters: Iterable[Written]) -> None:
        """
        Have letters found by their terms.

        Args:
            cursor: in the transaction that has written the letters.
            letters: those that were written.

        """
        changed = [each for each in letters if each.had != each.has]
        if not changed:
            return
        table = self._house.tables.terms
        kept = {each.row: _kept(each) for each in changed}
        # Not where there are none: in MariaDB that would hold the gap which another letter's rows go to.
        self.remove(cursor, [each.row for each in changed if each.had and not kept[each.row]])
        rows = [
            (self._house.namespace, term, to_us(each.letter.last_failed_seconds), each.row)
            for each in changed
            for term in terms_of(each.letter)
            if term not in kept[each.row]
        ]
        for first in range(0, len(rows), _ROWS_A_STATEMENT):
            some = rows[first : first + _ROWS_A_STATEMENT]
            values = ", ".join([f"({parameters(len(_KEY))})"] * len(some))
            insert = f"INSERT INTO {table.name} ({table.list(_KEY)}) VALUES {values}"
            cursor.execute(insert, [each for row in some for each in row])

    def remove(self, cursor: Any, letter_rows: Sequence[str]) -> None:
        """Delete the rows of letters that have some, by the ids of the letters' rows."""
        if letter_rows:
            table = self._house.tables.terms
            where = f"{table.list(['letter_row'])} IN ({parameters(len(letter_rows))})"
            cursor.execute(f"DELETE FROM {table.name} WHERE {where}", list(letter_rows))

    def ranges(self, terms: Sequence[str]) -> list[Range]:
        """Return where the index has the letters of these terms."""
        index, letters, namespace = self._house.tables.terms, self._house.tables.letters, self._house.namespace
        found_by = [{"namespace": namespace, "term": term} for term in terms]
        return [Range(table=index, equal=each, name="letter_row", letters=letters) for each in found_by]


def _kept(written: Written) -> frozenset[str]:
    """Return the terms whose rows are right as they are; none: some are not, or nobody knows which there are."""
    before, letter = written.before, written.letter
    if before is None or written.had != digest_of(before):
        return frozenset()
    terms = frozenset(terms_of(before))
    is_later = to_us(letter.last_failed_seconds) != to_us(before.last_failed_seconds)
    return frozenset() if is_later or not terms.issubset(terms_of(letter)) else terms
