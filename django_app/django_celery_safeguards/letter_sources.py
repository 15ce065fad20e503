"""Where a list's letters are: those that it is narrowed to, and those that a person's words name."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connections
from django.db.models import OuterRef, Subquery, Value
from django.db.models.functions import Coalesce

from django_celery_safeguards.models import DeadLetter
from django_celery_safeguards.paging import Rows, Source
from django_celery_safeguards.ranges import letter_ranges
from django_celery_safeguards.sql import Table

MOST_TASKS_EACH = 10
_LAST_CHARACTER = "\U0010ffff"


def narrowed(rows: Any, chosen: Mapping[str, Any], tasks: Sequence[str] = ()) -> list[Source]:
    """
    Return where the letters are that a list is narrowed to.

    Args:
        rows: of `DeadLetter`.
        chosen: conditions; those of time have a `__` in their names.
        tasks: of one of which each letter is asked to be; none: of whatever task.

    """
    times, columns = _parted(chosen)
    ranges, rest = letter_ranges(columns)

    def also(some: Any) -> Any:
        return _asked(some, rest, tasks)

    return [Rows(rows.filter(**times, **each), also if rest or tasks else None) for each in ranges]


def of_tasks(rows: Any, chosen: Mapping[str, Any], names: Sequence[str]) -> list[Source]:
    """
    Return where the letters of some tasks are that a list is narrowed to as well; see `narrowed`.

    A few tasks are read each from its own ranges. Of many these would be hundreds: whether it is of one of them is then
    asked of each letter, of as many at a time as for whatever no index begins with.
    """
    if len(names) > MOST_TASKS_EACH:
        return narrowed(rows, chosen, names)
    return list(itertools.chain.from_iterable(narrowed(rows, {**chosen, "task": name}) for name in names))


def task_names(alias: str, namespace: str, most: int) -> list[str]:
    """
    Return the names of the tasks that have letters, the first in their order.

    One statement that steps from each name to the next one in an index: it reads as many entries as there are names.

    Args:
        alias: of the database.
        namespace: of the letters.
        most: >= 1, names at most.

    """
    table = Table(DeadLetter, connections[alias])
    task, of_namespace = table.list(["task"]), f"FROM {table.name} WHERE {table.are(['namespace'])}"
    # The steps are counted: MySQL and MariaDB end a recursion that goes on for too long.
    following = f"(SELECT {task} {of_namespace} AND {task} > sg_names.name ORDER BY {task} LIMIT 1), sg_names.step + 1"
    steps = f"SELECT {following} FROM sg_names WHERE sg_names.name IS NOT NULL AND sg_names.step < %s"
    names = f"WITH RECURSIVE sg_names(name, step) AS (SELECT MIN({task}), 1 {of_namespace} UNION ALL {steps})"
    with connections[alias].cursor() as cursor:
        found = "SELECT name FROM sg_names WHERE name IS NOT NULL ORDER BY step"
        cursor.execute(f"{names} {found}", [namespace, namespace, most])
        return [name for (name,) in cursor.fetchall()]


def with_key(rows: Any, beginning: str, most: int) -> list[str]:
    """Return the ids of letters whose key begins so, the first in the order of their keys."""
    if connections[rows.db].vendor == "sqlite":
        # Its LIKE knows no index; its texts are compared as bytes, and none of them is above this character.
        found = rows.filter(key__gte=beginning, key__lt=f"{beginning}{_LAST_CHARACTER}")
    else:
        found = rows.filter(key__startswith=beginning)
    return list(found.order_by().values_list("pk", flat=True)[:most])


def with_terms(rows: Any, terms: Any, chosen: Mapping[str, Any], wanted: Iterable[str]) -> list[Source]:
    """
    Return where the letters are that have one of some terms, of those that a list is narrowed to; see `narrowed`.

    Args:
        rows: of `DeadLetter`.
        terms: of `LetterTerm`, of the same namespace.
        chosen: conditions.
        wanted: the terms.

    """
    times, columns = _parted(chosen)

    def also(some: Any) -> Any:
        # A value is looked up row by row; of EXISTS a planner may make a join that reads all letters of a task first.
        letter = _asked(rows.filter(pk=OuterRef("letter_row")), columns).values("pk")[:1]
        return some.alias(wanted_row=Subquery(letter)).filter(wanted_row__isnull=False)

    return [Rows(terms.filter(term=each, **times), also if columns else None, by="letter_row") for each in wanted]


def _parted(chosen: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    times = {name: value for name, value in chosen.items() if "__" in name}
    return times, {name: value for name, value in chosen.items() if name not in times}


def _asked(rows: Any, columns: Mapping[str, Any], tasks: Sequence[str] = ()) -> Any:
    # A function of a column has no index: the planner is left with the one of the range.
    asked = {f"asked_{name}": Coalesce(name, Value("")) for name in ("task", *columns)}
    wanted = {f"asked_{name}": value for name, value in columns.items()}
    return rows.alias(**asked).filter(**wanted, **({"asked_task__in": tasks} if tasks else {}))
