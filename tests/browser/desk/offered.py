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
        "actions": sorted([each.opts.model_name, name] for each in ours for _, name, _ in each._get_base_actions()),
        "deeds": sorted(DEEDS),
        "verbs": sorted(VERBS),
        "permissions": sorted(
            Permission.objects.filter(content_type__app_label=APP).values_list("codename", flat=True)
        ),
    }


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
