"""What a person adds to what is asked for."""

import json
from typing import Any

from django import forms

from celery_safeguards.deadletter.group import MOST_NOTE_CHARS, STATUSES
from celery_safeguards.deadletter.search import Search
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.jobs.job import MOST_AT_ONCE
from celery_safeguards.policy import DidNotHappen, Happened
from celery_safeguards.printable import clean
from celery_safeguards.replay.erasing import Wanted
from django_celery_safeguards.admin.deeds import MAX_REASON_CHARS

MOST_ASKED = 20
"""A dry run on a page asks the outside of so many letters."""

_REASON = forms.Textarea(attrs={"rows": 3, "cols": 60, "class": "vLargeTextField"})


class ReplayForm(forms.Form):
    """Consent, where it is needed."""

    may_run_twice = forms.BooleanField(required=False, label='Letters marked "with consent" may run twice')


class RestoreForm(forms.Form):
    """Nothing."""


class ReasonForm(forms.Form):
    """Why."""

    reason = forms.CharField(
        max_length=MAX_REASON_CHARS, widget=_REASON, help_text="For the letter's history and the log of the admin."
    )


class DidNotHappenForm(ReasonForm):
    """How it is known that it did not happen."""

    def verdict(self) -> DidNotHappen:
        """Return what is said."""
        return DidNotHappen()


class TriageForm(forms.Form):
    """
    How a group stands, whose it is, and what is known of it.

    The page carries what it showed, so that whoever changes one of these does not take back what somebody else has
    said of another meanwhile.
    """

    status = forms.ChoiceField(
        choices=[(status, status) for status in STATUSES],
        show_hidden_initial=True,
        help_text="A failure reopens what is resolved. What is muted stays muted, whatever fails.",
    )
    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON_CHARS,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text="Of the status, for the history and the log of the admin.",
    )
    assignee = forms.CharField(
        required=False,
        max_length=100,
        show_hidden_initial=True,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    note = forms.CharField(
        required=False,
        max_length=MOST_NOTE_CHARS,
        show_hidden_initial=True,
        widget=forms.Textarea(attrs={"rows": 5, "cols": 60, "class": "vLargeTextField"}),
        help_text="What is known: the cause, a link to the incident, what to do.",
    )
    failures_seen = forms.IntegerField(min_value=0, widget=forms.HiddenInput)

    def clean_note(self) -> str:
        """Return it with the ends of lines that a shell writes."""
        return str(self.cleaned_data["note"]).replace("\r\n", "\n")


class ReplayJobForm(forms.Form):
    """How letters are sent again, and why."""

    canary = forms.IntegerField(
        min_value=0,
        initial=5,
        required=False,
        help_text="So many letters are sent first, and the others once all of them have succeeded. 0: none.",
    )
    per_second = forms.FloatField(
        min_value=0.001,
        required=False,
        help_text="Messages a second at most; slower while letters fail again. Empty: as fast as store and broker "
        "take them.",
    )
    at_once = forms.IntegerField(
        min_value=1,
        max_value=MOST_AT_ONCE,
        initial=100,
        help_text="Letters that are on their way at most. Fewer while letters fail again.",
    )
    stop_at = forms.IntegerField(
        min_value=0,
        required=False,
        help_text="It stops once so many have failed again. Empty: a tenth of them, and not before 10. 0: never.",
    )
    order = forms.ChoiceField(
        choices=[("first_seen", "by their first failure"), ("last_failed", "by their last failure")],
        help_text="The oldest first.",
    )
    may_run_twice = forms.BooleanField(required=False, label="Work that needs consent may run twice")
    asks = forms.BooleanField(
        required=False,
        label="A dry run calls verify and ensure, too",
        help_text=f"What tasks have declared for it, of {MOST_ASKED} letters at most: it may call other systems, and "
        "changes nothing.",
    )
    reason = forms.CharField(
        max_length=MAX_REASON_CHARS, widget=_REASON, help_text="For the letters' histories and the log of the admin."
    )

    def options(self) -> dict[str, Any]:
        """Return what `make_job` takes."""
        given = {name: value for name, value in self.cleaned_data.items() if name != "asks"}
        return {**given, "canary": given["canary"] or 0}


SOUGHT = ("argument", "key", "fingerprint", "letter_ids")
"""What a person's data is found by: one of them."""


class ErasureForm(forms.Form):
    """Whose data, and why; without a `search` nobody is found by an argument."""

    argument = forms.CharField(
        required=False,
        max_length=1_000,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="NAME=VALUE: all letters with this value of a searchable argument, exactly.",
    )
    key = forms.CharField(
        required=False,
        max_length=1_000,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="All letters of an idempotency key, and its records.",
    )
    fingerprint = forms.CharField(
        required=False,
        max_length=64,
        label="Group",
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="All letters of this group, whosever they are.",
    )
    letter_ids = forms.CharField(
        required=False,
        label="Letters",
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "class": "vLargeTextField"}),
        help_text="These letters: an id on each line.",
    )
    reason = forms.CharField(
        # Asked for by the button that erases.
        required=False,
        max_length=MAX_REASON_CHARS,
        widget=forms.Textarea(attrs={**_REASON.attrs, "required": True}),
        help_text="For the letters' histories and the log of the admin; nothing of what is erased.",
    )

    def __init__(self, data: Any, *, search: Search | None) -> None:
        super().__init__(data)
        self._search = search
        if search is None or not search.arguments:
            del self.fields["argument"]
        else:
            self.fields["argument"].help_text += f" Searchable: {', '.join(search.arguments)}."

    def clean(self) -> dict[str, Any]:
        """Require one way to find, and one that can find."""
        said = super().clean() or {}
        if not self.errors and sum(bool(said.get(name)) for name in SOUGHT) != 1:
            raise forms.ValidationError("Say whose: by one of the fields above, and no more.")
        argument = said.get("argument")
        if argument:
            self._terms = self._terms_of(argument)
        return said

    def wanted(self) -> Wanted:
        """Return whose data is meant."""
        said = self.cleaned_data
        if said.get("argument"):
            return Wanted(terms=self._terms, secret=said["argument"].partition("=")[2])
        ids = tuple(each.strip() for each in said["letter_ids"].splitlines() if each.strip())
        return Wanted(
            letter_ids=ids, fingerprint=said["fingerprint"] or None, key=said["key"] or None, secret=said["key"]
        )

    def _terms_of(self, argument: str) -> tuple[str, ...]:
        name, equals, value = argument.partition("=")
        try:
            terms = self._search.argument_terms(name, value) if self._search and equals else ()
        except ConfigurationError as error:
            raise forms.ValidationError({"argument": clean(error, 500)}) from error
        if not terms:
            raise forms.ValidationError({"argument": "No letter is found by such a value: give NAME=VALUE."})
        return terms


class HappenedForm(ReasonForm):
    """What it returned, and how that is known."""

    result = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "class": "vLargeTextField"}),
        help_text='What the task would have returned, as JSON: null, 42, "ch_123" with its quotes, {"id": 7}.',
    )
    field_order = ("result", "reason")

    def clean_result(self) -> Any:
        """Return the result as Python has it; `clean` of a form cannot tell None from nothing, so it is wrapped."""
        try:
            return Happened(json.loads(self.cleaned_data["result"], parse_constant=_refuse))
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is no JSON ({error}). Text needs its quotes.") from error

    def verdict(self) -> Happened:
        """Return what is said."""
        said: Happened = self.cleaned_data["result"]
        return said


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
