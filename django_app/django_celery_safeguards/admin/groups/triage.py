"""
What people say of a group, in the admin: its status, whose it is, and what is known of it.

    "Triage" ──GET──▶ the form ──POST──▶ said; a message, and an entry in the admin's log

What the form shows is what was seen: a group that has failed again since is left as it is, and the form says so.
"""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect

from celery_safeguards.deadletter.group import MOST_NOTE_CHARS, STATUSES, LetterGroup
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.printable import clean
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.admin.groups.rows import group_of_row
from django_celery_safeguards.admin.pages.asking import MAX_REASON_CHARS, page_that_asks
from django_celery_safeguards.admin.pages.rights import may
from django_celery_safeguards.admin.replays.starting import may_start, start_link
from django_celery_safeguards.celery_apps import current_app

PERMISSION = "triage_lettergroup"


class TriageForm(forms.Form):
    """
    How a group stands, whose it is, and what is known of it.

    The page carries what it showed, so that whoever changes one of these does not take back what somebody else has
    said of another meanwhile.
    """

    status = forms.ChoiceField(
        choices=[(status, status) for status in STATUSES],
        show_hidden_initial=True,
        help_text="A failure reopens what is resolved. What is muted stays muted, whatever fails.",
    )
    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON_CHARS,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text="Of the status, for the history and the log of the admin.",
    )
    assignee = forms.CharField(
        required=False,
        max_length=100,
        show_hidden_initial=True,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    note = forms.CharField(
        required=False,
        max_length=MOST_NOTE_CHARS,
        show_hidden_initial=True,
        widget=forms.Textarea(attrs={"rows": 5, "cols": 60, "class": "vLargeTextField"}),
        help_text="What is known: the cause, a link to the incident, what to do.",
    )
    failures_seen = forms.IntegerField(min_value=0, widget=forms.HiddenInput)

    def clean_note(self) -> str:
        """Return it with the ends of lines that a shell writes."""
        return str(self.cleaned_data["note"]).replace("\r\n", "\n")


class GroupTriage:
    """The links above a group's page, and the form behind "Triage"."""

    triage_url = "django_celery_safeguards_lettergroup_triage"

    def get_urls(self: Any) -> list[Any]:
        """Add the form."""
        own = self.view_at("<str:object_id>/triage/", self.triage_view, self.triage_url)
        return [own, *super().get_urls()]  # type: ignore[misc]

    def change_view(self: Any, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show one group, with a way to say something of it."""
        tools = [self.log_link(request, object_id)]
        row = self.get_object(request, object_id)
        if row is not None and may_start(request):
            tools.insert(0, ("Replay its open letters", start_link(self.admin_site, fingerprint=row.fingerprint)))
        if row is not None and may(request, PERMISSION):
            tools.insert(0, ("Triage", self.with_filters(request, self.url_of_view(self.triage_url, object_id))))
        context = {"tools": tools, **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)  # type: ignore[misc]

    # What was said is said, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    def triage_view(self: Any, request: Any, object_id: str) -> Any:
        """Ask how a group stands, or write it down."""
        if request.method not in {"GET", "POST"}:
            return HttpResponseNotAllowed(["GET", "POST"])
        if not self.has_view_permission(request) or not may(request, PERMISSION):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        group = None if row is None else group_of_row(row)
        if row is None or group is None:
            raise Http404(f"there is no group {clean(object_id, 80)} that can be read")
        form = TriageForm(request.POST or None, initial=_initial(group))
        if request.method == "POST" and form.is_valid():
            problem = self._say(request, row, group, form)
            if not problem:
                return HttpResponseRedirect(self.page_of(request, object_id))
            # Who tries again has seen what this answer shows.
            group = group_of_row(self.get_object(request, object_id)) or group
            form = TriageForm({**request.POST.dict(), "failures_seen": group.failures}, initial=_initial(group))
            form.add_error(None, problem)
        asked: dict[str, Any] = {"title": "How does this group stand?", "step": "Triage", "row": row, "form": form}
        return page_that_asks(self, request, "triage.html", **asked, failures=group.failures)

    def _say(self: Any, request: Any, row: Any, group: LetterGroup, form: TriageForm) -> str:
        """Write down what has changed; returns why it was not, or nothing."""
        said, changed, who = form.cleaned_data, set(form.changed_data), request.user.get_username()
        letters, done = Wiring.of(current_app()).letters, []
        try:
            # The one that may be refused is first: what is refused has said nothing.
            if changed & {"status", "reason"}:
                status, reason = said["status"] if "status" in changed else group.status, said["reason"]
                letters.declare_group(group.fingerprint, status, who, reason, failures_seen=said["failures_seen"])
                done.append(f"{status}{': ' if reason else ''}{reason}")
            if "assignee" in changed:
                letters.assign_group(group.fingerprint, said["assignee"], who)
                done.append(f"assigned to {said['assignee'] or 'nobody'}")
            if "note" in changed:
                letters.annotate_group(group.fingerprint, said["note"], who)
                done.append("note changed")
        except SafeguardsError as error:
            if done:
                self.log_change(request, row, f"Triage: {clean('; '.join(done), 500)}; then: {clean(error, 500)}.")
            return clean(error)
        if done:
            self.log_change(request, row, f"Triage: {clean('; '.join(done), 900)}.")
        self.message_user(request, f"{clean('; '.join(done), 500) or 'Nothing was changed'}.", messages.SUCCESS)
        return ""


def _initial(group: LetterGroup) -> dict[str, Any]:
    said = {"status": group.status, "assignee": group.assignee, "note": group.note}
    return {**said, "failures_seen": group.failures}
