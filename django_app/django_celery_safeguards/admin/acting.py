"""
What a person may do to letters, the page that asks before it is done, and what is said afterwards.

    button or list action ──POST──▶ the page that asks: each letter, and what will happen to it
    its button            ──POST──▶ done, one letter after the other; a message and an entry in the admin's log for each

Every deed is by POST alone and under the permission of its own, on the button, on the page that asks and on the deed
itself. The page that asks carries the time of each letter's last failure: what has failed again since is another
failure, which nobody has looked at, and is left alone.

Not covered: a pace. A batch goes as fast as store and broker take it; `safeguards dead replay --per-second` has one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from celery_safeguards.printable import clean
from celery_safeguards.replay.plan import Need
from django_celery_safeguards.admin import presenting
from django_celery_safeguards.admin.deeds import (
    Done,
    Given,
    discard_letter,
    replay_letter,
    resolve_letter,
    resume_letter,
)
from django_celery_safeguards.admin.forms import DidNotHappenForm, HappenedForm, ReasonForm, ReplayForm
from django_celery_safeguards.admin.letter_rows import let_go, outlook_of, reading_of
from django_celery_safeguards.celery_apps import current_app_with_tasks

MOST_AT_ONCE = 500
_TOLD_ONE_BY_ONE = 20
_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """
    One thing that can be done to letters.

    Attributes:
        permission: codename, of this app.
        button: in the imperative.
        question: the heading of the page that asks.
        will: what happens to a letter.
        run: does it to one letter.

    """

    name: str
    permission: str
    button: str
    question: str
    will: str
    form: type[forms.Form]
    run: Callable[[Any, str, Given], Done]

    def is_allowed(self, request: Any) -> bool:
        """Whether whoever asks may do it."""
        return bool(request.user.has_perm(f"django_celery_safeguards.{self.permission}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """One letter on the page that asks."""

    row: Any
    picked: str
    mark: str
    texts: Any
    needs_consent: bool = False

    @property
    def task(self) -> str:
        """For people."""
        return presenting.short(self.row.task)

    @property
    def key(self) -> str:
        """For people."""
        return presenting.short(self.row.key)


REPLAY = Deed(
    name="replay",
    permission="replay_deadletter",
    button="Replay",
    question="Send this work again?",
    will="It is sent again.",
    form=ReplayForm,
    run=replay_letter,
)
DISCARD = Deed(
    name="discard",
    permission="discard_deadletter",
    button="Discard",
    question="Give this work up?",
    will="It is given up: it stays readable, and is never sent again.",
    form=ReasonForm,
    run=discard_letter,
)
HAPPENED = Deed(
    name="happened",
    permission="resolve_deadletter",
    button="It happened",
    question="Has this work happened?",
    will="It is recorded as done, with the result below. Its body does not run.",
    form=HappenedForm,
    run=resolve_letter,
)
DID_NOT_HAPPEN = Deed(
    name="did-not-happen",
    permission="resolve_deadletter",
    button="It did not happen",
    question="Has this work not happened?",
    will="It is sent again, and its body runs.",
    form=DidNotHappenForm,
    run=resolve_letter,
)
RESUME = Deed(
    name="resume",
    permission="replay_deadletter",
    button="Resume the replay",
    question="Send this replay again?",
    will="It is sent again, under the task id that it has.",
    form=ReplayForm,
    run=resume_letter,
)
DEEDS = {deed.name: deed for deed in (REPLAY, RESUME, HAPPENED, DID_NOT_HAPPEN, DISCARD)}


_STYLES = {REPLAY.name: "default", RESUME.name: "default", DISCARD.name: "sg-danger"}
"""Of the buttons; a person's word is as good as the other, so neither of them is the default."""


