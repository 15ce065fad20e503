"""
Creates the tables and the people: `python -m tests.browser.desk.seed`.
"""

import django

PASSWORD = "night shift"
_ALL = ("replay", "discard", "resolve", "triage", "edit", "archive")
PEOPLE = {
    "vera": ("view", "view_payload"),
    "rex": ("view", "view_payload", "replay"),
    "dora": ("view", "view_payload", "discard"),
    "sol": ("view", "view_payload", "resolve"),
    "tess": ("view", "view_payload", "triage"),
    "edie": ("view", "view_payload", "edit"),
    "archie": ("view", "view_payload", "archive"),
    "lena": ("view",),
    "noa": ("view", *_ALL),
    "blind": ("view_payload", *_ALL),
    "ann": ("view", "view_payload", *_ALL),
    "bob": ("view", "view_payload", *_ALL),
}
"""Each with the permissions on dead letters; none is a superuser."""


def seed():
    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command

    from tests.browser.desk.where import STORE_ALIAS

    for alias in ("default", STORE_ALIAS):
        call_command("migrate", database=alias, verbosity=0, interactive=False)
    permissions = Permission.objects.filter(content_type__app_label="django_celery_safeguards")
    for name, may in PEOPLE.items():
        person = User.objects.create_user(name, password=PASSWORD, is_staff=True)
        codenames = [f"{verb}_{model}" for verb in may for model in ("deadletter", "lettergroup")]
        codenames += ["view_idempotencyrecord", "view_leaselock", "view_replayjob"] if "view" in may else []
        person.user_permissions.set(permissions.filter(codename__in=codenames))


if __name__ == "__main__":
    django.setup()
    seed()
