"""The form of an erasing: whose data, and why."""

from typing import Any

from django import forms

from celery_safeguards.deadletter.search import Search
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.printable import clean
from celery_safeguards.replay.erasing import Wanted
from django_celery_safeguards.admin.pages.asking import MAX_REASON_CHARS, REASON_BOX

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
        widget=forms.Textarea(attrs={**REASON_BOX.attrs, "required": True}),
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
