"""
Pages of lists that are walked by places instead of page numbers.

    newest ◀── newer than PLACE ── [ 50 rows ] ── older than PLACE ──▶ oldest

The promise: a page costs the same wherever it is, and in a list of any length; nothing is counted. A walk, in either
direction, shows each row that stays as it is once. What fails again meanwhile moves to the front: it may be shown
twice, or only to the next walk.

What a list is searched for, or narrowed to, without an index is asked of each row, of `MOST_LOOKED_AT` at most: the
page says so, and goes on behind those.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django.db.models import Q

from django_celery_safeguards import ranges
from django_celery_safeguards.ranges import Place, merged

OLDEST: Place = (0, "")


@dataclass(frozen=True, slots=True)
class Direction:
    """From where a page is read, and whether towards newer rows; no place: from that end of the list."""

    place: Place | None = None
    is_up: bool = False

    def is_ahead(self, at: str, by: str = "pk") -> Q:
        """Return the condition that a row comes after the place, by the columns of its time and of its id."""
        if self.place is None:
            return Q()
        (us, id_), than = self.place, "gt" if self.is_up else "lt"
        # The first of the conditions is the range of the index.
        return Q(**{f"{at}__{than}e": us}) & (Q(**{f"{at}__{than}": us}) | Q(**{f"{by}__{than}": id_}))


class Source(Protocol):
    """Rows of a list, in its order."""

    def read(self, at: str, direction: Direction, limit: int) -> tuple[Sequence[Place], Sequence[Place]]:
        """Return their first places, and how far was looked, if that was not to the end."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """
    Rows that an index has in the order of the list.

    Attributes:
        rows: narrowed by what the index begins with, and by time.
        also: narrows them by what is asked of each; None: by nothing.
        by: the column that has the ids of the list's rows.

    """

    rows: Any
    also: Callable[[Any], Any] | None = None
    by: str = "pk"

    def read(self, at: str, direction: Direction, limit: int) -> tuple[Sequence[Place], Sequence[Place]]:
        """See `Source.read`."""
        sign, by = "" if direction.is_up else "-", self.by
        ahead = self.rows.filter(direction.is_ahead(at, by)).order_by(f"{sign}{at}", f"{sign}{by}")
        if self.also is None:
            return list(ahead.values_list(at, by)[:limit]), []
        end = list(ahead.values_list(at, by)[ranges.MOST_LOOKED_AT - 1 : ranges.MOST_LOOKED_AT])
        if end:
            behind = Direction(end[0], direction.is_up).is_ahead(at, by)
            ahead = ahead.filter(**{f"{at}__{'lte' if direction.is_up else 'gte'}": end[0][0]}).exclude(behind)
        return list(self.also(ahead).values_list(at, by)[:limit]), end


@dataclass(frozen=True, slots=True)
class Found:
    """A few rows that were found one by one: those of a query that needs no order."""

    rows: Any

    def read(self, at: str, direction: Direction, limit: int) -> tuple[Sequence[Place], Sequence[Place]]:
        """See `Source.read`."""
        places = self.rows.filter(direction.is_ahead(at)).order_by().values_list(at, "pk")
        return sorted(places, reverse=not direction.is_up)[:limit], []


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """
    A page of a list.

    Attributes:
        places: of its rows, the newest first.
        newer: from where the page before it is read; None: it is the first.
        older: from where the page after it is read; None: it is the last.
        is_cut: whether it is short because no more rows were looked at.

    """

    places: Sequence[Place]
    newer: Place | None
    older: Place | None
    is_cut: bool


def page_of(sources: Sequence[Source], at: str, direction: Direction, limit: int) -> Page:
    """
    Read a page.

    Args:
        sources: of its rows; a row may be in several.
        at: the column of their times, in microseconds.
        direction: from where.
        limit: >= 1, rows at most.

    """
    read = [each.read(at, direction, limit + 1) for each in sources]
    found, ends = [places for places, _ in read], [end for _, some in read for end in some]
    places, last = merged(found, ends, limit, newest_first=not direction.is_up)
    began = None if direction.place in {None, OLDEST} else direction.place
    # Back from here to where this page began: from its first row, which that page does not have; where it has none,
    # from the place itself, together with the row that is there.
    back = None if began is None else places[0] if places else _just_behind(began, is_up=not direction.is_up)
    is_cut = bool(ends) and len(places) < limit
    if direction.is_up:
        return Page(places=places[::-1], newer=last, older=back, is_cut=is_cut)
    return Page(places=places, newer=back, older=last, is_cut=is_cut)


def _just_behind(place: Place, *, is_up: bool) -> Place:
    """Return a place from which the row at a place is read as well: an id and one more letter, or one less."""
    us, id_ = place
    return (us, id_[:-1]) if is_up else (us, f"{id_}0")
