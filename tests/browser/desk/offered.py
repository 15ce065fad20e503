"""
What the admin offers, as it is registered: `python -m tests.browser.desk.offered` writes it as JSON.

Nothing is named here, so that an address, an action or a permission which is added tomorrow is among them.
"""

import json

import django

APP = "django_celery_safeguards"


def offered():
    from django.contrib import admin
    from django.contrib.auth.models import Permission

    from django_celery_safeguards.admin.letters.prospects import DEEDS
    from django_celery_safeguards.admin.replays.verbs import VERBS

    ours = [each for model, each in admin.site._registry.items() if model._meta.app_label == APP]
    return {
        "addresses": sorted(_addresses(admin.site.get_urls(), "")),
        "actions": sorted([each.opts.model_name, *action] for each in ours for action in _actions(each)),
        "deeds": sorted(DEEDS),
        "verbs": sorted(VERBS),
        "permissions": sorted(
            Permission.objects.filter(content_type__app_label=APP).values_list("codename", flat=True)
        ),
    }


def _actions(model_admin):
    """Yield the names of actions, and where they are chosen: from Django 6.1 on some can be so on a row's own page."""
    from django.contrib import admin

    if not hasattr(admin, "ActionLocation"):
        yield from ((name, "CHANGE_LIST") for _, name, _ in model_admin._get_base_actions())
        return
    for location in admin.ActionLocation:
        yield from ((action.name, location.value) for action in model_admin._get_base_actions(location))


def _addresses(patterns, before):
    for each in patterns:
        route = before + str(each.pattern)
        if hasattr(each, "url_patterns"):
            yield from _addresses(each.url_patterns, route)
        elif APP in route:
            # Its routes are of the shape APP/model/...; one that has no name is known by where it is.
            yield each.name.removeprefix(f"{APP}_") if each.name else route.removeprefix(f"{APP}/")


if __name__ == "__main__":
    django.setup()
    print(json.dumps(offered()))  # noqa: T201 - what it is for