class LetterActions:
    """The deeds of the admin of letters: list actions, buttons, and the view behind both."""

    actions = ("replay_selected", "discard_selected")
    deed_url = "django_celery_safeguards_deadletter_deed"

    def has_replay_permission(self, request: Any) -> bool:
        """Whether the list offers it."""
        return REPLAY.is_allowed(request)

    def has_discard_permission(self, request: Any) -> bool:
        """Whether the list offers it."""
        return DISCARD.is_allowed(request)

    @admin.action(description="Replay selected letters", permissions=["replay"])
    def replay_selected(self, request: Any, queryset: Any) -> Any:
        """Ask whether to send them again."""
        return self._asked_for_selected(request, REPLAY, queryset)

    @admin.action(description="Discard selected letters", permissions=["discard"])
    def discard_selected(self, request: Any, queryset: Any) -> Any:
        """Ask whether to give them up."""
        return self._asked_for_selected(request, DISCARD, queryset)

    def change_view(self: Any, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show one letter, with a button for everything that can be done to it by whoever looks."""
        row = self.get_object(request, object_id)
        deeds = [] if row is None else [deed for deed in possible_deeds(row) if deed.is_allowed(request)]
        buttons = [(deed.button, self._url_of(deed), _STYLES.get(deed.name, "")) for deed in deeds]
        context = {"buttons": buttons, "picked": None if row is None else _picked(row), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)  # type: ignore[misc]

    # What was done is done, whatever happens to the request afterwards, and so is its entry in the log.
    @transaction.non_atomic_requests
    def deed_view(self: Any, request: Any, deed: str) -> Any:
        """Ask before a deed, or do it."""
        wanted = DEEDS.get(deed)
        if wanted is None:
            raise Http404(f"there is no deed {clean(deed, 80)}")
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_view_permission(request) or not wanted.is_allowed(request):
            raise PermissionDenied
        picked = dict.fromkeys(request.POST.getlist("letter"))
        rows = self._rows(request, [each.partition(":")[0] for each in picked])
        if len(picked) > MOST_AT_ONCE or not rows:
            return self._refused(request, len(picked))
        is_confirmed = "confirmed" in request.POST
        form = wanted.form(request.POST if is_confirmed else None)
        if not is_confirmed or not form.is_valid():
            return self._ask(request, wanted, rows, form)
        self._do(request, wanted, rows, form, seen=set(picked))
        return self._gone_back(rows)

    def _asked_for_selected(self: Any, request: Any, deed: Deed, queryset: Any) -> Any:
        count = queryset.count()
        if count > MOST_AT_ONCE:
            return self._refused(request, count)
        return self._ask(request, deed, list(queryset), deed.form())

    def _rows(self: Any, request: Any, ids: Iterable[str]) -> list[Any]:
        found = self.get_queryset(request).in_bulk(list(ids)[: MOST_AT_ONCE + 1])
        return [found[id_] for id_ in dict.fromkeys(ids) if id_ in found]

    def _refused(self: Any, request: Any, count: int) -> Any:
        if count > MOST_AT_ONCE:
            how = "narrow the list, or use celery -A <project> safeguards dead replay --all --per-second"
            text = f"{count} letters are chosen, and {MOST_AT_ONCE} go at once: {how}"
        else:
            text = "There is no such letter."
        self.message_user(request, text, messages.ERROR)
        return HttpResponseRedirect(self._list_url())

    def _ask(self: Any, request: Any, deed: Deed, rows: Sequence[Any], form: Any) -> Any:
        prospects = []
        for row in rows:
            prospects.append(prospect_of(deed, row))
            let_go(row)
        if "may_run_twice" in form.fields and not any(each.needs_consent for each in prospects):
            del form.fields["may_run_twice"]
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": deed.question,
            "deed": deed,
            "form": form,
            "prospects": prospects,
            "action_url": self._url_of(deed),
            "style": _STYLES.get(deed.name, "default"),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/django_celery_safeguards/deed.html", context)

    def _do(self: Any, request: Any, deed: Deed, rows: Sequence[Any], form: Any, *, seen: set[str]) -> None:
        # Consent is given to what the page has marked, and to nothing that would need it only now.
        asked = set(request.POST.getlist("asked")) if form.cleaned_data.get("may_run_twice") else set()
        given = Given(
            who=request.user.get_username(),
            reason=form.cleaned_data.get("reason", ""),
            verdict=form.verdict() if hasattr(form, "verdict") else None,
        )
        app, succeeded = current_app_with_tasks(), []
        for row in rows:
            picked = _picked(row)
            done = _done(app, deed, row, given, has_seen=picked in seen, may_run_twice=picked in asked)
            because = f" Reason: {given.reason}" if given.reason else ""
            self.log_change(request, row, f"{deed.button}: {clean(done.text, _MESSAGE_CHARS)}.{because}")
            if done.is_done:
                succeeded.append(done)
            else:
                self.message_user(request, _sentence(done), messages.ERROR)
        for done in succeeded[:_TOLD_ONE_BY_ONE]:
            self.message_user(request, _sentence(done), messages.SUCCESS)
        if len(succeeded) > _TOLD_ONE_BY_ONE:
            left = len(succeeded) - _TOLD_ONE_BY_ONE
            self.message_user(request, f"{left} more were done, {len(succeeded)} of {len(rows)}.", messages.SUCCESS)

    def _gone_back(self: Any, rows: Sequence[Any]) -> Any:
        if len(rows) > 1:
            return HttpResponseRedirect(self._list_url())
        return HttpResponseRedirect(
            reverse(f"{self._named}_change", args=[rows[0].pk], current_app=self.admin_site.name)
        )

    def _list_url(self: Any) -> str:
        return str(reverse(f"{self._named}_changelist", current_app=self.admin_site.name))

    def _url_of(self: Any, deed: Deed) -> str:
        return str(reverse(f"admin:{self.deed_url}", args=[deed.name], current_app=self.admin_site.name))

    @property
    def _named(self: Any) -> str:
        return f"admin:{self.opts.app_label}_{self.opts.model_name}"


def possible_deeds(row: Any) -> list[Deed]:
    """Return what can be done to a letter as it stands; whoever is faster may make it impossible."""
    letter = reading_of(row).letter
    if letter is None or letter.state not in {"open", "replaying"}:
        return []
    found, is_open = outlook_of(row), letter.state == "open"
    deeds = []
    if found.refused is None or found.needs is Need.CONSENT:
        deeds.append(REPLAY if is_open else RESUME)
    if found.needs is Need.VERDICT:
        deeds.append(HAPPENED)
    if found.needs is Need.VERDICT or (found.needs is Need.CONSENT and is_open):
        deeds.append(DID_NOT_HAPPEN)
    return [*deeds, DISCARD] if is_open else deeds


def prospect_of(deed: Deed, row: Any) -> Prospect:
    """Return what a deed would do to a letter."""
    letter = reading_of(row).letter
    said: dict[str, Any] = {"row": row, "picked": _picked(row)}
    if letter is None:
        return Prospect(**said, mark="no", texts=presenting.lines([f"It cannot be read: {reading_of(row).problem}"]))
    if deed is DISCARD:
        return _prospect_of_discard(letter, said)
    found = outlook_of(row)
    if deed in possible_deeds(row):
        if deed.form is ReplayForm and found.needs is Need.CONSENT:
            texts = ["It may run twice, so it is sent only with consent.", f"Why: {found.refused}.", *found.notes]
            return Prospect(**said, mark="asks", texts=presenting.lines(texts), needs_consent=True)
        return Prospect(**said, mark="yes", texts=presenting.lines([deed.will, *found.notes]))
    refused = presenting.outlook_in_words(found)
    return Prospect(**said, mark="no", texts=refused)


def _prospect_of_discard(letter: Any, said: dict[str, Any]) -> Prospect:
    if letter.state != "open":
        return Prospect(**said, mark="no", texts=presenting.lines([f"The letter is {letter.state}."]))
    texts = [DISCARD.will]
    if letter.key is not None:
        texts.append(f"Key {letter.key} is free for a new publication.")
    if letter.effect_possible:
        texts.append("An outside effect is possible, and stays unknown.")
    return Prospect(**said, mark="yes", texts=presenting.lines(texts))


def _done(app: Any, deed: Deed, row: Any, given: Given, *, has_seen: bool, may_run_twice: bool) -> Done:
    letter_id, needs_consent = _letter_id(row), may_run_twice and prospect_of(deed, row).needs_consent
    let_go(row)
    if not has_seen:
        return Done(letter_id, False, "it has failed again since that page was made: look at it again")
    return deed.run(app, letter_id, replace(given, may_run_twice=needs_consent))


def _letter_id(row: Any) -> str:
    letter = reading_of(row).letter
    return letter.id if letter is not None else str(row.letter_id)


def _picked(row: Any) -> str:
    """Return a row and the failure that a person has looked at."""
    return f"{row.pk}:{row.last_failed_us}"


def _sentence(done: Done) -> str:
    return f"Letter {clean(done.letter_id, 80)}: {clean(done.text, _MESSAGE_CHARS)}."
