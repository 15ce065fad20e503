"""
A replay of many letters, begun from a page: what is chosen, how it is sent, what would happen, and then the job.

    a group, a filtered list or a selection ──▶ the form, with how many letters
    "What would happen?" ──POST──▶ the form again, with what a dry run has found
    "Start" ──POST──▶ the job is made, a worker is asked to run it, and the job's page shows how it goes

The letters are taken down in the request that starts the job, so there is a bound; the command line has none.
"""

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode

from celery_safeguards.errors import SafeguardsError
from celery_safeguards.jobs.refusals import JobUnderWay
from celery_safeguards.outcome import FailureKind
from celery_safeguards.printable import clean, counted
from celery_safeguards.replay.many.choosing import Choice, make_job, named
from django_celery_safeguards.admin.pages.asking import MOST_AT_ONCE, page_that_asks
from django_celery_safeguards.admin.pages.letter_rows import letter_id_of
from django_celery_safeguards.admin.pages.placed_list import can_be_asked
from django_celery_safeguards.admin.pages.rights import may
from django_celery_safeguards.admin.pages.shown import shown_store
from django_celery_safeguards.admin.replays.forecast import ShownForecast, shown_forecast
from django_celery_safeguards.admin.replays.start_form import ReplayJobForm
from django_celery_safeguards.admin.replays.verbs import REPLAYS, hand_over_or_say
from django_celery_safeguards.celery_apps import current_app_with_tasks
from django_celery_safeguards.models import DeadLetter, LetterGroup
from django_celery_safeguards.sql import row_id

MOST_IN_A_REQUEST = 20_000
NARROWED_BY = frozenset({"fingerprint", "task", "kind"})


class StartsReplays:
    """The part of the admin of jobs that makes one."""

    start_url = "django_celery_safeguards_replayjob_start"

    # A job that is made is made, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    def start_view(self: Any, request: Any) -> Any:
        """Ask how letters are sent again, say what would happen, or start it."""
        if request.method not in {"GET", "POST"}:
            return HttpResponseNotAllowed(["GET", "POST"])
        if not may_start(request):
            raise PermissionDenied
        if shown_store().alias is None:
            self.message_user(request, shown_store().notice, messages.ERROR)
            return HttpResponseRedirect(self.url_of("changelist"))
        given = request.POST if request.method == "POST" else request.GET
        choice, letters, closed = _chosen(given)
        is_asked = "look" in request.POST or "confirmed" in request.POST
        form = ReplayJobForm(request.POST if is_asked else None)
        found = None
        if is_asked and form.is_valid():
            if "confirmed" in request.POST:
                answer = self._start(request, choice, letters, form)
                if answer is not None:
                    return answer
            else:
                wanted = {name: form.cleaned_data[name] for name in ("may_run_twice", "asks")}
                found = self._looked(request, choice, form, wanted)
        kept = [(name, value) for name in (*sorted(NARROWED_BY), "letter") for value in given.getlist(name) if value]
        return self._ask(request, choice, letters, form, kept, found, closed=closed)

    def _looked(self: Any, request: Any, choice: Choice, form: ReplayJobForm, wanted: dict[str, bool]) -> Any:
        try:
            return shown_forecast(self.admin_site, request, current_app_with_tasks(), choice, **wanted)
        except SafeguardsError as error:
            form.add_error(None, clean(error))
            return None

    def ask_about(self: Any, request: Any, picked: Sequence[str]) -> Any:
        """Ask how letters are sent again that were picked from a list, by the ids of their rows."""
        choice, letters, closed = _picked(picked)
        kept = [("letter", each) for each in picked]
        return self._ask(request, choice, letters, ReplayJobForm(), kept, None, closed=closed)

    def _ask(
        self: Any,
        request: Any,
        choice: Choice,
        letters: int,
        form: ReplayJobForm,
        kept: Sequence[tuple[str, str]],
        found: ShownForecast | None,
        *,
        closed: int,
    ) -> Any:
        return page_that_asks(
            self,
            request,
            "replay_start.html",
            title="Send these letters again?",
            step="Start",
            subtitle=clean(choice, 200),
            form=form,
            kept=kept,
            action_url=start_link(self.admin_site),
            back_url=_came_from(request, self.admin_site, choice),
            letters=letters,
            closed=closed,
            are_open=letters > closed,
            most=MOST_IN_A_REQUEST,
            found=found,
            unreadable=0 if found is None or found.is_cut else max(0, letters - found.letters),
        )

    def _start(self: Any, request: Any, choice: Choice, letters: int, form: ReplayJobForm) -> Any:
        if letters > MOST_IN_A_REQUEST:
            form.add_error(None, f"More than {MOST_IN_A_REQUEST} letters: use `safeguards replays start`.")
            return None
        app, who = current_app_with_tasks(), request.user.get_username()
        try:
            job = make_job(app, choice, who, **form.options())
        except JobUnderWay as error:
            self.message_user(request, f"{clean(error)}.", messages.ERROR)
            return HttpResponseRedirect(self.url_of("change", row_id(shown_store().namespace, error.job_id)))
        except SafeguardsError as error:
            form.add_error(None, clean(error))
            return None
        object_id = row_id(shown_store().namespace, job.id)
        problem = hand_over_or_say(app, job.id)
        row = self.get_object(request, object_id)
        said = f"Replay of {counted(job.total, 'letter')}: {clean(job.chosen, 300)}. Reason: {clean(job.reason, 400)}."
        self.log_addition(request, row, said)
        self.message_user(request, f"Begun: {counted(job.total, 'letter')}.", messages.SUCCESS)
        if problem:
            self.message_user(request, f"{problem}.", messages.ERROR)
        return HttpResponseRedirect(self.url_of("change", object_id))


