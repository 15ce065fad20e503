"""Where a list's letters are: those that it is narrowed to, and those that a person's words name."""

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import connections
from django.db.models import Value
from django.db.models.functions import Coalesce

from django_celery_safeguards.paging import Rows, Source
from django_celery_safeguards.ranges import letter_ranges

_LAST_CHARACTER = "\U0010ffff"


def narrowed(rows: Any, chosen: Mapping[str, Any]) -> list[Source]:
    """
    Return where the letters are that a list is narrowed to.

    Args:
        rows: of `DeadLetter`.
        chosen: conditions; those of time have a `__` in their names.

    """
    times = {name: value for name, value in chosen.items() if "__" in name}
    ranges, rest = letter_ranges({name: value for name, value in chosen.items() if name not in times})

    def also(some: Any) -> Any:
        # A function of a column has no index: the planner is left with the one of the range.
        asked = {f"asked_{name}": Coalesce(name, Value("")) for name in rest}
        return some.alias(**asked).filter(**{f"asked_{name}": value for name, value in rest.items()})

    return [Rows(rows.filter(**times, **each), also if rest else None) for each in ranges]


def with_key(rows: Any, beginning: str, most: int) -> list[str]:
    """Return the ids of letters whose key begins so, the first in the order of their keys."""
    if connections[rows.db].vendor == "sqlite":
        # Its LIKE knows no index; its texts are compared as bytes, and none of them is above this character.
        found = rows.filter(key__gte=beginning, key__lt=f"{beginning}{_LAST_CHARACTER}")
    else:
        found = rows.filter(key__startswith=beginning)
    return list(found.order_by().values_list("pk", flat=True)[:most])


def with_terms(rows: Any, terms: Any, wanted: Iterable[str], *, key: str, most: int) -> list[str]:
    """
    Return the ids of the newest letters that have one of some terms.

    Args:
        rows: of `DeadLetter`.
        terms: of `LetterTerm`, of the same namespace.
        wanted: the terms.
        key: of letters of an older version, which no term finds yet.
        most: >= 1, ids at most.

    """
    places = set(rows.filter(key=key).order_by().values_list("last_failed_us", "pk")[:most])
    for each in wanted:
        newest = terms.filter(term=each).order_by("-last_failed_us", "-letter_row")
        places.update(newest.values_list("last_failed_us", "letter_row")[:most])
    return [row for _, row in heapq.nlargest(most, places)]
