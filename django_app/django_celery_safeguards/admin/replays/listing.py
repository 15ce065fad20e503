"""Replay jobs: how each stands, the newest first."""

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from celery_safeguards.printable import counted
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.filters import JobStatusFilter
from django_celery_safeguards.admin.pages.reading import ReadOnlyAdmin
from django_celery_safeguards.admin.replays.deciding import JobVerbs
from django_celery_safeguards.admin.replays.page import JobPage
from django_celery_safeguards.admin.replays.rows import bar_of, job_of_row
from django_celery_safeguards.admin.replays.starting import StartsReplays


class ReplayJobAdmin(JobVerbs, StartsReplays, JobPage, ReadOnlyAdmin):
    """Replays of many letters."""

    list_display = ("chosen_and_who", "status_mark", "progress", "came_of_it", "made")
    list_display_links = ("chosen_and_who",)
    list_filter = (JobStatusFilter,)
    ordering = ("-created_us", "-id")
    placed_in_words = "began"
    empty_in_words = "Nobody has begun a replay of many letters: it is begun from a group or from the list of letters."
    search_fields = ("=job_id", "=fingerprint", "who")
    search_help_text = "A job or a group, exactly; or a part of the name of who began it."
    change_form_template = "admin/django_celery_safeguards/replay.html"

    def get_urls(self) -> list[Any]:
        """Add what can be done with jobs."""
        return [
            self.view_at("start/", self.start_view, self.start_url),
            self.view_at("<str:object_id>/do/<slug:verb>/", self.verb_view, self.verb_url),
            *super().get_urls(),
        ]

    @admin.display(description="letters, by whom")
    def chosen_and_who(self, obj: Any) -> SafeString:
        """What was chosen."""
        job = job_of_row(obj)
        letters = obj.chosen if job is None else f"{counted(job.total, 'letter')}: {job.chosen}"
        return presenting.below(letters, f"by {obj.who}")

    @admin.display(description="status")
    def status_mark(self, obj: Any) -> SafeString:
        """How it stands."""
        return presenting.state_mark(obj.status)

    @admin.display(description="dealt with")
    def progress(self, obj: Any) -> SafeString | str:
        """How far it has come."""
        job = job_of_row(obj)
        return presenting.NOTHING if job is None else bar_of(job)

    @admin.display(description="of those sent")
    def came_of_it(self, obj: Any) -> SafeString | str:
        """What became of them."""
        job = job_of_row(obj)
        if job is None:
            return presenting.NOTHING
        return presenting.below(f"{job.tally.succeeded} succeeded", f"{job.tally.failed_again} failed again")

    @admin.display(description="made")
    def made(self, obj: Any) -> SafeString:
        """In UTC, and how long ago."""
        return presenting.below(
            presenting.stamp(obj.created_us), presenting.joined(presenting.age(obj.created_us), " ago")
        )
