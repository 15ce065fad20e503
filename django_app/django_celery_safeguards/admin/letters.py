"""Dead letters: the list, and how one is found."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.urls import path
from django.utils.safestring import SafeString

from django_celery_safeguards.admin import presenting
from django_celery_safeguards.admin.acting import LetterActions
from django_celery_safeguards.admin.filters import KindFilter, LastFailedFilter, LetterStateFilter, TaskFilter
from django_celery_safeguards.admin.letter_page import LetterPage
from django_celery_safeguards.admin.reading import ReadOnlyAdmin
from django_celery_safeguards.admin.shown import shown_store
from django_celery_safeguards.sql import row_id


class DeadLetterAdmin(LetterActions, LetterPage, ReadOnlyAdmin):
    """Work that failed for good."""

    list_display = (
        *("name", "state_and_kind", "task_and_key", "reason_and_error", "attempts"),
        *("first_failed", "last_failed"),
    )
    list_filter = (LetterStateFilter, KindFilter, LastFailedFilter, TaskFilter)
    ordering = ("-last_failed_us", "-id")
    search_fields = ("key",)
    search_help_text = (
        "A key, a task id or a letter's id, exactly; a task's name by its beginning; with * at the end, keys by theirs."
    )
    large_fields = ("letter",)

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Find by what an alert or a customer names: each is looked up in an index of its own."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.endswith("*"):
            return queryset.filter(key__startswith=term.removesuffix("*")), False
        tasks = [name for name in self.task_names(request) if name.startswith(term)]
        exact = Q(key=term) | Q(task_id=term) | Q(pk=row_id(shown_store().namespace, term)) | Q(pk=term)
        return queryset.filter(exact | Q(task__in=tasks) if tasks else exact), False

    def task_names(self, request: Any) -> Sequence[str]:
        """Return the tasks that have letters, asked once for each request."""
        found = getattr(request, "_safeguards_tasks", None)
        if found is None:
            names = self.get_queryset(request).order_by("task").values_list("task", flat=True).distinct()
            request._safeguards_tasks = found = list(names)  # noqa: SLF001 - a request is where Django keeps such things
        return list(found)

    def get_urls(self) -> list[Any]:
        """Add what can be done to letters; before the others, which take any path for an id."""
        return [
            path("do/<slug:deed>/", self.admin_site.admin_view(self.deed_view), name=self.deed_url),
            *super().get_urls(),
        ]

    @admin.display(description="letter")
    def name(self, obj: Any) -> str:
        """For the list."""
        return presenting.short(obj)

    @admin.display(description="state, kind", ordering="state")
    def state_and_kind(self, obj: Any) -> SafeString:
        """Where it stands, and what went wrong."""
        return presenting.below(presenting.state_mark(obj.state), obj.kind)

    @admin.display(description="task, key", ordering="task")
    def task_and_key(self, obj: Any) -> SafeString:
        """What failed, and for what."""
        return presenting.below(obj.task, obj.key)

    @admin.display(description="reason, error")
    def reason_and_error(self, obj: Any) -> SafeString:
        """Why no further attempt is made."""
        return presenting.below(obj.reason, obj.error)

    @admin.display(description="first failed")
    def first_failed(self, obj: Any) -> SafeString | str:
        """In UTC."""
        return presenting.stamp(obj.first_failed_us)

    @admin.display(description="last failed", ordering="last_failed_us")
    def last_failed(self, obj: Any) -> SafeString:
        """In UTC, and how long ago."""
        return presenting.below(
            presenting.stamp(obj.last_failed_us), presenting.joined(presenting.age(obj.last_failed_us), " ago")
        )
