"""
What a person does with a replay job: pause, resume, run or cancel it, by POST, asked first with how many are left.
"""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseRedirect

from celery_safeguards.errors import SafeguardsError
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.steps import declared
from celery_safeguards.printable import clean, counted
from celery_safeguards.replay.many.settling import settle
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.admin.pages.asking import ReasonForm, page_of_a_button, page_that_asks
from django_celery_safeguards.admin.replays.rows import job_of_row
from django_celery_safeguards.admin.replays.verbs import VERBS, Verb, hand_over_or_say, verbs_of, why_not
from django_celery_safeguards.celery_apps import current_app_with_tasks


class DecisionForm(ReasonForm):
    """Why; whoever stops an incident is not to be kept by a question."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["reason"].required = False
        self.fields["reason"].help_text = "For the log of the admin."


class JobVerbs:
    """The buttons of a job's page, and the view behind them."""

    verb_url = "django_celery_safeguards_replayjob_verb"

    def change_view(self: Any, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show one job, with what can be done with it by whoever looks."""
        row = self.get_object(request, object_id)
        job = None if row is None else job_of_row(row)
        verbs = verbs_of(job, Wiring.of(current_app_with_tasks()).clock.wall_seconds()) if job is not None else ()
        context = {
            "tools": [self.log_link(request, object_id)],
            "buttons": [(verb.button, self._url_of(verb, object_id), "") for verb in verbs if verb.is_allowed(request)],
            "is_live": job is not None and job.status == "running",
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)  # type: ignore[misc]

    # What was done is done, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    def verb_view(self: Any, request: Any, object_id: str, verb: str) -> Any:
        """Ask before a job is paused, resumed, run or cancelled, or do it."""
        wanted = VERBS.get(verb)
        if wanted is None:
            raise Http404(f"there is no {clean(verb, 80)} of a job")
        if request.method != "POST":
            return page_of_a_button(self, request, self.page_of(request, object_id))
        if not self.has_view_permission(request) or not wanted.is_allowed(request):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        job = None if row is None else job_of_row(row)
        if job is None:
            raise Http404(f"there is no job {clean(object_id, 80)} that can be read")
        is_confirmed = "confirmed" in request.POST
        form = DecisionForm(request.POST if is_confirmed else None)
        problem = why_not(wanted, job, Wiring.of(current_app_with_tasks()).clock.wall_seconds())
        if problem:
            if is_confirmed:
                self.log_change(request, row, f"{wanted.button}: {problem}.")
            self.message_user(request, f"{problem[0].upper()}{problem[1:]}.", messages.ERROR)
            return HttpResponseRedirect(self.page_of(request, object_id))
        if is_confirmed and form.is_valid():
            self._do(request, row, job, wanted, form.cleaned_data["reason"])
            return HttpResponseRedirect(self.page_of(request, object_id))
        asked: dict[str, Any] = {"title": wanted.question, "step": wanted.button, "row": row, "form": form}
        return page_that_asks(self, request, "replay_ask.html", **asked, verb=wanted, job=job)

    def _do(self: Any, request: Any, row: Any, job: ReplayJob, verb: Verb, reason: str) -> None:
        app, who = current_app_with_tasks(), request.user.get_username()
        because = f" Reason: {clean(reason)}" if reason else ""
        wiring = Wiring.of(app)
        try:
            if verb.status is not None:
                job = wiring.jobs.change(job.id, declared(verb.status, who, wiring.clock.wall_seconds()))
            if verb.status == "cancelled":
                job = settle(app, job.id)
        except SafeguardsError as error:
            self.log_change(request, row, f"{verb.button}: {clean(error, 500)}.{because}")
            self.message_user(request, f"{clean(error, 500)}.", messages.ERROR)
            return
        # What the runner of a cancelled job has begun is known once its lease is over.
        is_to_run = verb.hands_over or (job.status == "cancelled" and not job.settled)
        problem = hand_over_or_say(app, job.id) if is_to_run else ""
        said = f"{verb.button}: {job.left} of {counted(job.total, 'letter')} left"
        self.log_change(request, row, f"{said}{'; ' if problem else ''}{problem}.{because}")
        self.message_user(request, f"{said}.", messages.SUCCESS)
        if problem:
            self.message_user(request, f"{problem}.", messages.ERROR)

    def _url_of(self: Any, verb: Verb, object_id: str) -> str:
        return str(self.url_of_view(self.verb_url, object_id, verb.name))
