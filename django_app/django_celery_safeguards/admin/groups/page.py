"""The page of one group: how many, since when, of what cause, and what people have said of it."""

from typing import Any

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from celery_safeguards.clock import to_us
from celery_safeguards.printable import clean
from django_celery_safeguards.admin.groups.rows import group_of_row, status_of, whole_group_of
from django_celery_safeguards.admin.groups.sparkline import WEEK_HOURS, sparkline
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.payload import NEEDED, is_shown
from django_celery_safeguards.admin.pages.rights import may
from django_celery_safeguards.admin.pages.shown import playbook_for, seen_text
from django_celery_safeguards.admin.replays.rows import job_of_row
from django_celery_safeguards.models import DeadLetter, ReplayJob
from django_celery_safeguards.sql import row_id


class GroupPage:
    """The fields of a group's page; each is a value in words."""

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Show what can be read."""
        if obj is not None and group_of_row(obj) is None:
            return ((None, {"fields": ("fingerprint", "problem")}),)
        letters = ("letters_shown", *(["replay_shown"] if may(request, "view_replayjob") else []))
        return (
            (None, {"fields": ("status_shown", "assignee_shown", "note", "playbook")}),
            ("Letters", {"fields": (*letters, "failures_shown", "last_week", "releases")}),
            ("Cause", {"fields": ("task_shown", "kind_shown", "error_shown", "sample_shown", "fingerprint")}),
            ("History", {"fields": ("history",)}),
        )

    @admin.display(description="status")
    def status_shown(self, obj: Any) -> SafeString:
        """With when and in which release a failure reopened it."""
        group = whole_group_of(obj)
        since, release = group.reopened_seconds, _in_release(group.reopened_release)
        reopened = () if since is None else (f" by a failure{release}, ", presenting.moment(int(since * 1_000_000)))
        return presenting.joined(presenting.state_mark(status_of(group)), *reopened)

    @admin.display(description="assignee")
    def assignee_shown(self, obj: Any) -> str:
        """Whose it is."""
        return clean(whole_group_of(obj).assignee) or "nobody"

    @admin.display(description="note")
    def note(self, obj: Any) -> SafeString | str:
        """As it was written."""
        text = whole_group_of(obj).note
        return presenting.block(text, "note") if text else presenting.NOTHING

    @admin.display(description="playbook")
    def playbook(self, obj: Any) -> SafeString | str:
        """What the project has written down for it."""
        group = whole_group_of(obj)
        return presenting.address_or_text(playbook_for(group.fingerprint, group.task, group.kind))

    @admin.display(description="letters")
    def letters_shown(self: Any, obj: Any) -> SafeString | str:
        """In each state, with a link to them."""
        counts = whole_group_of(obj).counts
        links = [(state, _link_to_letters(self.admin_site, obj, counts[state], state=state)) for state in counts]
        return presenting.pairs(links)

    @admin.display(description="replay")
    def replay_shown(self: Any, obj: Any) -> SafeString | str:
        """The one that is under way: what fails meanwhile may be its own."""
        rows = ReplayJob.objects.using(obj._state.db).filter(  # noqa: SLF001 - where it is from
            namespace=obj.namespace, fingerprint=obj.fingerprint, under_way__isnull=False
        )
        row = rows.first()
        job = None if row is None else job_of_row(row)
        if row is None or job is None:
            return "none is under way"
        said = f"{job.position} of {job.total} dealt with, {job.tally.failed_again} failed again"
        return presenting.joined(presenting.link_to(self.admin_site, ReplayJob, row.pk, job.status), f": {said}")

    @admin.display(description="failures")
    def failures_shown(self, obj: Any) -> SafeString | str:
        """How often, when, and since which release."""
        first, last = presenting.moment(obj.first_failed_us), presenting.moment(obj.last_failed_us)
        first = presenting.joined(first, _in_release(whole_group_of(obj).first_release))
        return presenting.pairs([("in all", obj.failures), ("first failed", first), ("last failed", last)])

    @admin.display(description="last 7 days")
    def last_week(self, obj: Any) -> SafeString | str:
        """Failures by hour."""
        return sparkline(whole_group_of(obj).hours, WEEK_HOURS)

    @admin.display(description="releases")
    def releases(self, obj: Any) -> SafeString | str:
        """In which it has failed, the one that failed last first."""
        rows = [
            (
                each.release,
                each.failures,
                *(presenting.moment(to_us(at)) for at in (each.first_failed_seconds, each.last_failed_seconds)),
            )
            for each in reversed(whole_group_of(obj).releases)
        ]
        if not rows:
            return "not known: safeguards_release was not set where it failed"
        return presenting.table(("release", "failures", "first failed", "last failed"), rows)

    @admin.display(description="task")
    def task_shown(self, obj: Any) -> str:
        """Whole."""
        return clean(whole_group_of(obj).task)

    @admin.display(description="kind")
    def kind_shown(self, obj: Any) -> str:
        """In words."""
        return clean(obj.kind.replace("_", " "))

    @admin.display(description="error")
    def error_shown(self, obj: Any) -> str:
        """Its class."""
        return clean(whole_group_of(obj).error_type) or presenting.NOTHING

    @admin.display(description="newest failure")
    def sample_shown(self: Any, obj: Any) -> SafeString | str:
        """What it said, with a link to its letter."""
        group = whole_group_of(obj)
        id_ = row_id(obj.namespace, group.sample_letter_id)
        link = presenting.link_to(self.admin_site, DeadLetter, id_, group.sample_letter_id)
        said = seen_text("error", group.sample, group.task)
        message = presenting.block(said, "message") if is_shown(obj) else NEEDED
        return presenting.pairs([("message", message), ("letter", link)])

    @admin.display(description="what was said")
    def history(self, obj: Any) -> SafeString | str:
        """The oldest first."""
        return presenting.history(whole_group_of(obj).history)

    @admin.display(description="why")
    def problem(self, obj: Any) -> str:
        """Why it cannot be read."""
        return presenting.DAMAGED


def _in_release(release: str) -> str:
    return f", in release {clean(release)}" if release else ""


def _link_to_letters(admin_site: Any, row: Any, count: int, **chosen: str) -> SafeString:
    opts = DeadLetter._meta  # noqa: SLF001 - Django's documented way to a model's names
    url = reverse(f"admin:{opts.app_label}_{opts.model_name}_changelist", current_app=admin_site.name)
    return format_html('<a href="{}?{}">{}</a>', url, urlencode({"fingerprint": row.fingerprint, **chosen}), count)
