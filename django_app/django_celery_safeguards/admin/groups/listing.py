"""Groups of dead letters: one line for each cause, the newest failure first."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from celery_safeguards.printable import counted
from django_celery_safeguards.admin.groups.page import GroupPage
from django_celery_safeguards.admin.groups.rows import group_of_row, status_of
from django_celery_safeguards.admin.groups.sparkline import DAY_HOURS, sparkline
from django_celery_safeguards.admin.groups.triage import GroupTriage
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.filters import GroupStatusFilter, KindFilter, LastFailedFilter
from django_celery_safeguards.admin.pages.payload import NEEDED, is_shown, may_see
from django_celery_safeguards.admin.pages.reading import ReadOnlyAdmin
from django_celery_safeguards.admin.pages.shown import seen_text, shown_store
from django_celery_safeguards.paging import Found, Source
from django_celery_safeguards.sql import row_id


class LetterGroupAdmin(GroupTriage, GroupPage, ReadOnlyAdmin):
    """Letters by their causes."""

    list_display = ("cause", "status_and_assignee", "letters_and_failures", "last_day", "failed")
    list_display_links = ("cause",)
    list_filter = (GroupStatusFilter, KindFilter, LastFailedFilter)
    ordering = ("-last_failed_us", "-id")
    narrowed_by = ("status",)
    placed_in_words = "last failed"
    empty_in_words = "No work has failed for good."
    search_fields = ("task", "error_type", "sample", "assignee")
    search_help_text = "A part of a task's name, an error, or an assignee; or a group, exactly."

    def get_search_fields(self, request: Any) -> list[str]:
        """Let the words of errors be searched by those who may see them."""
        return [name for name in self.search_fields if name != "sample" or may_see(request)]

    def sources(self, request: Any, chosen: Mapping[str, Any], text: str) -> Sequence[Source]:
        """Find a group by its name, however many there are; by its words, as other lists do."""
        named = self.get_queryset(request).filter(pk__in=[text, row_id(shown_store().namespace, text)], **chosen)
        return [Found(named)] if text and named.exists() else super().sources(request, chosen, text)

    @admin.display(description="task, error")
    def cause(self, obj: Any) -> SafeString:
        """What fails, and how."""
        sample = seen_text("error", obj.sample, obj.task) if is_shown(obj) else NEEDED
        error = f"{obj.error_type.rpartition('.')[2]}: {sample}" if obj.error_type else sample
        return presenting.below(presenting.dotted(obj.task), error)

    @admin.display(description="status")
    def status_and_assignee(self, obj: Any) -> SafeString:
        """How it stands, and whose it is."""
        group = group_of_row(obj)
        return presenting.below(presenting.state_mark(obj.status if group is None else status_of(group)), obj.assignee)

    @admin.display(description="letters")
    def letters_and_failures(self, obj: Any) -> SafeString:
        """How many wait for somebody, and how often it has failed."""
        return presenting.below(f"{obj.open_letters} open", counted(obj.failures, "failure"))

    @admin.display(description="last 24 hours")
    def last_day(self, obj: Any) -> SafeString | str:
        """Failures by hour."""
        group = group_of_row(obj)
        return presenting.NOTHING if group is None else sparkline(group.hours, DAY_HOURS)

    @admin.display(description="last failed")
    def failed(self, obj: Any) -> SafeString:
        """In UTC, and how long ago."""
        first = presenting.joined("first ", presenting.age(obj.first_failed_us), " ago")
        ago = presenting.joined(presenting.age(obj.last_failed_us), " ago; ", first)
        return presenting.below(presenting.stamp(obj.last_failed_us), ago)
