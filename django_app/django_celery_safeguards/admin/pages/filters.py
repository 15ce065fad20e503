"""What lists are narrowed by: each choice is a condition on a column, and `paging` reads what it leaves."""

import time
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import SEARCH_VAR

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter.group import STATUSES
from celery_safeguards.deadletter.letter import STATES
from celery_safeguards.jobs.job import STATUSES as JOB_STATUSES
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from django_celery_safeguards.admin.pages import presenting

_HOUR_SECONDS = 3_600
_SPANS = {
    "hour": ("The last hour", _HOUR_SECONDS),
    "day": ("The last 24 hours", 24 * _HOUR_SECONDS),
    "week": ("The last 7 days", 7 * 24 * _HOUR_SECONDS),
}
_OLDER = "older"
ANY = "any"
_HERE = tuple(state for state in STATES if state != "archived")


class _Chosen(SimpleListFilter):
    """A filter that says what it narrows a list to: pages are read from the index that begins with it."""

    def chosen(self) -> dict[str, Any]:
        """Return its condition; nothing: none."""
        return {}

    def queryset(self, request: Any, queryset: Any) -> Any:
        """Narrow the list."""
        return queryset.filter(**self.chosen())


class _Exact(_Chosen):
    """A column that is what was chosen."""

    names: tuple[str, ...] = ()

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name.replace("_", " ")) for name in self.names]

    def chosen(self) -> dict[str, Any]:
        return {} if self.value() is None else {self.parameter_name: self.value()}


class LetterStateFilter(_Exact):
    """By the state of a letter: what was put away is shown where it is asked for, or searched."""

    title, parameter_name, names = "state", "state", (*STATES, ANY)

    def choices(self, changelist: Any) -> Any:
        """Say what the list shows unasked."""
        first, *others = super().choices(changelist)
        return [{**first, "display": "All but archived"}, *others]

    def chosen(self) -> dict[str, Any]:
        """Return its condition; whoever searches wants what there is."""
        is_searched = bool(self.request.GET.get(SEARCH_VAR, "").strip())
        if self.value() == ANY or (self.value() is None and is_searched):
            return {}
        return {"state": _HERE} if self.value() is None else super().chosen()

    def queryset(self, request: Any, queryset: Any) -> Any:
        """Narrow the list."""
        state = self.chosen().get("state")
        return queryset.filter(state__in=state) if isinstance(state, tuple) else super().queryset(request, queryset)


class KindFilter(_Exact):
    """By the kind of the last failure."""

    title, parameter_name, names = "kind", "kind", tuple(kind.value for kind in FailureKind)


class GroupStatusFilter(_Exact):
    """By what people say of a group."""

    title, parameter_name, names = "status", "status", STATUSES


class JobStatusFilter(_Exact):
    """By how a replay job stands."""

    title, parameter_name, names = "status", "status", JOB_STATUSES


class GroupFilter(_Exact):
    """By the group of a letter: the one that a link names."""

    title, parameter_name = "group", "fingerprint"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Return the group that is asked for; a list of all of them is a page of its own."""
        return [(name, presenting.short(name)) for name in request.GET.getlist(self.parameter_name)]


class RecordStateFilter(_Exact):
    """By the state of a record."""

    title, parameter_name, names = "state", "state", tuple(state.value for state in State)


class ScopeFilter(_Exact):
    """By the scope of a record: those of the tasks that are known here."""

    title, parameter_name = "scope", "scope"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Return the scopes."""
        return [(scope, presenting.short(scope)) for scope in model_admin.scopes()]


class TaskFilter(_Exact):
    """By task: those that have letters."""

    title, parameter_name = "task", "task"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names of the tasks that have letters."""
        return [(name, presenting.short(name)) for name in model_admin.task_names(request)]


class LastFailedFilter(_Chosen):
    """By the time of the last failure."""

    title, parameter_name = "last failed", "failed"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Return the spans of time."""
        return [*((name, words) for name, (words, _) in _SPANS.items()), (_OLDER, "Before that")]

    def chosen(self) -> dict[str, Any]:
        """Return a range of times."""
        if self.value() is None:
            return {}
        is_older = self.value() not in _SPANS
        _, seconds = _SPANS["week" if is_older else self.value()]
        since_us = to_us(time.time() - seconds)
        return {f"last_failed_us__{'lt' if is_older else 'gte'}": since_us}
