"""
Settings for `manage.py test --settings example_project.config.testing`: tasks run at once, where they are published.

The safeguards keep what they know in the memory of the process: a test's transaction is never committed, and what they
write is written beside it.
"""

from django import VERSION

from example_project.config.settings import *  # noqa: F403

DEBUG = False
CELERY_TASK_ALWAYS_EAGER = True
CELERY_SAFEGUARDS_STORE_URL = "memory://"
if VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
else:
    EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
