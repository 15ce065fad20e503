"""
Settings of the shop, for a reader's own machine; what differs elsewhere comes from the environment.

    SHOP_DATABASE_URL   sqlite:///path or postgresql://user:password@host:port/name; a file beside this project unless
                        given
    SHOP_BROKER_URL     Celery's broker
    SHOP_GATEWAY_URL    the payment gateway
    SHOP_SECRET_KEY     drawn at each start unless given, which ends all sessions
    SHOP_DEBUG          0 turns Django's debug mode off
"""

import os
from pathlib import Path
from urllib.parse import quote

from django import VERSION
from django.core.management.utils import get_random_secret_key

from example_project.config.databases import database

_PROJECT = Path(__file__).resolve().parents[1]

DEBUG = os.environ.get("SHOP_DEBUG", "1") == "1"
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_safeguards",
    "example_project.shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
ROOT_URLCONF = "example_project.config.urls"
STATIC_URL = "static/"

DATABASES = {"default": database(os.environ.get("SHOP_DATABASE_URL", f"sqlite:///{quote(str(_PROJECT))}/shop.sqlite3"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"

# Django 6.1 has a name of its own for where mail goes, and warns of the old one.
if VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.console.EmailBackend"}}
else:
    EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
DEFAULT_FROM_EMAIL = "shop@example.com"

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER_URL", "redis://127.0.0.1:6379/0")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A worker that is killed or cut off while it looks for messages to redeliver leaves its lock behind, and until that
# lapses no other worker looks (kombu 5.7: for 300 s).
CELERY_BROKER_TRANSPORT_OPTIONS = {"unacked_mutex_expire": 30}
CELERY_SAFEGUARDS_TRANSPORT = "hardened"
CELERY_TASK_DEFAULT_QUEUE = "shop"
# What a worker has taken and not begun yet is in nobody's way, and is not lost with it.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1

# Records, locks and dead letters, beside the orders; the broker stays Redis.
CELERY_SAFEGUARDS_STORE_URL = "django://default"
CELERY_SAFEGUARDS_NAMESPACE = "shop"
CELERY_SAFEGUARDS_LEASE_SECONDS = 30.0

SHOP_GATEWAY_URL = os.environ.get("SHOP_GATEWAY_URL", "http://127.0.0.1:8080")
SHOP_GATEWAY_TIMEOUT_SECONDS = 5.0
SHOP_RETRY_BASE_SECONDS = 5.0
SHOP_RETRY_CAP_SECONDS = 300.0
SHOP_STATSD_ADDRESS = ("127.0.0.1", 8125)
