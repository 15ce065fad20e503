"""
What letters are found by, in the project's database: a row for each letter and term, written in the transaction that
writes the letter.

A row repeats the time of the letter's last failure, so the newest letters of a term are one range of an index, read
from its end: a page costs the same with ten letters of a term or a million. The letter's own row says by a digest which
rows it has; so a change that leaves them as they are costs no statement, and a letter of an older version, which has
none, gets its rows by its next change.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

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
        self.remove(cursor, [row for row, _, written in changed if written])
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
