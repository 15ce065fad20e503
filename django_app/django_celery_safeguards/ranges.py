"""
Pages of rows in the order of a time, the newest first: each page is read from ranges of indexes, and from no others.

    group g, whatever state      (g, open)      ───●──●─────●─▶ ┐
                                 (g, replayed)  ─●─────●──────▶ ├─ merged by time and id ──▶ a page, and where it ends
                                 (g, closed)    ──●───────●───▶ ┘

The promise: a page costs the same wherever it is in the list, and with a thousand rows or a million. A place is a time
and a row's id, so nothing is counted and nothing skipped. Every index ends with both: the database need sort nothing,
and no other index promises to be cheaper to a planner that knows no correlations.

What no index begins with is asked of each row, of no more than `MOST_LOOKED_AT` of a range: what is rare gets a short
page, and a place to go on from. In the indexes of tasks and groups it stands behind the id: no letter is fetched to be
asked.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter import changes
from celery_safeguards.deadletter.letter import STATES
from django_celery_safeguards.house import House
from django_celery_safeguards.sql import Table, shown

MOST_LOOKED_AT = 5_000
Place = tuple[int, str]
"""Where a row stands: its time in microseconds, and its id."""

_LEADING = ("fingerprint", "task", "kind")
"""What an index of letters begins with, each followed by the state; the fewest letters first."""


def letter_ranges(wanted: Mapping[str, Any]) -> tuple[list[Mapping[str, str]], Mapping[str, str]]:
    """
    Return the ranges in which letters are, by what their indexes begin with, and what is asked of each letter.

    Args:
        wanted: of their columns `fingerprint`, `task`, `kind` and `state`; the state may be several.

    """
    leading = next((name for name in _LEADING if name in wanted), None)
    if leading is None and "state" not in wanted:
        return [wanted], {}
    state = wanted.get("state", STATES)
    first = {} if leading is None else {leading: wanted[leading]}
    rest = {name: value for name, value in wanted.items() if name not in {leading, "state"}}
    return [{**first, "state": each} for each in ([state] if isinstance(state, str) else state)], rest


def merged(
    found: Sequence[Sequence[Place]], ends: Sequence[Place], limit: int, *, newest_first: bool = True
) -> tuple[list[Place], Place | None]:
    """
    Return the places of a page, and the one that the next page begins behind; None: that was all.

    Args:
        found: of each range in their order, one more than the limit if there are as many.
        ends: of each range that was not looked at to its end, how far.
        limit: >= 1, places at most.
        newest_first: the order of all of them.

    """
    # Each is in order, and so is what they are merged to; a letter that has two of the terms comes twice.
    places = list(dict.fromkeys(heapq.merge(*found, reverse=newest_first)))
    horizon = None
    if ends:
        # Beyond the nearest end, the range that ended there may have more.
        horizon = max(ends) if newest_first else min(ends)
        places = [each for each in places if (each >= horizon if newest_first else each <= horizon)]
    return places[:limit], places[limit - 1] if len(places) > limit else horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """
    Rows that follow each other in an index.

    Attributes:
        table: whose index.
        equal: what it begins with.
        name: the column that tells rows of one time apart, and orders them.
        at: the column of their times.
        letters: the table that has the rest, by the ids in that column; None: `table` itself.

    """

    table: Table
    equal: Mapping[str, Any]
    name: str = "id"
    at: str = "last_failed_us"
    letters: Table | None = None

    def end(self, cursor: Any, before: Place | None) -> list[Place]:
        """Return how far one call looks, if the range goes on behind that."""
        return self._read(cursor, before, None, {}, f"LIMIT 1 OFFSET {MOST_LOOKED_AT - 1}")

    def read(
        self, cursor: Any, before: Place | None, until: Place | None, also: Mapping[str, str], limit: int
    ) -> list[Place]:
        """Return the first places between two of those whose rows have what is wanted."""
        return self._read(cursor, before, until, also, f"LIMIT {limit}")

    def _read(
        self, cursor: Any, before: Place | None, until: Place | None, also: Mapping[str, str], limit: str
    ) -> list[Place]:
        tables, at, row = self.table.name, self._column(self.table, self.at), self._column(self.table, self.name)
        where = " AND ".join(f"{self._column(self.table, name)} = %s" for name in self.equal)
        values = list(self.equal.values())
        # Of each pair the first condition is the range of the index; with one of both it would be read from its end.
        for place, than, or_that in ((before, "<", ""), (until, ">", "=")):
            if place is not None:
                where += f" AND {at} {than}= %s AND ({at} {than} %s OR {row} {than}{or_that} %s)"
                values += [place[0], *place]
        if also and self.letters is not None:
            # SQLite takes the tables of a CROSS JOIN in this order: the index gives the order of the page.
            tables += f" CROSS JOIN {self.letters.name}"
            where += f" AND {self._column(self.letters, 'id')} = {row}"
        for name, value in also.items():
            # A function of a column has no index: the planner is left with the one of the range.
            where += f" AND COALESCE({self._column(self.letters or self.table, name)}, '') = %s"
            values.append(value)
        order = f"ORDER BY {at} DESC, {row} DESC {limit}"
        cursor.execute(f"SELECT {at}, {row} FROM {tables} WHERE {where} {order}", values)
        return [(at_us, name) for at_us, name in cursor.fetchall()]

    def _column(self, table: Table, name: str) -> str:
        return f"{table.name}.{table.list([name])}"


def page_of(
    house: House, ranges: Sequence[Range], also: Mapping[str, str], limit: int, before: str | None
) -> tuple[list[str], str | None]:
    """
    Return the ids of the rows of a page, the newest failure first, and the cursor of the next page.

    Args:
        house: by whose connection.
        ranges: which rows.
        also: what is asked of each of them; of no more than `MOST_LOOKED_AT` of each range.
        limit: >= 1, rows at most.
        before: cursor of an earlier page.

    """
    changes.require_limit(limit)
    place = None
    if before is not None:
        seconds, row = changes.from_cursor(before)
        place = (to_us(seconds), shown(row, 64))

    def act(cursor: Any) -> tuple[list[list[Place]], list[Place]]:
        found, ends = [], []
        for each in ranges:
            end = each.end(cursor, place) if also else []
            found.append(each.read(cursor, place, end[0] if end else None, also, limit + 1))
            ends += end
        return found, ends

    places, last = merged(*house.connection.run(act), limit)
    return [row for _, row in places], None if last is None else changes.to_cursor(last[0] / 1_000_000, last[1])


def rows_of(house: House, table: Table, columns: Sequence[str], ids: Sequence[str]) -> list[Any]:
    """Return rows in the order of their ids, each with its id and then the columns; a deleted one is left out."""
    if not ids:
        return []
    select = table.select_some(["id", *columns], len(ids))

    def act(cursor: Any) -> dict[str, Any]:
        cursor.execute(select, list(ids))
        return {row[0]: row for row in cursor.fetchall()}

    found = house.connection.run(act, is_large=True)
    return [found[each] for each in ids if each in found]
