"""The app as Django finds it."""

import contextlib
from importlib import import_module

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from celery_safeguards.conf import offer_secret, offer_store
from celery_safeguards.diagnose.looks import look_also
from django_celery_safeguards.looks import project_findings
from django_celery_safeguards.names import APP


class SafeguardsConfig(AppConfig):
    """The tables of records, locks and dead letters."""

    name = APP
    label = APP
    verbose_name = "Celery safeguards"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """
        Offer the project's default database as the store, and its secret; register the system checks and what workers
        look after.

        The database is taken where `safeguards_store_url` is not set and the broker is not Redis. A Redis broker comes
        first: it takes claims and locks faster, and a project that adds this app later keeps the records it has.
        """
        # Not before: they know the models, or what is found by them.
        from django_celery_safeguards.after_task import watch_tasks  # noqa: PLC0415
        from django_celery_safeguards.checks import register_checks  # noqa: PLC0415

        # Its task runs replays: a worker must know it, whatever the project's app looks for tasks in.
        import_module(f"{APP}.tasks")

        offer_store(f"django://{DEFAULT_DB_ALIAS}")
        # A project that has none says so itself, wherever it needs one.
        with contextlib.suppress(ImproperlyConfigured):
            offer_secret(settings.SECRET_KEY)
        register_checks()
        look_also(project_findings)
        watch_tasks()
