"""The app as Django finds it."""

from django.apps import AppConfig
from django.db import DEFAULT_DB_ALIAS

from celery_safeguards.conf import offer_store


class SafeguardsConfig(AppConfig):
    """The tables of records, locks and dead letters."""

    name = "django_celery_safeguards"
    label = "django_celery_safeguards"
    verbose_name = "Celery safeguards"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """
        Offer the project's default database as the store.

        It is taken where `safeguards_store_url` is not set and the broker is not Redis. A Redis broker comes first: it
        takes claims and locks faster, and a project that adds this app for its admin keeps the records it has.
        """
        offer_store(f"django://{DEFAULT_DB_ALIAS}")
