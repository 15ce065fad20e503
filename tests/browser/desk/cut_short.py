"""
An erasing whose store goes away before its last letter: `python -m tests.browser.desk.cut_short` writes what is logged.
"""

import django


def logged():
    from django.contrib.admin.models import LogEntry
    from django.contrib.auth.models import User
    from django.test import Client

    from celery_safeguards.errors import StoreUnavailable
    from django_celery_safeguards.letters import OrmLetterStore

    def away(*given, **options):
        raise StoreUnavailable("away")

    key = "mail:cut-short"
    bury(key)
    OrmLetterStore.erase = away
    client, address = Client(SERVER_NAME="127.0.0.1"), "/admin/django_celery_safeguards/deadletter/erase/"
    client.force_login(User.objects.get(username="root"))
    asked = {"key": key, "look": "1"}
    mark = client.post(address, asked).content.decode().partition('name="shown" value="')[2].partition('"')[0]
    client.post(address, {**asked, "shown": mark, "confirmed": "1", "reason": "ticket 13"})
    entries = LogEntry.objects.filter(object_repr="one person's data", change_message__contains="ticket 13")
    return [(entry.user.get_username(), entry.change_message) for entry in entries]


def bury(key):
    from celery_safeguards.wiring import Wiring
    from tests.browser.desk import celery_app
    from tests.conformance.deadletter_contract import letter

    Wiring.of(celery_app).letters.bury(letter("cut-short", key=key, scope="desk.mail"))


if __name__ == "__main__":
    django.setup()
    print(logged())  # noqa: T201 - what it is for
