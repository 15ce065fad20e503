"""
The shop's settings with short times, so that a recovery takes seconds and can be watched.

In production they are longer: the shop's own, and Celery's visibility timeout of an hour.
"""

import os

from example_project.config.databases import database
from example_project.config.settings import *  # noqa: F403

PLAIN_DATABASE_URL = "SHOP_DEMO_PLAIN_DATABASE_URL"

# The demo itself looks into both shops; a worker knows its own.
if PLAIN_DATABASE_URL in os.environ:
    DATABASES["plain"] = database(os.environ[PLAIN_DATABASE_URL])  # noqa: F405

CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 5,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 5,
}
CELERY_SAFEGUARDS_LEASE_SECONDS = 3.0
CELERY_SAFEGUARDS_STORE_TIMEOUT_SECONDS = 0.9
CELERY_SAFEGUARDS_DEFERRAL_BASE_SECONDS = 0.5
CELERY_SAFEGUARDS_DEFERRAL_CAP_SECONDS = 2.0

SHOP_GATEWAY_TIMEOUT_SECONDS = 3.0
SHOP_RETRY_BASE_SECONDS = 0.3
SHOP_RETRY_CAP_SECONDS = 2.0
