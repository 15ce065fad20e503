"""
An app whose set-up is sound but for what a test changes, and what is found in it.
"""

import contextlib
from dataclasses import replace

import pytest
from celery import Celery

from celery_safeguards import Safeguards, SafeTask
from celery_safeguards.diagnose.examining import examine
from celery_safeguards.diagnose.surroundings import by_settings

SOUND_OPTIONS = {"socket_timeout": 30, "socket_keepalive": True}


def body(number=0):
    return number


@pytest.fixture
def make_app():
    """Make an app as `make_app(broker_url, **settings)`; nothing connects to its broker."""
    with contextlib.ExitStack() as stack:

        def make(broker="redis://127.0.0.1:1/0", **settings):
            app = stack.enter_context(Celery("diagnosed", broker=broker, set_as_current=False))
            given = {"broker_transport_options": {}, "safeguards_store_url": "memory://", **settings}
            if broker.startswith(("redis", "sentinel")):
                given["broker_transport_options"] = {**SOUND_OPTIONS, **given["broker_transport_options"]}
            app.conf.update(given)
            return app

        yield make


def guard(app, name, safeguards=None, **options):
    """Register a guarded task that does nothing."""
    safeguards = Safeguards(repeatable=True, retry=None) if safeguards is None else safeguards
    return app.task(body, name=name, shared=False, base=SafeTask, safeguards=safeguards, **options)


def unrenewed(app):
    """Return what an app works with on a broker whose messages cannot be renewed: there each second counts."""
    around = by_settings(app)
    return replace(around, visibility=replace(around.visibility, is_renewed=False))


def ids(findings, *, but=("SG105", "SG159")):
    """Return the ids of findings, without those that nearly every app has."""
    return [each.id for each in findings if each.id not in but]


def found_in(app, around=None):
    """Return the findings of an app by id, as text; the ids must differ."""
    findings = examine(app, around)
    return {each.id: each.text for each in findings}
