"""A row's job, read once for each row that was fetched."""

from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.refusals import JobUnreadable
from django_celery_safeguards.admin.pages import presenting


def job_of_row(row: Any) -> ReplayJob | None:
    """Return what a row of `ReplayJob` holds; None: it cannot be read."""
    if "_safeguards_job" not in row.__dict__:
        try:
            row._safeguards_job = ReplayJob.from_json(row.job)  # noqa: SLF001 - Django asks for each field
        except JobUnreadable:
            row._safeguards_job = None  # noqa: SLF001 - see above
    found: ReplayJob | None = row._safeguards_job  # noqa: SLF001 - see above
    return found


def whole_job_of(row: Any) -> ReplayJob:
    """
    Return the job of a row that is known to hold one.

    Raises:
        JobUnreadable: it does not.

    """
    job = job_of_row(row)
    if job is None:
        raise JobUnreadable(presenting.DAMAGED)
    return job


def bar_of(job: ReplayJob) -> SafeString:
    """Return how far a job has come, as a bar and in numbers."""
    bar = '<progress class="sg-progress" max="{}" value="{}" aria-label="letters dealt with"></progress> {} of {}'
    return format_html(bar, job.total or 1, job.position, job.position, job.total)
