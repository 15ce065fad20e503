"""The form of an edited copy: what a person may change, as text; what is locked is beside it."""

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django import forms

from celery_safeguards.deadletter.wire import dumps
from celery_safeguards.printable import clean
from celery_safeguards.replay import Edit, EditRefused, MaskedEdit, Prepared
from celery_safeguards.replay.copies.edit import Opened, as_text
from django_celery_safeguards.admin.pages.asking import MAX_REASON_CHARS

MOST_FORM_BYTES = 1_000_000
"""Of arguments as text: Django refuses a request of more than 2.5 million bytes, without a word about why."""
_REASON_CHARS = MAX_REASON_CHARS - 500
"""The line of the history begins with the task id and the names of what was changed."""
_MOST_ROWS = 30
_HIDDEN = 'What is hidden stands here as "[redacted 3]", or so: left as it is, it goes out as it was.'
_Read = TypeVar("_Read")
_JSON = {"class": "vLargeTextField sg-json", "cols": 60, "spellcheck": "false", "autocomplete": "off"}


class EditForm(forms.Form):
    """Arguments as JSON, a queue, a time, and why."""

    args = forms.CharField(label="Positional arguments", widget=forms.Textarea(attrs=_JSON))
    kwargs = forms.CharField(
        label="Keyword arguments",
        widget=forms.Textarea(attrs=_JSON),
        help_text="As JSON. Dates, decimals, UUIDs and bytes are the envelopes of Celery: "
        '{"__type__": "decimal", "__value__": "10.10"}.',
    )
    queue = forms.ChoiceField(required=False)
    eta = forms.CharField(
        required=False,
        label="Not before",
        max_length=64,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text="With its zone, such as 2025-03-01T12:00+00:00. Empty: at once.",
    )
    countdown_seconds = forms.FloatField(
        required=False, label="Or in so many seconds", min_value=0, help_text="From the moment of sending."
    )
    reason = forms.CharField(
        max_length=_REASON_CHARS,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "class": "vLargeTextField"}),
        help_text="For the letter's history and the log of the admin.",
    )

    def __init__(self, data: Any, opened: Opened, seen: MaskedEdit, queues: Sequence[str]) -> None:
        edit = seen.edit
        texts = {"args": as_text(list(edit.args)), "kwargs": as_text(edit.kwargs)}
        super().__init__(data, initial={**texts, "eta": edit.eta.isoformat() if edit.eta else ""})
        self._opened = opened
        self.seen = seen
        if seen.hidden:
            self.fields["args"].help_text = _HIDDEN
        self.size_bytes = sum(len(text.encode()) for text in texts.values())
        for name, text in texts.items():
            self.fields[name].widget.attrs["rows"] = min(text.count("\n") + 2, _MOST_ROWS)
        # A name that is no text of ours is shown clean, and chosen as it is.
        named = [(queue, clean(queue, 120)) for queue in queues]
        self.fields["queue"].choices = [("", "as it came"), *named]

    def clean_args(self) -> list[Any]:
        """Return them as Python has them."""
        return _read(self._opened.args_of, self.cleaned_data["args"])

    def clean_kwargs(self) -> dict[str, Any]:
        """Return them as Python has them."""
        return _read(self._opened.kwargs_of, self.cleaned_data["kwargs"])

    def clean_eta(self) -> datetime | None:
        """Return it with its zone."""
        text = self.cleaned_data["eta"].strip()
        try:
            eta = datetime.fromisoformat(text) if text else None
        except ValueError as error:
            raise forms.ValidationError("This is no time such as 2025-03-01T12:00+00:00.") from error
        if eta is not None and eta.tzinfo is None:
            raise forms.ValidationError("Say of which zone: +00:00 at its end is UTC.")
        return eta

    def edit(self) -> Edit:
        """Return what is asked for, with marks for what is hidden."""
        said = self.cleaned_data
        times = {"eta": said["eta"], "countdown_seconds": said["countdown_seconds"]}
        return Edit(args=said["args"], kwargs=said["kwargs"], queue=said["queue"] or None, **times)


def mark_of(edit: Edit, prepared: Prepared, look: str) -> str:
    """
    Return a text that tells one copy, and what was said of it, from every other: what is sent is what was shown.

    Args:
        edit: as it was asked for: a digest of what is hidden would tell a short value to whoever tries all of them.
        prepared: what it comes to.
        look: of the letter.

    """
    times = [edit.eta.isoformat() if edit.eta else None, edit.countdown_seconds]
    whole = [list(edit.args), edit.kwargs, edit.queue, *times, list(prepared.notes), prepared.consent, look]
    return hashlib.sha256(dumps(whole).encode()).hexdigest()


def _read(read: Callable[[str], _Read], text: str) -> _Read:
    try:
        return read(text)
    except EditRefused as error:
        raise forms.ValidationError(clean(error, 500)) from error
