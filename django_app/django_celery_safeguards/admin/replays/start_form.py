"""The form of a replay of many letters: how they are sent again, and why."""

from typing import Any

from django import forms

from celery_safeguards.jobs.job import MOST_AT_ONCE
from django_celery_safeguards.admin.pages.asking import MAX_REASON_CHARS, REASON_BOX

MOST_ASKED = 20
"""A dry run on a page asks the outside of so many letters."""


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
        max_length=MAX_REASON_CHARS, widget=REASON_BOX, help_text="For the letters' histories and the log of the admin."
    )

    def options(self) -> dict[str, Any]:
        """Return what `make_job` takes."""
        given = {name: value for name, value in self.cleaned_data.items() if name != "asks"}
        return {**given, "canary": given["canary"] or 0}
