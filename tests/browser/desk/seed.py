"""
Creates the tables and the people: `python -m tests.browser.desk.seed`.
"""

import django

PASSWORD = "night shift"
_ALL = ("replay", "discard", "resolve", "triage", "edit", "archive", "export", "erase", "release")
PEOPLE = {
    "vera": ("view", "view_payload"),
    "rex": ("view", "view_payload", "replay"),
    "dora": ("view", "view_payload", "discard"),
    "sol": ("view", "view_payload", "resolve"),
    "tess": ("view", "view_payload", "triage"),
    "edie": ("view", "view_payload", "edit"),
    "archie": ("view", "view_payload", "archive"),
    "exa": ("view", "view_payload", "export"),
    "lena": ("view",),
    "noa": ("view", *_ALL),
    "blind": ("view_payload", *_ALL),
    "ann": ("view", "view_payload", *_ALL),
    "bob": ("view", "view_payload", *_ALL),
}
"""Each with the permissions on dead letters, their groups and locks; none is a superuser."""


OTHERS = ("nobody", "outsider", "root")
"""With no permission; with all of them, and no member of the staff; with no need of any."""


def codenames_of(name, all_codenames):
    """
    Return the permissions of one of them.

    Besides, `only-X` has X alone, `looks-and-X` sees all and has X, and `all-but-X` has all others.
    """
    sees = {each for each in all_codenames if each.startswith("view_")}
    if name in OTHERS:
        return set() if name == "nobody" else set(all_codenames)
    for beginning, others in (("only-", set()), ("looks-and-", sees)):
        if name.startswith(beginning):
            return {name.removeprefix(beginning), *others}
    if name.startswith("all-but-"):
        return set(all_codenames) - {name.removeprefix("all-but-")}
    may = PEOPLE[name]
    models = ("idempotencyrecord", "leaselock", "replayjob") if "view" in may else ()
    named = {f"{verb}_{model}" for verb in may for model in ("deadletter", "lettergroup", "leaselock")}
    return {*named, *(f"view_{model}" for model in models)} & set(all_codenames)


def names(all_codenames):
    """Return everybody's."""
    return (*PEOPLE, *OTHERS, *(f"{how}-{each}" for each in all_codenames for how in ("only", "looks-and", "all-but")))


def seed():
    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command

    from tests.browser.desk.where import STORE_ALIAS

    for alias in ("default", STORE_ALIAS):
        call_command("migrate", database=alias, verbosity=0, interactive=False)
    permissions = {
        each.codename: each for each in Permission.objects.filter(content_type__app_label="django_celery_safeguards")
    }
    password = User(username="any")
    password.set_password(PASSWORD)
    for name in names(permissions):
        person = User.objects.create(
            username=name, password=password.password, is_staff=name != "outsider", is_superuser=name == "root"
        )
        person.user_permissions.set([permissions[each] for each in codenames_of(name, permissions)])


if __name__ == "__main__":
    django.setup()
    seed()
