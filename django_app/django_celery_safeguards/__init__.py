"""
The Django app of celery-safeguards: records, locks and dead letters in the database of a Django project.

    INSTALLED_APPS += ["django_celery_safeguards"]
    CELERY_SAFEGUARDS_STORE_URL = "django://default"

Tasks are built on `django_celery_safeguards.SafeTask`. Nothing here imports a model.
"""

from django_celery_safeguards.fencing import fenced_enter, fenced_update
from django_celery_safeguards.postconditions import updated_exactly
from django_celery_safeguards.publishing import publish_on_commit
from django_celery_safeguards.task import SafeTask

__all__ = ["SafeTask", "fenced_enter", "fenced_update", "publish_on_commit", "updated_exactly"]
