"""Dead letters: the list, and how one is found."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from celery_safeguards.deadletter.terms import plain_terms
from django_celery_safeguards.admin.letters.acting import LetterActions
from django_celery_safeguards.admin.letters.editing import LetterEditing
from django_celery_safeguards.admin.letters.erasing import LetterErasing
from django_celery_safeguards.admin.letters.exporting import LetterExport
from django_celery_safeguards.admin.letters.page import LetterPage
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.filters import (
    GroupFilter,
    KindFilter,
    LastFailedFilter,
    LetterStateFilter,
    TaskFilter,
)
from django_celery_safeguards.admin.pages.payload import NEEDED, may_see, payload
from django_celery_safeguards.admin.pages.placed_list import PLACES
from django_celery_safeguards.admin.pages.reading import ReadOnlyAdmin
from django_celery_safeguards.admin.pages.shown import seen_text, shown_search, shown_store
from django_celery_safeguards.admin.replays.starting import NARROWED_BY, may_start, start_link
from django_celery_safeguards.letter_sources import narrowed, of_tasks, task_names, with_key, with_terms
from django_celery_safeguards.models import LetterTerm
from django_celery_safeguards.paging import Found, Source
from django_celery_safeguards.sql import row_id

_FOUND_AT_MOST = 1_000
_TASKS_AT_MOST = 500


class DeadLetterAdmin(LetterEditing, LetterErasing, LetterActions, LetterExport, LetterPage, ReadOnlyAdmin):
    """Work that failed for good."""

    list_display = ("state_and_kind", "task_and_key", "reason_and_error", "failed", "name")
    list_display_links = ("task_and_key",)
    list_filter = (GroupFilter, LetterStateFilter, KindFilter, LastFailedFilter, TaskFilter)
    ordering = ("-last_failed_us", "-id")
    search_fields = ("key",)
    large_fields = ("letter",)
    placed_in_words = "failed"
    empty_in_words = "No work has failed for good, but for what was archived, if anything was."

    def sources(self, request: Any, chosen: Mapping[str, Any], text: str) -> Sequence[Source]:
        """Find by what an alert or a customer names, by an index: the letters of each of its terms."""
        rows = self.get_queryset(request)
        if not text:
            return narrowed(rows, chosen)
        if text.endswith("*"):
            found = with_key(rows, text.removesuffix("*"), _FOUND_AT_MOST)
            return [Found(rows.filter(pk__in=found, **chosen))]
        terms = _terms().filter(namespace=shown_store().namespace)
        # Whether a guess is an argument's value, is told to those who may see it.
        wanted = shown_search().terms_for(text) if may_see(request) else plain_terms(text)
        of_terms = with_terms(rows, terms, chosen, wanted)
        # Letters of an older version have no terms yet.
        of_key = rows.filter(key=text).order_by().values_list("pk", flat=True)[:_FOUND_AT_MOST]
        named = Found(rows.filter(pk__in=[text, row_id(shown_store().namespace, text), *of_key], **chosen))
        tasks = [
            name for name in self.task_names(request) if name.startswith(text) and chosen.get("task", name) == name
        ]
        return [named, *of_terms, *of_tasks(rows, chosen, tasks)]

    @property
    def search_help_text(self) -> str:
        """What can be found: the arguments are those of the settings."""
        arguments = shown_search().arguments
        named = f"; an argument's value, or {arguments[0]}=value (of {', '.join(arguments)})" if arguments else ""
        named += f", which {NEEDED}" if arguments else ""
        return (
            f"Exactly: a key, a task id (also a root's, a parent's or an earlier replay's), a correlation id, a "
            f"letter's id{named}; queue:NAME, error:CLASS. By its beginning: a task's name; with * at the end, a key, "
            f"of which the first {_FOUND_AT_MOST:,} are found."
        )

    def task_names(self, request: Any) -> Sequence[str]:
        """Return the tasks that have letters, asked once for each request."""
        found: list[str] | None = getattr(request, "_safeguards_tasks", None)
        if found is None:
            shown = shown_store()
            found = [] if shown.alias is None else task_names(shown.alias, shown.namespace, _TASKS_AT_MOST)
            request._safeguards_tasks = found  # noqa: SLF001 - a request is where Django keeps such things
        return found

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Offer an export of what the list is narrowed to, and a replay where one can be narrowed so."""
        narrowed = {name: value for name, value in request.GET.items() if value and name not in PLACES}
        is_offered = may_start(request) and narrowed.pop("state", "open") == "open" and set(narrowed) <= NARROWED_BY
        tools = [("Replay all of these", start_link(self.admin_site, **narrowed))] if is_offered else []
        if self.has_export_permission(request):
            tools.append(("Export all of these", self.export_link(request)))
        tools += self.erase_tools(request)
        return super().changelist_view(request, {"tools": tools, **(extra_context or {})})

    def get_urls(self) -> list[Any]:
        """Add what can be done to letters."""
        return [
            self.view_at("do/<slug:deed>/", self.deed_view, self.deed_url),
            self.view_at("export/", self.export_view, self.export_url),
            self.view_at("erase/", self.erase_view, self.erase_url),
            self.view_at("<str:object_id>/edit/", self.edit_view, self.edit_url),
            *super().get_urls(),
        ]

    @admin.display(description="letter")
    def name(self, obj: Any) -> str:
        """For the list."""
        return presenting.short(obj)

    @admin.display(description="state, kind")
    def state_and_kind(self, obj: Any) -> SafeString:
        """Where it stands, and what went wrong."""
        return presenting.below(presenting.state_mark(obj.state), obj.kind.replace("_", " "))

    @admin.display(description="task, key")
    def task_and_key(self, obj: Any) -> SafeString:
        """What failed, and for what."""
        return presenting.below(presenting.dotted(obj.task), obj.key)

    @payload
    @admin.display(description="reason, error")
    def reason_and_error(self, obj: Any) -> SafeString:
        """Why no further attempt is made."""
        return presenting.below(seen_text("reason", obj.reason, obj.task), seen_text("error", obj.error, obj.task))

    @admin.display(description="failed")
    def failed(self, obj: Any) -> SafeString:
        """In UTC, and how long ago; its page tells when it failed first."""
        last, first = presenting.age(obj.last_failed_us), presenting.age(obj.first_failed_us)
        ago = presenting.joined(last, " ago", *(() if first == last else ("; first ", first, " ago")))
        return presenting.below(presenting.stamp(obj.last_failed_us), ago)


def _terms() -> Any:
    alias = shown_store().alias
    return LetterTerm.objects.none() if alias is None else LetterTerm.objects.using(alias)
