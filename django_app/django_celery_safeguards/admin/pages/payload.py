"""
What only those see who may see payloads: arguments, headers, properties, what a failure said, and results.

Whoever may view letters sees that they are there, which, how many, what kind of failure it was and what was done; what
work was given is another permission. A row knows whether whoever asked for it may see its payload (`seen_by`); one that
was fetched in another way shows none.

Not covered: keys and ids, which are what work is called by; and what people have written, such as reasons and notes.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any

from django.db.models import BooleanField, Value

from celery_safeguards.deadletter.history import HistoryEntry
from django_celery_safeguards.admin.pages.rights import may

CODENAME = "view_payload_deadletter"
NEEDED = f"needs the permission {CODENAME}"
_SAYS_NO_PAYLOAD = frozenset(
    {
        *("replay asked", "may run twice", "replay begun", "replay resumed", "replayed", "closed", "discarded"),
        *("edit begun", "edited as new", "ingested", "archived", "restored", "erased"),
    }
)
"""Lines of a history whose details are ids and what people gave as reasons; others quote errors and results."""


def may_see(request: Any) -> bool:
    """Whether whoever asks may see what work was given."""
    return may(request, CODENAME)


def seen_by(request: Any, queryset: Any) -> Any:
    """Return rows that know whether whoever asks may see their payload."""
    return queryset.annotate(shows_payload=Value(may_see(request), output_field=BooleanField()))


def is_shown(row: Any) -> bool:
    """Whether a row's payload is shown to whoever asked for it."""
    return bool(getattr(row, "shows_payload", False))


def payload(field: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Make a field of a page say what it needs, to those who may not see it."""

    @wraps(field)
    def shown(admin: Any, row: Any) -> Any:
        return field(admin, row) if is_shown(row) else NEEDED

    return shown


def history_of(row: Any, entries: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    """Return what was done to a letter; the details that quote its payload only to those who may see it."""
    return [
        entry if is_shown(row) or not entry.detail or entry.what in _SAYS_NO_PAYLOAD else replace(entry, detail=NEEDED)
        for entry in entries
    ]
