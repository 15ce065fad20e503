"""A row's group, read once for each row that was fetched."""

from typing import Any

from celery_safeguards.deadletter.group import LetterGroup
from celery_safeguards.deadletter.letter import LetterUnreadable
from django_celery_safeguards.admin.pages import presenting


def group_of_row(row: Any) -> LetterGroup | None:
    """Return what a row of `LetterGroup` holds; None: it cannot be read."""
    if "_safeguards_group" not in row.__dict__:
        try:
            row._safeguards_group = LetterGroup.from_json(row.group)  # noqa: SLF001 - Django asks for each field
        except LetterUnreadable:
            row._safeguards_group = None  # noqa: SLF001 - see above
    found: LetterGroup | None = row._safeguards_group  # noqa: SLF001 - see above
    return found


def status_of(group: LetterGroup) -> str:
    """Return how a group stands, in a word; what a failure has reopened says so."""
    return "reopened" if group.status == "open" and group.reopened_seconds is not None else group.status


def whole_group_of(row: Any) -> LetterGroup:
    """
    Return the group of a row that is known to hold one.

    Raises:
        LetterUnreadable: it does not.

    """
    group = group_of_row(row)
    if group is None:
        raise LetterUnreadable(presenting.DAMAGED)
    return group
