"""
What a person may do to letters, the page that asks before it is done, and what is said afterwards.

    button or list action ──POST──▶ the page that asks: each letter, and what will happen to it
    its button            ──POST──▶ done, one letter after the other; a message and an entry in the admin's log for each

Every deed is by POST alone and under the permission of its own, on the button, on the page that asks and on the deed
itself. The page that asks carries the time of each letter's last failure: what has failed again since is another
failure, which nobody has looked at, and is left alone.

Not covered: a pace. A batch goes as fast as store and broker take it; `safeguards replays start` has one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseRedirect, QueryDict
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_post_parameters

from celery_safeguards.printable import clean, counted
from django_celery_safeguards.admin.letters.deeds import Done, Given
from django_celery_safeguards.admin.letters.prospects import (
    ARCHIVE,
    DEEDS,
    DISCARD,
    IN_WORDS,
    REPLAY,
    RESTORE,
    RESUME,
    Deed,
    Prospect,
    picked_of,
    possible_deeds,
    prospect_of,
)
from django_celery_safeguards.admin.pages.asking import MOST_AT_ONCE, page_of_a_button, page_that_asks
from django_celery_safeguards.admin.pages.letter_rows import let_go, letter_id_of
from django_celery_safeguards.admin.pages.placed_list import can_be_asked
from django_celery_safeguards.admin.replays.starting import may_start
from django_celery_safeguards.celery_apps import current_app_with_tasks
from django_celery_safeguards.models import ReplayJob

_TOLD_ONE_BY_ONE = 20
_MESSAGE_CHARS = 500


_STYLES = {REPLAY.name: "default", RESUME.name: "default", DISCARD.name: "sg-danger"}
"""Of the buttons; a person's word is as good as the other, so neither of them is the default."""


