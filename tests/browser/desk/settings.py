"""
Django's settings, by the environment of one test. Requests are transactions: what the admin does must not be undone by
a page that fails after it.
"""

import json
import os

from tests.browser.desk import where
from tests.support import databases

SECRET_KEY = "tests"
DEBUG = True
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.browser.desk.urls"
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_celery_safeguards",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        **databases.sqlite(os.environ[where.USERS_FILE]),
        "ATOMIC_REQUESTS": True,
    },
    where.STORE_ALIAS: {"ATOMIC_REQUESTS": True, **json.loads(os.environ[where.DATABASE])},
}
# Two people log in at the same instant: a transaction that begins by reading could not wait for the other's write.
DATABASES["default"]["OPTIONS"] |= {"transaction_mode": "IMMEDIATE", "timeout": 30}
