"""
Groups of dead letters: one line for each cause, its page, and what people say of it.

Saying something is a form of its own, and what it shows is what was seen: a group that has failed again since is left
as it is, and the form says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter.group import LetterGroup
from celery_safeguards.deadletter.letter import LetterUnreadable
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.printable import clean
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.admin import presenting
from django_celery_safeguards.admin.asking import page_that_asks
from django_celery_safeguards.admin.filters import GroupStatusFilter, KindFilter, LastFailedFilter
from django_celery_safeguards.admin.forms import TriageForm
from django_celery_safeguards.admin.payload import NEEDED, is_shown, may_see
from django_celery_safeguards.admin.reading import ReadOnlyAdmin
from django_celery_safeguards.admin.replay_start import may_start, start_link
from django_celery_safeguards.admin.shown import playbook_for, seen_text, shown_store
from django_celery_safeguards.admin.sparkline import sparkline
from django_celery_safeguards.celery_apps import current_app
from django_celery_safeguards.models import DeadLetter
from django_celery_safeguards.paging import Found, Source
from django_celery_safeguards.sql import row_id

PERMISSION = "django_celery_safeguards.triage_lettergroup"
_DAY_HOURS, _WEEK_HOURS = 24, 168


class LetterGroupAdmin(ReadOnlyAdmin):
    """Letters by their causes."""

    list_display = ("cause", "status_and_assignee", "letters_and_failures", "last_day", "failed")
    list_display_links = ("cause",)
    list_filter = (GroupStatusFilter, KindFilter, LastFailedFilter)
    ordering = ("-last_failed_us", "-id")
    narrowed_by = ("status",)
    placed_in_words = "last failed"
    search_fields = ("task", "error_type", "sample", "assignee")
    search_help_text = "A part of a task's name, an error, or an assignee; or a group, exactly."
    triage_url = "django_celery_safeguards_lettergroup_triage"

    def get_search_fields(self, request: Any) -> list[str]:
        """Let the words of errors be searched by those who may see them."""
        return [name for name in self.search_fields if name != "sample" or may_see(request)]

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Show what can be read."""
        if obj is not None and group_of_row(obj) is None:
            return ((None, {"fields": ("fingerprint", "problem")}),)
        return (
            (None, {"fields": ("status_shown", "assignee_shown", "note", "playbook")}),
            ("Letters", {"fields": ("letters_shown", "failures_shown", "last_week", "releases")}),
            ("Cause", {"fields": ("task_shown", "kind_shown", "error_shown", "sample_shown", "fingerprint")}),
            ("History", {"fields": ("history",)}),
        )

    def sources(self, request: Any, chosen: Mapping[str, Any], text: str) -> Sequence[Source]:
        """Find a group by its name, however many there are; by its words, as other lists do."""
        named = self.get_queryset(request).filter(pk__in=[text, row_id(shown_store().namespace, text)], **chosen)
        return [Found(named)] if text and named.exists() else super().sources(request, chosen, text)

    def get_urls(self) -> list[Any]:
        """Add the form."""
        return [self.view_at("<str:object_id>/triage/", self.triage_view, self.triage_url), *super().get_urls()]

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show one group, with a way to say something of it."""
        tools = [self.log_link(object_id)]
        row = self.get_object(request, object_id)
        if row is not None and may_start(request):
            tools.insert(0, ("Replay its open letters", start_link(self.admin_site, fingerprint=row.fingerprint)))
        if row is not None and request.user.has_perm(PERMISSION):
            tools.insert(0, ("Triage", self.url_of_view(self.triage_url, object_id)))
        return super().change_view(request, object_id, form_url, {"tools": tools, **(extra_context or {})})

    # What was said is said, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    def triage_view(self, request: Any, object_id: str) -> Any:
        """Ask how a group stands, or write it down."""
        if request.method not in {"GET", "POST"}:
            return HttpResponseNotAllowed(["GET", "POST"])
        if not self.has_view_permission(request) or not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        group = None if row is None else group_of_row(row)
        if row is None or group is None:
            raise Http404(f"there is no group {clean(object_id, 80)} that can be read")
        form = TriageForm(request.POST or None, initial=_initial(group))
        if request.method == "POST" and form.is_valid():
            problem = self._say(request, row, group, form)
            if not problem:
                return HttpResponseRedirect(self.url_of("change", object_id))
            # Who tries again has seen what this answer shows.
            group = group_of_row(self.get_object(request, object_id)) or group
            form = TriageForm({**request.POST.dict(), "failures_seen": group.failures}, initial=_initial(group))
            form.add_error(None, problem)
        asked: dict[str, Any] = {"title": "How does this group stand?", "step": "Triage", "row": row, "form": form}
        return page_that_asks(self, request, "triage.html", **asked, failures=group.failures)

    def _say(self, request: Any, row: Any, group: LetterGroup, form: TriageForm) -> str:
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
        return presenting.below(f"{obj.open_letters} open", f"{obj.failures} failure{'s'[: obj.failures != 1]}")

    @admin.display(description="last 24 hours")
    def last_day(self, obj: Any) -> SafeString | str:
        """Failures by hour."""
        group = group_of_row(obj)
        return presenting.NOTHING if group is None else sparkline(group.hours, _DAY_HOURS)

    @admin.display(description="last failed")
    def failed(self, obj: Any) -> SafeString:
        """In UTC, and how long ago."""
        first = presenting.joined("first ", presenting.age(obj.first_failed_us), " ago")
        ago = presenting.joined(presenting.age(obj.last_failed_us), " ago; ", first)
        return presenting.below(presenting.stamp(obj.last_failed_us), ago)

    @admin.display(description="status")
    def status_shown(self, obj: Any) -> SafeString:
        """With when and in which release a failure reopened it."""
        group = _read(obj)
        since, release = group.reopened_seconds, _in_release(group.reopened_release)
        reopened = () if since is None else (f" by a failure{release}, ", presenting.moment(int(since * 1_000_000)))
        return presenting.joined(presenting.state_mark(status_of(group)), *reopened)

    @admin.display(description="assignee")
    def assignee_shown(self, obj: Any) -> str:
        """Whose it is."""
        return clean(_read(obj).assignee) or "nobody"

    @admin.display(description="note")
    def note(self, obj: Any) -> SafeString | str:
        """As it was written."""
        text = _read(obj).note
        return presenting.block(text, "note") if text else presenting.NOTHING

    @admin.display(description="playbook")
    def playbook(self, obj: Any) -> SafeString | str:
        """What the project has written down for it."""
        group = _read(obj)
        return presenting.address_or_text(playbook_for(group.fingerprint, group.task, group.kind))

    @admin.display(description="letters")
    def letters_shown(self, obj: Any) -> SafeString | str:
        """In each state, with a link to them."""
        counts = _read(obj).counts
        return presenting.pairs([(state, _link_to_letters(obj, counts[state], state=state)) for state in counts])

    @admin.display(description="failures")
    def failures_shown(self, obj: Any) -> SafeString | str:
        """How often, when, and since which release."""
        first, last = presenting.moment(obj.first_failed_us), presenting.moment(obj.last_failed_us)
        first = presenting.joined(first, _in_release(_read(obj).first_release))
        return presenting.pairs([("in all", obj.failures), ("first failed", first), ("last failed", last)])

    @admin.display(description="last 7 days")
    def last_week(self, obj: Any) -> SafeString | str:
        """Failures by hour."""
        return sparkline(_read(obj).hours, _WEEK_HOURS)

    @admin.display(description="releases")
    def releases(self, obj: Any) -> SafeString | str:
        """In which it has failed, the one that failed last first."""
        rows = [
            (
                each.release,
                each.failures,
                *(presenting.moment(to_us(at)) for at in (each.first_failed_seconds, each.last_failed_seconds)),
            )
            for each in reversed(_read(obj).releases)
        ]
        if not rows:
            return "not known: safeguards_release was not set where it failed"
        return presenting.table(("release", "failures", "first failed", "last failed"), rows)

    @admin.display(description="task")
    def task_shown(self, obj: Any) -> str:
        """Whole."""
        return clean(_read(obj).task)

    @admin.display(description="kind")
    def kind_shown(self, obj: Any) -> str:
        """In words."""
        return clean(obj.kind.replace("_", " "))

    @admin.display(description="error")
    def error_shown(self, obj: Any) -> str:
        """Its class."""
        return clean(_read(obj).error_type) or presenting.NOTHING

    @admin.display(description="newest failure")
    def sample_shown(self, obj: Any) -> SafeString | str:
        """What it said, with a link to its letter."""
        group = _read(obj)
        id_ = row_id(obj.namespace, group.sample_letter_id)
        link = presenting.link_to(DeadLetter, id_, group.sample_letter_id)
        said = seen_text("error", group.sample, group.task)
        message = presenting.block(said, "message") if is_shown(obj) else NEEDED
        return presenting.pairs([("message", message), ("letter", link)])

    @admin.display(description="what was said")
    def history(self, obj: Any) -> SafeString | str:
        """The oldest first."""
        return presenting.history(_read(obj).history)

    @admin.display(description="why")
    def problem(self, obj: Any) -> str:
        """Why it cannot be read."""
        return presenting.DAMAGED


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


def _in_release(release: str) -> str:
    return f", in release {clean(release)}" if release else ""


def _read(row: Any) -> LetterGroup:
    group = group_of_row(row)
    if group is None:
        raise LetterUnreadable(presenting.DAMAGED)
    return group


def _initial(group: LetterGroup) -> dict[str, Any]:
    said = {"status": group.status, "assignee": group.assignee, "note": group.note}
    return {**said, "failures_seen": group.failures}


def _link_to_letters(row: Any, count: int, **chosen: str) -> SafeString:
    opts = DeadLetter._meta  # noqa: SLF001 - Django's documented way to a model's names
    url = reverse(f"admin:{opts.app_label}_{opts.model_name}_changelist")
    return format_html('<a href="{}?{}">{}</a>', url, urlencode({"fingerprint": row.fingerprint, **chosen}), count)
