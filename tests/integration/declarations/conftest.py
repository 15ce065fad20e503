"""
The app of these tests.
"""

import pytest
from celery import Celery, _state

from tests.integration.declarations.declared import settings


@pytest.fixture
def app(namespace):
    """An app of its own queue, with stores in memory; the current one, as a project's app is."""
    before = set(_state._on_app_finalizers)
    with Celery(namespace, broker="memory://", backend="cache+memory://") as app:
        app.conf.update(settings(namespace))
        app.set_current()
        yield app
    # What `shared_task` has left would be registered in every app of this process from now on.
    _state._on_app_finalizers.intersection_update(before)
