"""The app as Django finds it."""

from django.apps import AppConfig


class SafeguardsConfig(AppConfig):
    """The tables of records, locks and dead letters."""

    name = "django_celery_safeguards"
    label = "django_celery_safeguards"
    verbose_name = "Celery safeguards"
    default_auto_field = "django.db.models.BigAutoField"
