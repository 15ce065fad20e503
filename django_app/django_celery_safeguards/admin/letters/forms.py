"""What a person adds to what is done to letters."""

import json
from typing import Any

from django import forms

from celery_safeguards.policy import DidNotHappen, Happened
from django_celery_safeguards.admin.pages.asking import ReasonForm


class ReplayForm(ReasonForm):
    """Consent, where it is needed."""

    may_run_twice = forms.BooleanField(required=False, label='Letters marked "with consent" may run twice')
    field_order = ("may_run_twice", "reason")


class DidNotHappenForm(ReasonForm):
    """How it is known that it did not happen."""

    def verdict(self) -> DidNotHappen:
        """Return what is said."""
        return DidNotHappen()


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
