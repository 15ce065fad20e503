"""
Release a lock, in the admin: what `safeguards locks release` does, by a form.

    "Release…" ──POST──▶ what is known of the lock and its owner, what a release does, and a reason that is asked for
                 └──POST "Release"──▶ released, of the owner who was shown; a message, and an entry in the admin's log

The owner is looked at once more before the release: who was dead may have been heard since. The page carries a mark of
owner and fence, so that a lock which was released meanwhile, or which another owner has by now, is left alone.

A request takes two seconds where a worker is to be asked, and four more at the most where the broker does not answer.
"""

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseRedirect

from celery_safeguards.errors import LockLost, SafeguardsError
from celery_safeguards.locks.shown import described, fields, who
from celery_safeguards.printable import clean
from celery_safeguards.releasing import Look, look, release
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.asking import MAX_REASON_CHARS, page_of_a_button, page_that_asks
from django_celery_safeguards.admin.pages.rights import may
from django_celery_safeguards.celery_apps import current_app

PERMISSION = "release_leaselock"
_MESSAGE_CHARS = 500
_MEANS = (
    "Whoever has waited longest has the lock next; if nobody waits, it is free.",
    "It is released of this owner at this fence alone: whoever has it by the time you press the button keeps it.",
    (
        "If its owner lives after all, its fence is refused: it can neither renew the lock nor release it nor record "
        "its outcome, and its next checkpoint stops it."
    ),
    (
        "What it writes until then is refused only where the written thing compares fencing tokens, and once the next "
        "owner has entered. Else two work at once: a release stops no process."
    ),
)


class LockReleaseForm(forms.Form):
    """Why, and whether it is to be released all the same."""

    override = forms.BooleanField(
        required=False,
        label="Release it all the same",
        help_text="Its owner is not shown dead: it may be alive, and two may then work at once.",
    )
    reason = forms.CharField(
        max_length=MAX_REASON_CHARS,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "class": "vLargeTextField"}),
        help_text="For the log of the admin, and for that of the server.",
    )


class ReleasesLocks:
    """The button, and the page that it leads to."""

    release_url = "django_celery_safeguards_leaselock_release"

    def get_urls(self: Any) -> list[Any]:
        """Add the page."""
        own = self.view_at("<str:object_id>/release/", self.release_view, self.release_url)
        return [own, *super().get_urls()]  # type: ignore[misc]

    def change_view(self: Any, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show one lock, with the button for whoever may press it, while somebody holds it."""
        row = self.get_object(request, object_id)
        is_offered = row is not None and row.owner and name_of(row) and may(request, PERMISSION)
        context = {
            "tools": [self.log_link(request, object_id)],
            "buttons": [("Release", self.url_of_view(self.release_url, object_id), "")] if is_offered else [],
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)  # type: ignore[misc]

    # What was done is done, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    def release_view(self: Any, request: Any, object_id: str) -> Any:
        """Ask before a lock is released, or release it."""
        if request.method != "POST":
            return page_of_a_button(self, request, self.page_of(request, object_id))
        if not self.has_view_permission(request) or not may(request, PERMISSION):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        name = None if row is None else name_of(row)
        if name is None:
            raise Http404(f"there is no lock {clean(object_id, 80)} that can be read")
        try:
            found = look(current_app(), name)
        except SafeguardsError as error:
            return self._not_done(request, row, f"nothing was done: {clean(error, _MESSAGE_CHARS)}")
        is_confirmed = "confirmed" in request.POST
        problem = _passed_on(found, request.POST.get("seen") if is_confirmed else found.mark)
        if problem:
            return self._not_done(request, row, problem)
        form = LockReleaseForm(request.POST if is_confirmed else None)
        if not _is_complete(form, found):
            return self._ask(request, row, found, form)
        return self._release(request, row, found, form.cleaned_data["reason"])

    def _ask(self: Any, request: Any, row: Any, found: Look, form: LockReleaseForm) -> Any:
        if found.evidence.is_dead:
            del form.fields["override"]
        rows = [(name, value) for name, value in fields(_described(found)) if value is not None]
        return page_that_asks(
            self,
            request,
            "lock_release.html",
            title="Release this lock?",
            step="Release",
            row=row,
            form=form,
            kept=[("seen", found.mark)],
            known=presenting.pairs([*rows, ("taken", presenting.stamp(found.state.since_us))]),
            is_dead=found.evidence.is_dead,
            findings=presenting.lines(found.findings),
            means=presenting.lines(_MEANS),
        )

    def _release(self: Any, request: Any, row: Any, found: Look, reason: str) -> Any:
        try:
            release(current_app(), found, by=f"{request.user.get_username()}, in the admin", reason=reason)
        except LockLost as error:
            return self._not_done(request, row, f"nothing was done: {clean(error, _MESSAGE_CHARS)}")
        except SafeguardsError as error:
            # The store may have done it, and its answer be what was lost.
            problem = f"it is not known whether it is released, look again: {clean(error, _MESSAGE_CHARS)}"
            return self._not_done(request, row, problem)
        said = f"{clean(found.released)}, {found.how} ({clean('; '.join(found.findings))})"
        self.log_change(request, row, f"Release: {said}. Reason: {clean(reason)}")
        self.message_user(request, _sentence(clean(found.released, _MESSAGE_CHARS)), messages.SUCCESS)
        return HttpResponseRedirect(self.page_of(request, row.pk))

    def _not_done(self: Any, request: Any, row: Any, problem: str) -> Any:
        if "confirmed" in request.POST:
            self.log_change(request, row, f"Release: {problem}.")
        self.message_user(request, _sentence(problem), messages.ERROR)
        return HttpResponseRedirect(self.page_of(request, row.pk))


def body_of(row: Any) -> dict[str, Any]:
    """Return what a lock's row holds beside its columns; nothing, if it is damaged."""
    try:
        found = json.loads(row.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def holder_of(row: Any) -> dict[str, Any]:
    """Return who holds a lock, or held it last, as its row says; nothing, if that is damaged."""
    found = body_of(row).get("holder")
    return found if isinstance(found, dict) else {}


def name_of(row: Any) -> str | None:
    """Return a lock's exact name, by which the store knows it; None: it cannot be read."""
    body = body_of(row)
    found, holder = body.get("name"), body.get("holder")
    return found if isinstance(found, str) and isinstance(holder, dict) else None


def _described(found: Look) -> dict[str, Any]:
    return described(found.state, found.found.now_us, found.waiting)


def _passed_on(found: Look, seen: str | None) -> str:
    """Return why there is nothing to release, or somebody else's; '' if it is the owner's who was shown."""
    state = found.state
    if not state.owner:
        return "nothing was done: nobody holds the lock any more"
    if seen != found.mark:
        has_it = clean(who(state.holder), _MESSAGE_CHARS)
        return f"nothing was done: not the owner that was shown has the lock by now, but {has_it}, fence {state.fence}"
    return ""


def _is_complete(form: LockReleaseForm, found: Look) -> bool:
    """Whether all is said that a release needs."""
    if not form.is_bound:
        return False
    is_valid: bool = form.is_valid()
    if not found.evidence.is_dead and not form.cleaned_data["override"]:
        form.add_error("override", "It is not released: its owner is not shown dead.")
        return False
    return is_valid


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
