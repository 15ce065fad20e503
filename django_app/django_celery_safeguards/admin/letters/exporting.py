"""
Letters as a file, from the list: those that were ticked, or all that it is narrowed to.

    list action ──POST──▶ ┐
    "Export all of these" ┴▶ the page that asks: how many, as what, why ──POST──▶ the log of the admin, then the file

Reading many letters at once, and taking them away, is a permission of its own; what work was given, and what it said,
is in the file only for those who may see it, and where they ask for it. The file is sent page by page while it is made.
Its entry in the log is there before its first line: it says who, what and why, and at the end how many letters went
out, also where whoever asked has gone away.

Not covered: the file of a list that was cut short on its way looks like a whole one; the log says so. More than
`MOST_IN_A_REQUEST` letters, which no web server would wait for: the command line has no bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpResponseNotAllowed, HttpResponseRedirect, StreamingHttpResponse
from django.utils.http import urlencode

from celery_safeguards.conf import Settings
from celery_safeguards.deadletter.shown.export import FORMATS, Format, head, line, row_of, unreadable_row
from celery_safeguards.printable import clean, counted
from django_celery_safeguards.admin.pages.asking import MOST_AT_ONCE, ReasonForm, page_that_asks
from django_celery_safeguards.admin.pages.letter_rows import let_go, reading_of, seen_letter_of
from django_celery_safeguards.admin.pages.payload import may_see
from django_celery_safeguards.admin.pages.placed_list import PLACES, can_be_asked
from django_celery_safeguards.admin.pages.rights import may
from django_celery_safeguards.celery_apps import current_app
from django_celery_safeguards.paging import Direction, Found, Source, page_of

MOST_IN_A_REQUEST = 20_000
_LETTERS_A_PAGE = 100
_COUNTED_A_LOOK = 5_000
_MOST_LOOKS = 40
_TYPES: dict[Format, str] = {"csv": "text/csv; charset=utf-8", "json": "application/x-ndjson"}


class ExportForm(ReasonForm):
    """As what, and why."""

    form = forms.ChoiceField(
        choices=[("csv", "CSV"), ("json", "JSON")],
        label="Format",
        help_text="JSON: an object on each line.",
    )
    with_payload = forms.BooleanField(
        required=False, label="With arguments, headers, errors and histories, masked as on the pages"
    )
    field_order = ("form", "with_payload", "reason")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["reason"].help_text = "For the log of the admin."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """Which letters: where they are, what they are called for people, and how many; None: too many to be counted."""

    sources: Sequence[Source]
    words: str
    letters: int | None


class LetterExport:
    """The part of the admin of letters that makes files of them."""

    export_url = "django_celery_safeguards_deadletter_export"

    def has_export_permission(self, request: Any) -> bool:
        """Whether the list offers it."""
        return may(request, "export_deadletter")

    @admin.action(description="Export selected letters", permissions=["export"])
    def export_selected(self: Any, request: Any, queryset: Any) -> Any:
        """Ask how they are exported."""
        picked = [str(pk) for pk in queryset.values_list("pk", flat=True)[:MOST_AT_ONCE]]
        return self._ask_for_export(request, self._picked_for_export(request, picked), ExportForm(), picked)

    def export_link(self: Any, request: Any) -> str:
        """Return the address of the page that asks for all that the list is narrowed to."""
        narrowed = {name: value for name, value in request.GET.items() if value and name not in PLACES}
        return _with(self.url_of_view(self.export_url), urlencode(narrowed))

    # What went out is out, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    def export_view(self: Any, request: Any) -> Any:
        """Ask before letters are exported, or send them."""
        if request.method not in {"GET", "POST"}:
            return HttpResponseNotAllowed(["GET", "POST"])
        if not self.has_view_permission(request) or not self.has_export_permission(request):
            raise PermissionDenied
        picked = request.POST.getlist("letter")[:MOST_AT_ONCE]
        try:
            chosen = self._picked_for_export(request, picked) if picked else self._narrowed_for_export(request)
        except IncorrectLookupParameters:
            self.message_user(request, "There is no such list.", messages.ERROR)
            return HttpResponseRedirect(self.url_of("changelist"))
        is_confirmed = "confirmed" in request.POST
        form = ExportForm(request.POST if is_confirmed else None)
        if not is_confirmed or not chosen.letters or chosen.letters > MOST_IN_A_REQUEST or not form.is_valid():
            return self._ask_for_export(request, chosen, form, picked)
        return self._exported(request, chosen, form.cleaned_data)

    def _picked_for_export(self: Any, request: Any, picked: Sequence[str]) -> _Chosen:
        rows = self.get_queryset(request).filter(pk__in=[each for each in picked if can_be_asked(each)])
        return _Chosen(sources=[Found(rows)], words="chosen from the list", letters=rows.count())

    def _narrowed_for_export(self: Any, request: Any) -> _Chosen:
        listed = self.get_changelist_instance(request)
        narrowed = {name: value for each in listed.filter_specs for name, value in each.chosen().items()}
        text = listed.query.strip()
        sources = self.sources(request, narrowed, text)
        named = [f"{name}={value}" for name, value in listed.params.items() if name != SEARCH_VAR]
        # Not what was searched for: it may be a customer's address, and no erasing reaches the log.
        unasked = "found by a search" if text else "" if "state" in listed.params else "all but archived"
        words = clean(", ".join(filter(None, [*named, unasked])), 300)
        return _Chosen(sources=sources, words=words, letters=self._count_for_export(sources))

    def _count_for_export(self: Any, sources: Sequence[Source]) -> int | None:
        """Return how many letters there are, one too many at most; None: that takes too long to find out."""
        count, direction = 0, Direction()
        for _ in range(_MOST_LOOKS):
            page = page_of(sources, self.placed_by, direction, _COUNTED_A_LOOK)
            count += len(page.places)
            if page.older is None or count > MOST_IN_A_REQUEST:
                return min(count, MOST_IN_A_REQUEST + 1)
            direction = Direction(page.older)
        return None

    def _ask_for_export(self: Any, request: Any, chosen: _Chosen, form: Any, picked: Sequence[str]) -> Any:
        if not may_see(request):
            del form.fields["with_payload"]
        narrowed = request.GET.urlencode() if not picked else ""
        return page_that_asks(
            self,
            request,
            "export.html",
            title="Export these letters?",
            step="Export",
            subtitle=chosen.words,
            form=form,
            kept=[("letter", each) for each in picked],
            action_url=_with(self.url_of_view(self.export_url), narrowed),
            back_url=_with(self.url_of("changelist"), narrowed),
            letters=chosen.letters,
            most=MOST_IN_A_REQUEST,
        )

    def _exported(self: Any, request: Any, chosen: _Chosen, given: dict[str, Any]) -> Any:
        form: Format = next(each for each in FORMATS if each == given["form"])
        with_payload = bool(given["with_payload"]) and may_see(request)
        payload = "with" if with_payload else "without"
        said = f"as {form.upper()}, {payload} payload: {chosen.words}. Reason: {given['reason']}"
        entry = LogEntry.objects.create(
            user_id=request.user.pk,
            content_type_id=ContentType.objects.get_for_model(self.model, for_concrete_model=False).pk,
            object_repr="dead letters",
            action_flag=CHANGE,
            change_message=f"Export: begun, {said}",
        )
        lines = self._lines_of_export(request, chosen.sources, form, with_payload, entry.pk, said)
        now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        name = f"dead-letters-{now}.{'csv' if form == 'csv' else 'jsonl'}"
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
        }
        return StreamingHttpResponse(lines, content_type=_TYPES[form], headers=headers)

    def _lines_of_export(
        self: Any,
        request: Any,
        sources: Sequence[Source],
        form: Format,
        with_payload: bool,
        entry_id: Any,
        said: str,
    ) -> Iterator[str]:
        sent, is_whole = 0, False
        try:
            yield head(form, with_payload=with_payload)
            for rows in self._pages_of_export(request, sources):
                lines = [_line_of(row, form, with_payload=with_payload) for row in rows]
                yield "".join(lines)
                sent += len(lines)
            is_whole = True
        finally:
            how = counted(sent, "letter") if is_whole else f"cut short behind {counted(sent, 'letter')}"
            LogEntry.objects.filter(pk=entry_id).update(change_message=f"Export: {how}, {said}")

    def _pages_of_export(self: Any, request: Any, sources: Sequence[Source]) -> Iterator[list[Any]]:
        left, direction = MOST_IN_A_REQUEST, Direction()
        while left > 0:
            page = page_of(sources, self.placed_by, direction, min(left, _LETTERS_A_PAGE))
            found = self.get_queryset(request).defer(None).in_bulk([id_ for _, id_ in page.places])
            rows = [found[id_] for _, id_ in page.places if id_ in found]
            left -= len(rows)
            yield rows
            if page.older is None:
                return
            direction = Direction(page.older)


def _with(url: str, query: str) -> str:
    return f"{url}?{query}" if query else url


def _line_of(row: Any, form: Format, *, with_payload: bool) -> str:
    retention = Settings.of(current_app()).letter_retention_seconds
    is_whole = reading_of(row).letter is not None
    of_row = (
        row_of(seen_letter_of(row), retention, with_payload=with_payload) if is_whole else unreadable_row(row.letter_id)
    )
    let_go(row)
    return line(form, of_row, with_payload=with_payload)