class LetterActions:
    """The deeds of the admin of letters: list actions, buttons, and the view behind both."""

    actions = (
        *("replay_selected", "replay_selected_at_a_pace"),
        *("archive_selected", "restore_selected", "discard_selected", "export_selected"),
    )
    deed_url = "django_celery_safeguards_deadletter_deed"

    def has_replay_permission(self, request: Any) -> bool:
        """Whether the list offers it."""
        return REPLAY.is_allowed(request)

    def has_discard_permission(self, request: Any) -> bool:
        """Whether the list offers it."""
        return DISCARD.is_allowed(request)

    def has_archive_permission(self, request: Any) -> bool:
        """Whether the list offers it."""
        return ARCHIVE.is_allowed(request)

    @admin.action(description="Replay selected letters", permissions=["replay"])
    def replay_selected(self, request: Any, queryset: Any) -> Any:
        """Ask whether to send them again."""
        return self._asked_for_selected(request, REPLAY, queryset)

    @admin.action(description="Replay selected letters at a pace", permissions=["replay"])
    def replay_selected_at_a_pace(self: Any, request: Any, queryset: Any) -> Any:
        """Ask how to send them again, as a job."""
        count = queryset.count()
        if count > REPLAY.most_at_once:
            return self._refused(request, REPLAY, count)
        if not may_start(request):
            raise PermissionDenied
        ids = list(queryset.values_list("pk", flat=True))
        return self.admin_site.get_model_admin(ReplayJob).ask_about(request, ids)

    @admin.action(description="Archive selected letters", permissions=["archive"])
    def archive_selected(self, request: Any, queryset: Any) -> Any:
        """Ask whether to put them away."""
        return self._asked_for_selected(request, ARCHIVE, queryset)

    @admin.action(description="Restore selected letters", permissions=["archive"])
    def restore_selected(self, request: Any, queryset: Any) -> Any:
        """Ask whether to bring them back."""
        return self._asked_for_selected(request, RESTORE, queryset)

    @admin.action(description="Discard selected letters", permissions=["discard"])
    def discard_selected(self, request: Any, queryset: Any) -> Any:
        """Ask whether to give them up."""
        return self._asked_for_selected(request, DISCARD, queryset)

    def change_view(self: Any, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show one letter, with a button for everything that can be done to it by whoever looks."""
        row = self.get_object(request, object_id)
        deeds = [] if row is None else [deed for deed in possible_deeds(row) if deed.is_allowed(request)]
        buttons = [(deed.button, self._url_of(deed), _STYLES.get(deed.name, "")) for deed in deeds]
        picked = None if row is None else picked_of(row)
        tools = [self.log_link(request, object_id)]
        context = {"buttons": buttons, "tools": tools, "picked": picked, **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)  # type: ignore[misc]

    # What was done is done, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    @method_decorator(sensitive_post_parameters("result"))
    def deed_view(self: Any, request: Any, deed: str) -> Any:
        """Ask before a deed, or do it."""
        wanted = DEEDS.get(deed)
        if wanted is None:
            raise Http404(f"there is no deed {clean(deed, 80)}")
        if request.method != "POST":
            return page_of_a_button(self, request, self._list_of(request))
        if not self.has_view_permission(request) or not wanted.is_allowed(request):
            raise PermissionDenied
        picked = dict.fromkeys(request.POST.getlist("letter"))
        rows = self._rows(request, [each.partition(":")[0] for each in picked])
        if len(picked) > wanted.most_at_once or not rows:
            return self._refused(request, wanted, len(picked))
        is_confirmed, listed = "confirmed" in request.POST, QueryDict(request.POST.get("listed", "")).urlencode()
        form = wanted.form_for(len(rows), request.POST if is_confirmed else None)
        if not is_confirmed or not form.is_valid():
            return self._ask(request, wanted, rows, form, listed=listed)
        self._do(request, wanted, rows, form, seen=set(picked))
        return HttpResponseRedirect(self._way_back(request, rows, listed))

    def _asked_for_selected(self: Any, request: Any, deed: Deed, queryset: Any) -> Any:
        count = queryset.count()
        if count > deed.most_at_once:
            return self._refused(request, deed, count)
        # An action is sent to the list's own address, with what the list is narrowed to.
        return self._ask(request, deed, list(queryset), deed.form_for(count), listed=request.GET.urlencode())

    def _rows(self: Any, request: Any, ids: Iterable[str]) -> list[Any]:
        found = self.get_queryset(request).in_bulk([each for each in ids if can_be_asked(each)][:MOST_AT_ONCE])
        return [found[id_] for id_ in dict.fromkeys(ids) if id_ in found]

    def _refused(self: Any, request: Any, deed: Deed, count: int) -> Any:
        if count > deed.most_at_once:
            how = "choose fewer, or use celery -A <project> safeguards dead, which also keeps a pace"
            text = f"{count} letters are chosen, and {deed.most_at_once} at most go at once: {how}."
        else:
            text = "There is no such letter."
        self.message_user(request, text, messages.ERROR)
        return HttpResponseRedirect(self._list_of(request))

    def _ask(self: Any, request: Any, deed: Deed, rows: Sequence[Any], form: Any, *, listed: str) -> Any:
        prospects = []
        for row in rows:
            prospects.append(prospect_of(deed, row))
            let_go(row)
        if "may_run_twice" in form.fields and not any(each.needs_consent for each in prospects):
            del form.fields["may_run_twice"]
        return page_that_asks(
            self,
            request,
            "deed.html",
            title=deed.question,
            step=deed.button,
            row=rows[0] if len(rows) == 1 else None,
            form=form,
            kept=[("listed", listed)] if listed else [],
            action_url=self.with_filters(request, self._url_of(deed)),
            back_url=self._way_back(request, rows, listed),
            deed=deed,
            heading=_counted(prospects),
            prospects=prospects,
            can_be_done=any(each.mark != "no" for each in prospects),
            style=_STYLES.get(deed.name, "default"),
        )

    def _do(self: Any, request: Any, deed: Deed, rows: Sequence[Any], form: Any, *, seen: set[str]) -> None:
        # Consent is given to what the page has marked, and to nothing that would need it only now.
        asked = set(request.POST.getlist("asked")) if form.cleaned_data.get("may_run_twice") else set()
        given = Given(
            who=request.user.get_username(),
            reason=form.cleaned_data.get("reason", ""),
            verdict=form.verdict() if hasattr(form, "verdict") else None,
        )
        app, succeeded = current_app_with_tasks(), []
        for number, row in enumerate(rows, start=1):
            picked = picked_of(row)
            done = _done(app, deed, row, given, has_seen=picked in seen, may_run_twice=picked in asked)
            because = f" Reason: {clean(given.reason)}" if given.reason else ""
            self.log_change(request, row, f"{deed.button}: {clean(done.text, _MESSAGE_CHARS)}.{because}")
            said = self._sentence(request, row, done)
            if done.is_done:
                succeeded.append(said)
            else:
                self.message_user(request, said, messages.ERROR)
            if done.is_away and number < len(rows):
                # Each of the others would wait as long, and be left in the midst of a replay.
                said = f"{len(rows) - number} more were left alone: choose them again once that answers."
                self.message_user(request, said, messages.ERROR)
                break
        for said in succeeded[:_TOLD_ONE_BY_ONE]:
            self.message_user(request, said, messages.SUCCESS)
        if len(succeeded) > _TOLD_ONE_BY_ONE:
            left = len(succeeded) - _TOLD_ONE_BY_ONE
            self.message_user(request, f"{left} more were done, {len(succeeded)} of {len(rows)}.", messages.SUCCESS)

    def _sentence(self: Any, request: Any, row: Any, done: Done) -> SafeString:
        # A letter that is done with is often on the narrowed list no longer, and one that was cut short needs its page.
        url, text = self.page_of(request, row.pk), clean(done.text, _MESSAGE_CHARS)
        return format_html('Letter <a href="{}">{}</a>: {}.', url, clean(done.letter_id, 80), text)

    def _list_of(self: Any, request: Any) -> str:
        return str(self.with_filters(request, self.url_of("changelist")))

    def _way_back(self: Any, request: Any, rows: Sequence[Any], listed: str) -> str:
        """Return the address of the list as it was narrowed, or of the one letter whose button was pressed."""
        if len(rows) == 1 and not listed:
            return str(self.page_of(request, rows[0].pk))
        return f"{self.url_of('changelist')}{f'?{listed}' if listed else ''}"

    def _url_of(self: Any, deed: Deed) -> str:
        return str(self.url_of_view(self.deed_url, deed.name))


def _done(app: Any, deed: Deed, row: Any, given: Given, *, has_seen: bool, may_run_twice: bool) -> Done:
    letter_id, needs_consent = letter_id_of(row), may_run_twice and prospect_of(deed, row).needs_consent
    let_go(row)
    if not has_seen:
        return Done(letter_id, False, "it has failed again since that page was made: look at it again")
    return deed.run(app, letter_id, replace(given, may_run_twice=needs_consent))


def _counted(prospects: Sequence[Prospect]) -> str:
    """Return how many letters there are, and of how many what will happen."""
    if len(prospects) == 1:
        return "1 letter"
    counts = Counter(each.mark for each in prospects)
    said = ", ".join(f"{counts[mark]} {IN_WORDS[mark]}" for mark in IN_WORDS if counts[mark])
    return f"{counted(len(prospects), 'letter')}: {said}"
