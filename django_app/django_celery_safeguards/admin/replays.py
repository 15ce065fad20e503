"""
Replay jobs: how each stands, live, and what a person does with it.

A page shows what the job's runner has written down; the browser asks for it again every other second while the job runs
(every fifth without scripts). Pausing, resuming and cancelling ask first, by POST, with how many letters are left.
"""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString

from celery_safeguards.clock import to_us
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.jobs.job import JobUnreadable, ReplayJob, declared
from celery_safeguards.printable import clean
from celery_safeguards.replay.many.settling import settle
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.admin import presenting
from django_celery_safeguards.admin.asking import page_that_asks
from django_celery_safeguards.admin.filters import JobStatusFilter
from django_celery_safeguards.admin.reading import ReadOnlyAdmin
from django_celery_safeguards.admin.replay_start import StartsReplays
from django_celery_safeguards.admin.replay_verbs import VERBS, Verb, hand_over_or_say, verbs_of
from django_celery_safeguards.celery_apps import current_app_with_tasks
from django_celery_safeguards.models import DeadLetter, LetterGroup
from django_celery_safeguards.sql import row_id


class ReplayJobAdmin(StartsReplays, ReadOnlyAdmin):
    """Replays of many letters."""

    list_display = ("chosen_and_who", "status_mark", "progress", "came_of_it", "made")
    list_display_links = ("chosen_and_who",)
    list_filter = (JobStatusFilter,)
    ordering = ("-created_us", "-id")
    placed_in_words = "begun"
    search_fields = ("=job_id", "=fingerprint", "who")
    search_help_text = "A job or a group, exactly; or a part of the name of who began it."
    change_form_template = "admin/django_celery_safeguards/replay.html"
    verb_url = "django_celery_safeguards_replayjob_verb"

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Show what can be read."""
        job = None if obj is None else job_of_row(obj)
        if obj is not None and job is None:
            return ((None, {"fields": ("job_id", "problem")}),)
        is_in_doubt = job is not None and (job.unsure or (job.status == "cancelled" and not job.settled))
        how_it_goes = ("status_shown", "progress_shown", "pace_shown", "sent_shown", "not_sent_shown")
        return (
            (None, {"fields": (*how_it_goes, "in_doubt_shown") if is_in_doubt else how_it_goes}),
            ("As it was asked for", {"fields": ("chosen_shown", "who_shown", "stops_shown", "job_id")}),
        )

    def get_urls(self) -> list[Any]:
        """Add what can be done with jobs."""
        return [
            self.view_at("start/", self.start_view, self.start_url),
            self.view_at("<str:object_id>/do/<slug:verb>/", self.verb_view, self.verb_url),
            *super().get_urls(),
        ]

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show one job, with what can be done with it by whoever looks."""
        row = self.get_object(request, object_id)
        job = None if row is None else job_of_row(row)
        verbs = verbs_of(job, Wiring.of(current_app_with_tasks()).clock.wall_seconds()) if job is not None else ()
        context = {
            "tools": [self.log_link(object_id)],
            "buttons": [(verb.button, self._url_of(verb, object_id), "") for verb in verbs if verb.is_allowed(request)],
            "is_live": job is not None and job.status == "running",
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)

    # What was done is done, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    def verb_view(self, request: Any, object_id: str, verb: str) -> Any:
        """Ask before a job is paused, resumed, run or cancelled, or do it."""
        wanted = VERBS.get(verb)
        if wanted is None:
            raise Http404(f"there is no {clean(verb, 80)} of a job")
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_view_permission(request) or not wanted.is_allowed(request):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        job = None if row is None else job_of_row(row)
        if job is None:
            raise Http404(f"there is no job {clean(object_id, 80)} that can be read")
        if "confirmed" in request.POST:
            self._do(request, row, job, wanted)
            return HttpResponseRedirect(self.url_of("change", object_id))
        asked: dict[str, Any] = {"title": wanted.question, "step": wanted.button, "row": row}
        return page_that_asks(self, request, "replay_ask.html", **asked, verb=wanted, job=job)

    def _do(self, request: Any, row: Any, job: ReplayJob, verb: Verb) -> None:
        app, who = current_app_with_tasks(), request.user.get_username()
        wiring = Wiring.of(app)
        try:
            if verb.status is not None:
                job = wiring.jobs.change(job.id, declared(verb.status, who, wiring.clock.wall_seconds()))
            if verb.status == "cancelled":
                job = settle(app, job.id)
        except SafeguardsError as error:
            self.log_change(request, row, f"{verb.button}: {clean(error, 500)}.")
            self.message_user(request, f"{clean(error, 500)}.", messages.ERROR)
            return
        # What the runner of a cancelled job has begun is known once its lease is over.
        is_to_run = verb.hands_over or (job.status == "cancelled" and not job.settled)
        problem = hand_over_or_say(app, job.id) if is_to_run else ""
        said = f"{verb.button}: {job.left} of {job.total} letters left"
        self.log_change(request, row, f"{said}{'; ' if problem else ''}{problem}.")
        self.message_user(request, f"{said}.", messages.SUCCESS)
        if problem:
            self.message_user(request, f"{problem}.", messages.ERROR)

    def _url_of(self, verb: Verb, object_id: str) -> str:
        return self.url_of_view(self.verb_url, object_id, verb.name)

    @admin.display(description="letters, by whom")
    def chosen_and_who(self, obj: Any) -> SafeString:
        """What was chosen."""
        job = job_of_row(obj)
        letters = obj.chosen if job is None else f"{job.total} letters: {job.chosen}"
        return presenting.below(letters, f"by {obj.who}")

    @admin.display(description="status")
    def status_mark(self, obj: Any) -> SafeString:
        """How it stands."""
        return presenting.state_mark(obj.status)

    @admin.display(description="dealt with")
    def progress(self, obj: Any) -> SafeString | str:
        """How far it has come."""
        job = job_of_row(obj)
        return presenting.NOTHING if job is None else _bar(job)

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

    @admin.display(description="status")
    def status_shown(self, obj: Any) -> SafeString:
        """With why, and who runs it."""
        job = _read(obj)
        why = f" {clean(job.because)}" if job.because else ""
        return presenting.joined(presenting.state_mark(job.status), why, _runner(job))

    @admin.display(description="dealt with")
    def progress_shown(self, obj: Any) -> SafeString:
        """A bar, and numbers."""
        return _bar(_read(obj))

    @admin.display(description="sent")
    def sent_shown(self, obj: Any) -> SafeString | str:
        """What became of them."""
        job = _read(obj)
        tally = job.tally
        rows: list[tuple[str, object]] = [
            ("sent", tally.sent),
            ("succeeded", tally.succeeded),
            ("failed again", tally.failed_again),
            ("no answer", tally.unanswered),
            ("on their way", len(job.on_their_way)),
        ]
        return presenting.pairs(rows)

    @admin.display(description="not sent")
    def not_sent_shown(self, obj: Any) -> SafeString | str:
        """How many, and why."""
        tally = _read(obj).tally
        rows: list[tuple[str, object]] = [("no need", tally.skipped), ("refused", tally.refused)]
        reasons = presenting.lines(f"{count}: {reason}" for reason, count in tally.reasons.items())
        return presenting.pairs([*rows, *([("because", reasons)] if tally.reasons else [])])

    @admin.display(description="in doubt")
    def in_doubt_shown(self, obj: Any) -> SafeString | str:
        """Letters that the last runner had begun and perhaps not sent, each to be resumed on its page."""
        job = _read(obj)
        if not job.settled:
            return (
                "What its runner had begun is written down by a worker, within a minute; or by "
                f"safeguards replays show {job.id}."
            )
        said = "Begun, and perhaps not sent, since the process that ran it ended. Resume them on their pages:"
        letters = [presenting.link_to(DeadLetter, row_id(obj.namespace, each), each) for each in job.unsure]
        return presenting.joined(said, presenting.lines(letters))

    @admin.display(description="letters")
    def chosen_shown(self, obj: Any) -> SafeString | str:
        """With a link to their group."""
        job = _read(obj)
        said = f"{job.total}: {clean(job.chosen)}"
        if not job.fingerprint:
            return said
        link = presenting.link_to(LetterGroup, row_id(obj.namespace, job.fingerprint), "the group")
        return presenting.joined(said, " (", link, ")")

    @admin.display(description="by")
    def who_shown(self, obj: Any) -> SafeString:
        """Who, when and why."""
        job = _read(obj)
        made = presenting.moment(to_us(job.created_seconds))
        return presenting.joined(clean(job.who), ", ", made, f": {job.reason}" if job.reason else "")

    @admin.display(description="pace")
    def pace_shown(self, obj: Any) -> SafeString | str:
        """How fast, and how many at once; how slowly just now, and why."""
        return presenting.lines(_read(obj).pace_in_words)

    @admin.display(description="safety")
    def stops_shown(self, obj: Any) -> str:
        """What keeps one incident from becoming a second one."""
        job = _read(obj)
        first = f"{job.canary} letters first" if job.canary else "no canaries"
        stops = f"stops at {job.stop_at} failures" if job.stop_at else "stops at no number of failures"
        consent = "; work without a key may run twice" if job.may_run_twice else ""
        return f"{first}; {stops}{consent}"

    @admin.display(description="why")
    def problem(self, obj: Any) -> str:
        """Why it cannot be read."""
        return presenting.DAMAGED


def job_of_row(row: Any) -> ReplayJob | None:
    """Return what a row of `ReplayJob` holds; None: it cannot be read."""
    if "_safeguards_job" not in row.__dict__:
        try:
            row._safeguards_job = ReplayJob.from_json(row.job)  # noqa: SLF001 - Django asks for each field
        except JobUnreadable:
            row._safeguards_job = None  # noqa: SLF001 - see above
    found: ReplayJob | None = row._safeguards_job  # noqa: SLF001 - see above
    return found


def _read(row: Any) -> ReplayJob:
    job = job_of_row(row)
    if job is None:
        raise JobUnreadable(presenting.DAMAGED)
    return job


def _bar(job: ReplayJob) -> SafeString:
    bar = '<progress class="sg-progress" max="{}" value="{}" aria-label="letters dealt with"></progress> {} of {}'
    return format_html(bar, job.total or 1, job.position, job.position, job.total)


def _runner(job: ReplayJob) -> SafeString | str:
    if job.status != "running":
        return ""
    if not job.runner:
        return ": nobody runs it just now"
    return presenting.joined(f": {job.runner}, whose lease ends ", presenting.moment(to_us(job.lease_until_seconds)))
