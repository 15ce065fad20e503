"""
Edit as new, in the admin: a form, the page that says what will happen, and the sending.

    button ──GET──▶ the form ──POST "Check"──▶ the form, and below it what would be sent and what would become of it
                                └──POST "Send the copy"──▶ sent, if it is what was checked; a message, and a log entry

What is sent is what was shown: the page carries a mark of the copy and of all that was said of it. A form that was
changed after the check is checked again, and so is one whose key has moved on. And it carries a mark of the letter: one
that was edited, replayed or discarded meanwhile, or has died again, is left alone, and shown as it is now.

What a person writes into the form stands in no report of an error that Django mails.
"""

import time
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from celery_safeguards.deadletter.changes import EDITABLE, look_at, require_look
from celery_safeguards.deadletter.letter import Letter, LetterTruncated
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.printable import clean
from celery_safeguards.replay import CopyNotPublished, EditRefused, Prepared, masked, opened_at, prepare, send_edited
from celery_safeguards.replay.copies.copying import known_queues
from celery_safeguards.replay.copies.locked import locked_fields
from django_celery_safeguards.admin.letters.edit_form import MOST_FORM_BYTES, EditForm, mark_of
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.asking import page_that_asks
from django_celery_safeguards.admin.pages.letter_rows import letter_of, reading_of, seen_letter_of
from django_celery_safeguards.admin.pages.payload import may_see
from django_celery_safeguards.admin.pages.placed_list import PRESERVED_FILTERS
from django_celery_safeguards.admin.pages.rights import may
from django_celery_safeguards.celery_apps import current_app_with_tasks

PERMISSION = "edit_deadletter"
_MESSAGE_CHARS = 500
_LOCKED_CHARS = 300


class LetterEditing:
    """The button, and the view behind it."""

    edit_url = "django_celery_safeguards_deadletter_edit"

    def change_view(self: Any, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show one letter, with the button for whoever may."""
        row = self.get_object(request, object_id)
        letter = None if row is None else reading_of(row).letter
        is_offered = letter is not None and _may_edit(request) and _can_be_opened(letter)
        context = {
            "edit_url": self.url_of_view(self.edit_url, object_id) if is_offered else "",
            # A form that is sent by GET takes nothing along but its fields.
            "listed": request.GET.get(PRESERVED_FILTERS, ""),
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)  # type: ignore[misc]

    # What was sent is sent, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    @method_decorator(sensitive_post_parameters("args", "kwargs"))
    def edit_view(self: Any, request: Any, object_id: str) -> Any:
        """Show the form, say what would happen, or send."""
        if request.method not in {"GET", "POST"}:
            return HttpResponseNotAllowed(["GET", "POST"])
        if not self.has_view_permission(request) or not _may_edit(request):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        letter = None if row is None else reading_of(row).letter
        if letter is None:
            raise Http404(f"there is no letter {clean(object_id, 80)} that can be read")
        app = current_app_with_tasks()
        try:
            form = _form_of(app, letter, request.POST if request.method == "POST" else None)
            fields = locked_fields(letter, seen_letter_of(row).wire)
            locked = [(each.name, clean(each.value, _LOCKED_CHARS), each.why) for each in fields]
        except (EditRefused, LetterTruncated) as error:
            return self._show(request, row, refused=clean(error))
        if request.method != "POST" or not form.is_valid():
            return self._show(request, row, form=form, locked=locked)
        look, prepared = request.POST.get("look", ""), None
        try:
            require_look(letter, look)
            prepared = prepare(app, letter, form.seen.restored(form.edit()))
            answer = self._sent(request, row, prepared, form, look)
        except SafeguardsError as error:
            form.add_error(None, clean(error))
            answer = None
        return answer or self._show(request, row, form=form, locked=locked, ahead=prepared)

    def _sent(self: Any, request: Any, row: Any, prepared: Prepared, form: EditForm, look: str) -> Any:
        """Send a copy that was shown as it is now; None: it was not, or consent is missing."""
        asked = request.POST
        if "send" not in asked:
            return None
        if asked.get("checked") != mark_of(form.edit(), prepared, look):
            form.add_error(None, "Nothing was sent: this is not what was checked. Below is what would happen now.")
            return None
        if prepared.consent and "may_run_twice" not in asked:
            form.add_error(None, "It is sent only with consent: see below.")
            return None
        reason, who = form.cleaned_data["reason"], request.user.get_username()
        consents = bool(prepared.consent)
        try:
            sent = send_edited(
                current_app_with_tasks(),
                prepared.letter.id,
                who,
                prepared.edit,
                reason,
                look=look,
                may_run_twice=consents,
            )
        except SafeguardsError as error:
            # The log is read by more people than may see what an error quotes.
            is_out = isinstance(error, CopyNotPublished)
            became = (
                "a copy is begun, and not known to be sent: see the letter" if is_out else "refused, nothing is sent"
            )
            self.log_change(request, row, f"Edit as new: {became}. Reason: {clean(reason)}")
            if not is_out:
                raise
            self.message_user(request, f"{clean(error, _MESSAGE_CHARS)}.", messages.ERROR)
        else:
            said = f"a copy is sent as task {sent.task_id}, {prepared.notes[0]}"
            self.log_change(request, row, f"Edit as new: {clean(said, _MESSAGE_CHARS)}. Reason: {clean(reason)}")
            named = clean(prepared.letter.id, 80)
            self.message_user(request, f"Letter {named}: {clean(said, _MESSAGE_CHARS)}.", messages.SUCCESS)
        return HttpResponseRedirect(self.page_of(request, row.pk))

    def _show(self: Any, request: Any, row: Any, **context: Any) -> Any:
        ahead: Prepared | None = context.get("ahead")
        letter = letter_of(row)
        look = look_at(letter)
        return page_that_asks(
            self,
            request,
            "edit.html",
            title="Edit as new",
            step="Edit as new",
            row=row,
            kept=[("look", look), *([("checked", mark_of(context["form"].edit(), ahead, look))] if ahead else [])],
            task=presenting.short(letter.task),
            notes=presenting.lines(ahead.notes) if ahead else "",
            history=presenting.history(seen_letter_of(row).history),
            **context,
        )


def _may_edit(request: Any) -> bool:
    """Whether whoever asks may send edited copies, and see what they are made of."""
    return may(request, PERMISSION) and may_see(request)


def _can_be_opened(letter: Letter) -> bool:
    try:
        opened_at(letter, time.time())
    except (EditRefused, LetterTruncated):
        return False
    return letter.state in EDITABLE


def _form_of(app: Any, letter: Letter, data: Any) -> EditForm:
    if letter.state not in EDITABLE:
        raise EditRefused(f"the letter is {letter.state}")
    found = opened_at(letter, time.time())
    form = EditForm(data, found, masked(app, letter, found), known_queues(app))
    if form.size_bytes > MOST_FORM_BYTES:
        raise EditRefused(
            f"its arguments have {form.size_bytes} bytes as text, and {MOST_FORM_BYTES} fit into a page: "
            "use celery -A <project> safeguards dead edit"
        )
    return form
