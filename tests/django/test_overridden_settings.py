"""
The settings of a Django project while a test changes one of them.
"""

from celery import Celery
from django.test import override_settings

from celery_safeguards.conf import Settings
from tests.support import databases


def test_settings_are_read_while_a_test_overrides_one():
    """The first guarded task of a test suite would fail in every test that uses `override_settings`."""
    databases.set_up()
    with Celery("conf", set_as_current=False) as app:
        app.config_from_object("django.conf:settings", namespace="CELERY")

        with override_settings(CELERY_SAFEGUARDS_NAMESPACE="shop", CELERY_BROKER_URL="redis://localhost:6379/0"):
            settings = Settings.of(app)

    assert ("shop", "redis://localhost:6379/0") == (settings.namespace, settings.store_url)
