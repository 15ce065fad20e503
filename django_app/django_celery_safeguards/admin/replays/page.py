"""
The page of one replay job: how it stands, what became of its letters, and what was asked for.

It shows what the job's runner has written down; the browser asks for it again every other second while the job runs
(every fifth without scripts).
"""

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from celery_safeguards.clock import to_us
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.printable import clean, counted
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.replays.rows import bar_of, job_of_row, whole_job_of
from django_celery_safeguards.models import DeadLetter, LetterGroup
from django_celery_safeguards.sql import row_id


class JobPage:
    """The fields of a job's page; each is a value in words."""

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

    @admin.display(description="status")
    def status_shown(self, obj: Any) -> SafeString:
        """With why, and who runs it."""
        job = whole_job_of(obj)
        why = f" {clean(job.because)}" if job.because else ""
        return presenting.joined(presenting.state_mark(job.status), why, _runner(job))

    @admin.display(description="dealt with")
    def progress_shown(self, obj: Any) -> SafeString:
        """A bar, and numbers."""
        return bar_of(whole_job_of(obj))

    @admin.display(description="sent")
    def sent_shown(self, obj: Any) -> SafeString | str:
        """What became of them."""
        job = whole_job_of(obj)
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
        tally = whole_job_of(obj).tally
        rows: list[tuple[str, object]] = [("no need", tally.skipped), ("refused", tally.refused)]
        reasons = presenting.lines(f"{count}: {reason}" for reason, count in tally.reasons.items())
        return presenting.pairs([*rows, *([("because", reasons)] if tally.reasons else [])])

    @admin.display(description="in doubt")
    def in_doubt_shown(self: Any, obj: Any) -> SafeString | str:
        """Letters that the last runner had begun and perhaps not sent, each to be resumed on its page."""
        job = whole_job_of(obj)
        if not job.settled:
            return (
                "What its runner had begun is written down by a worker, within a minute; or by "
                f"safeguards replays show {job.id}."
            )
        said = "Begun, and perhaps not sent, since the process that ran it ended. Resume them on their pages:"
        letters = [
            presenting.link_to(self.admin_site, DeadLetter, row_id(obj.namespace, each), each) for each in job.unsure
        ]
        return presenting.joined(said, presenting.lines(letters))

    @admin.display(description="letters")
    def chosen_shown(self: Any, obj: Any) -> SafeString | str:
        """With a link to their group."""
        job = whole_job_of(obj)
        said = f"{counted(job.total, 'letter')}: {clean(job.chosen)}"
        if not job.fingerprint:
            return said
        link = presenting.link_to(self.admin_site, LetterGroup, row_id(obj.namespace, job.fingerprint), "the group")
        return presenting.joined(said, " (", link, ")")

    @admin.display(description="by")
    def who_shown(self, obj: Any) -> SafeString:
        """Who, when and why."""
        job = whole_job_of(obj)
        made = presenting.moment(to_us(job.created_seconds))
        return presenting.joined(clean(job.who), ", ", made, f": {job.reason}" if job.reason else "")

    @admin.display(description="pace")
    def pace_shown(self, obj: Any) -> SafeString | str:
        """How fast, and how many at once; how slowly just now, and why."""
        return presenting.lines(whole_job_of(obj).pace_in_words)

    @admin.display(description="safety")
    def stops_shown(self, obj: Any) -> str:
        """What keeps one incident from becoming a second one."""
        job = whole_job_of(obj)
        first = f"{counted(job.canary, 'letter')} first" if job.canary else "no canaries"
        stops = f"stops at {counted(job.stop_at, 'failure')}" if job.stop_at else "stops at no number of failures"
        consent = "; work without a key may run twice" if job.may_run_twice else ""
        return f"{first}; {stops}{consent}"

    @admin.display(description="why")
    def problem(self, obj: Any) -> str:
        """Why it cannot be read."""
        return presenting.DAMAGED


def _runner(job: ReplayJob) -> SafeString | str:
    if job.status != "running":
        return ""
    if not job.runner:
        return ": nobody runs it just now"
    return presenting.joined(f": {job.runner}, whose lease ends ", presenting.moment(to_us(job.lease_until_seconds)))
