"""
What a report of an error says that pages were sent: `python -m tests.browser.desk.reported` writes it.
"""

import django
from django.test import RequestFactory, override_settings


class _FailsError(Exception):
    pass


def reported():
    from django_celery_safeguards.admin.letters.acting import LetterActions
    from django_celery_safeguards.admin.letters.editing import LetterEditing
    from django_celery_safeguards.admin.letters.erase_form import SOUGHT
    from django_celery_safeguards.admin.letters.erasing import LetterErasing

    class Failing(LetterErasing, LetterEditing, LetterActions):
        def has_view_permission(self, request):
            raise _FailsError

    page = Failing()
    return [
        _sent(page.erase_view, SOUGHT),
        _sent(page.edit_view, ("args", "kwargs"), "1"),
        _sent(page.deed_view, ("result",), "happened"),
    ]


def _sent(view, hidden, *given):
    """Return what a report has of a request that holds an address in some of its fields."""
    from django.views.debug import SafeExceptionReporterFilter

    request = RequestFactory().post("/", {**dict.fromkeys(hidden, "ann@example.com"), "reason": "ticket 7"})
    try:
        view(request, *given)
    except _FailsError:
        with override_settings(DEBUG=False):
            return dict(SafeExceptionReporterFilter().get_post_parameters(request))
    return {}


if __name__ == "__main__":
    django.setup()
    print(reported())  # noqa: T201 - what it is for
