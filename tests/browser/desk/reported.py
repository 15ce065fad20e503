"""
What a report of an error says that the page for erasing was sent: `python -m tests.browser.desk.reported` writes it.
"""

import django
from django.test import RequestFactory, override_settings


class _FailsError(Exception):
    pass


def reported():
    from django.views.debug import SafeExceptionReporterFilter

    from django_celery_safeguards.admin.letters.erase_form import SOUGHT
    from django_celery_safeguards.admin.letters.erasing import LetterErasing

    class Failing(LetterErasing):
        def has_view_permission(self, request):
            raise _FailsError

    request = RequestFactory().post("/", {**dict.fromkeys(SOUGHT, "ann@example.com"), "reason": "ticket 7"})
    try:
        Failing().erase_view(request)
    except _FailsError:
        with override_settings(DEBUG=False):
            return dict(SafeExceptionReporterFilter().get_post_parameters(request))
    return {}


if __name__ == "__main__":
    django.setup()
    print(reported())  # noqa: T201 - what it is for