def may_start(request: Any) -> bool:
    """Whether whoever asks may see the letters, send them, and look at the job."""
    return may(request, REPLAYS, "view_deadletter", "view_replayjob")


def start_link(admin_site: Any, **narrowed: str) -> str:
    """Return the address of the form for the open letters of a group, a task or a kind."""
    url = reverse(f"admin:{StartsReplays.start_url}", current_app=admin_site.name)
    return f"{url}?{urlencode(narrowed)}" if narrowed else str(url)


def _chosen(given: Any) -> tuple[Choice, int, int]:
    """Return what a page names, how many letters that is, and how many are not open; not counted above the bound."""
    picked = given.getlist("letter")[:MOST_AT_ONCE]
    if not all(can_be_asked(each) for each in (*picked, *(given.get(name, "") for name in NARROWED_BY))):
        raise Http404("there are no such letters")
    if picked:
        return _picked(picked)
    narrowed = {name: given[name] for name in NARROWED_BY if given.get(name)}
    kind = narrowed.get("kind")
    if kind and kind not in {each.value for each in FailureKind}:
        raise Http404(f"there is no kind {clean(kind, 80)}")
    choice = Choice(
        fingerprint=narrowed.get("fingerprint"), task=narrowed.get("task"), kind=FailureKind(kind) if kind else None
    )
    return choice, _rows().filter(state="open", **narrowed).order_by()[: MOST_IN_A_REQUEST + 1].count(), 0


def _came_from(request: Any, admin_site: Any, choice: Choice) -> str:
    """Return the address of the group, or of the list of letters, from which these were chosen."""
    if choice.fingerprint and not choice.task and not choice.kind and may(request, "view_lettergroup"):
        group = row_id(shown_store().namespace, choice.fingerprint)
        return str(admin_site.get_model_admin(LetterGroup).url_of("change", group))
    narrowed = {"fingerprint": choice.fingerprint, "task": choice.task, "kind": choice.kind and choice.kind.value}
    query = urlencode({name: value for name, value in narrowed.items() if value})
    letters = str(admin_site.get_model_admin(DeadLetter).url_of("changelist"))
    return f"{letters}?{query}" if query else letters


def _picked(picked: Sequence[str]) -> tuple[Choice, int, int]:
    rows = _rows().in_bulk(list(picked))
    found = [rows[each] for each in dict.fromkeys(picked) if each in rows]
    return named(map(letter_id_of, found)), len(found), sum(each.state != "open" for each in found)


def _rows() -> Any:
    return DeadLetter.objects.using(shown_store().alias).filter(namespace=shown_store().namespace)
