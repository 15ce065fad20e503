"""
Pages that ask before anything is done: what will happen to what, why it is wanted, and a way back.

    title, what it is about, how many ──▶ the form, with a reason ──▶ what would happen ──▶ the button, or "Do nothing"

All of them are made of one template, `ask.html`, which has a place for each of these.
"""

from typing import Any

from django import forms
from django.template.response import TemplateResponse

MAX_REASON_CHARS = 900
"""A line of a letter's history holds 1,000 characters, and a replay's begins with its task id."""

MOST_AT_ONCE = 500
"""Rows that a page is about, one by one."""

REASON_BOX = forms.Textarea(attrs={"rows": 3, "cols": 60, "class": "vLargeTextField"})


class ReasonForm(forms.Form):
    """Why."""

    reason = forms.CharField(
        max_length=MAX_REASON_CHARS, widget=REASON_BOX, help_text="For the letter's history and the log of the admin."
    )


_NOT_ALLOWED = 405


def page_of_a_button(admin: Any, request: Any, back_url: str) -> TemplateResponse:
    """
    Return what is said where the address of a page was opened that answers to its button alone.

    Whoever has to log in between the button and its page comes here by that login.
    """
    asked = {"title": "Nothing was done", "step": "Nothing was done", "back_url": back_url}
    page = page_that_asks(admin, request, "button.html", **asked)
    page.status_code, page.headers["Allow"] = _NOT_ALLOWED, "POST"
    return page


def page_that_asks(
    admin: Any, request: Any, template: str, *, title: str, step: str, row: Any = None, **context: Any
) -> TemplateResponse:
    """
    Return a page that asks.

    Args:
        admin: a `ReadOnlyAdmin`, whose rows it is about.
        request: of whoever is asked.
        template: its name; extends `ask.html`.
        title: the question.
        step: what is asked for, in the words of its button: the last of the breadcrumbs.
        row: what it is about, if it is one row; its page is where "Do nothing" leads to, else the list.
        context: `form`; `kept`, pairs that the next request must have; `action_url` and `back_url`, where they are not
            this page's and the row's; and what the template shows.

    """
    back_url = admin.url_of("changelist") if row is None else admin.page_of(request, row.pk)
    whole = {
        **admin.admin_site.each_context(request),
        "opts": admin.opts,
        "media": admin.media,
        "title": title,
        "subtitle": "" if row is None else str(row),
        "step": step,
        "row": row,
        "row_url": "" if row is None else back_url,
        "back_url": back_url,
        **context,
    }
    return TemplateResponse(request, f"admin/django_celery_safeguards/{template}", whole)
