"""
A page that says that a database does not answer, in place of an error that says nothing.

Not covered: a database with `ATOMIC_REQUESTS`, and the one of the sessions. Django asks them before any page of ours,
and answers by itself.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db import InterfaceError, OperationalError
from django.template.response import TemplateResponse

from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.printable import clean

_UNAVAILABLE = 503


def or_away(admin: Any, view: Callable[..., Any]) -> Callable[..., Any]:
    """Make a page of a `ReadOnlyAdmin` say so, where a database does not answer, and lead to where to look again."""

    @wraps(view)
    def shown(request: Any, *args: Any, **options: Any) -> Any:
        try:
            return view(request, *args, **options)
        except (OperationalError, InterfaceError, StoreUnavailable) as error:
            has_asked = request.method == "POST"
            context = {
                **admin.admin_site.each_context(request),
                "opts": admin.opts,
                "title": "The database does not answer",
                "problem": clean(error, 500),
                "has_asked": has_asked,
                "again_url": admin.url_of("changelist") if has_asked else request.get_full_path(),
            }
            template = "admin/django_celery_safeguards/away.html"
            return TemplateResponse(request, template, context, status=_UNAVAILABLE)

    return shown
