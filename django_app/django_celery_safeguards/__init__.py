"""
The Django app of celery-safeguards: records, locks and dead letters in the database of a Django project.

    INSTALLED_APPS += ["django_celery_safeguards"]
    CELERY_SAFEGUARDS_STORE_URL = "django://default"
"""
