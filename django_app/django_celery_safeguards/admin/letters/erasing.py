"""
Erase one person's data, in the admin: what `safeguards dead erase` does, by a form.

    the form ──POST "What would be erased?"──▶ the form, and below it what would be erased and what is not reached
               └──POST "Erase"──▶ erased, if it is what was shown; what became of it, and one entry in the admin's log

What is searched for is personal data itself: it is sent by POST alone, and stands in no address, log or history.
What is erased is what was shown: the page carries a mark of what was asked for, and of what was found.

Not covered: the log of the admin, whose earlier entries may name a person in a reason; see `NOT_COVERED` of the core.
"""

import hashlib
from typing import Any

from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpResponseNotAllowed
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from celery_safeguards.deadletter.wire import dumps
from celery_safeguards.errors import SafeguardsError, StoreUnavailable
from celery_safeguards.printable import clean, counted
from celery_safeguards.replay.erasing import NOT_COVERED, Erased, Found, Wanted, erase, find
from django_celery_safeguards.admin.letters.erase_form import SOUGHT, ErasureForm
from django_celery_safeguards.admin.pages.asking import page_that_asks
from django_celery_safeguards.admin.pages.payload import may_see
from django_celery_safeguards.admin.pages.rights import may
from django_celery_safeguards.admin.pages.shown import shown_search
from django_celery_safeguards.celery_apps import current_app_with_tasks

PERMISSION = "erase_deadletter"
MOST_AT_ONCE = 1_000
"""Letters: the request that looks and erases waits for all of them; the command line has no bound."""


class LetterErasing:
    """The page, and the link to it."""

    erase_url = "django_celery_safeguards_deadletter_erase"

    def erase_tools(self: Any, request: Any) -> list[tuple[str, str]]:
        """Return the link to the page, for whoever may use it."""
        link = ("Erase one person's data", self.url_of_view(self.erase_url))
        return [link] if may(request, PERMISSION) else []

    # What was erased is erased, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    @method_decorator(sensitive_post_parameters(*SOUGHT))
    def erase_view(self: Any, request: Any) -> Any:
        """Ask whose data, say what would be erased, or erase it."""
        if request.method not in {"GET", "POST"}:
            return HttpResponseNotAllowed(["GET", "POST"])
        if not self.has_view_permission(request) or not may(request, PERMISSION):
            raise PermissionDenied
        # Whether a guess is an argument's value, is told to those who may see it.
        search = shown_search() if may_see(request) else None
        form = ErasureForm(request.POST if request.method == "POST" else None, search=search)
        found = done = None
        if form.is_bound and form.is_valid():
            try:
                found = find(current_app_with_tasks(), form.wanted(), most=MOST_AT_ONCE)
                done = self._erased(request, form, found)
            except SafeguardsError as error:
                form.add_error(None, clean(error))
        return page_that_asks(
            self,
            request,
            "erase.html",
            title="Erase one person's data",
            step="Erase one person's data",
            form=form,
            kept=[("shown", _mark_of(form.wanted(), found))] if found else [],
            found=found,
            done=done,
            most=MOST_AT_ONCE,
            refused=_in_words((done or found).refused) if found else [],
            not_covered=NOT_COVERED,
        )

    def _erased(self: Any, request: Any, form: ErasureForm, found: Found) -> Erased | None:
        """Erase what was shown as it is now; None: it was not, or there is no reason."""
        wanted, reason = form.wanted(), form.cleaned_data["reason"]
        is_shown = request.POST.get("shown") == _mark_of(wanted, found) and not found.is_cut
        if "confirmed" not in request.POST:
            return None
        if not is_shown:
            form.add_error(None, "Nothing was erased: this is not what was shown. Below is what would be erased now.")
            return None
        if not reason:
            form.add_error("reason", "Say why, for the histories and the log of the admin.")
            return None
        try:
            done = erase(current_app_with_tasks(), wanted, request.user.get_username(), reason)
        except StoreUnavailable:
            said = f"Erased in part, {wanted.how}: the store did not answer. Reason: {clean(reason)}"
            self._log_erased(request, said)
            raise
        refused = counted(len(done.refused), "letter")
        self._log_erased(request, f"Erased, {wanted.how}: {done}; {refused} refused. Reason: {clean(reason)}")
        return done

    def _log_erased(self: Any, request: Any, said: str) -> None:
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=get_content_type_for_model(self.model),
            object_repr="one person's data",
            action_flag=DELETION,
            change_message=said,
        )


def _mark_of(wanted: Wanted, found: Found) -> str:
    """Return a text that tells what was asked for and found from all else."""
    asked = [*wanted.letter_ids, wanted.fingerprint, *wanted.terms, wanted.key]
    records = sorted(f"{each.scope} {each.key}" for each in found.records)
    whole = [asked, sorted(found.last_failed_seconds.items()), sorted(found.refused), records]
    return hashlib.sha256(dumps(whole).encode()).hexdigest()


def _in_words(refused: dict[str, str]) -> list[tuple[str, str]]:
    return [(clean(letter_id, 80), clean(why, 500)) for letter_id, why in refused.items()][:MOST_AT_ONCE]
