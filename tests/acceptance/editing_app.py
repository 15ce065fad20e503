"""
Steps of canvases that die of a wrong number, or of a world that is broken for a while.
"""

import os
from pathlib import Path

from celery import Celery

from celery_safeguards import RetryPolicy, Safeguards, SafeTask
from tests.support.announce import announce, gate
from tests.support.apps import NAMESPACE, settings_from_environment

BROKEN = "EDITING_BROKEN_FILE"
"""While this file is there, the first step fails whatever its number."""


def first(number, at=None):
    if number < 0 or Path(os.environ[BROKEN]).exists():
        raise ValueError(f"{number} is no number of an order")
    announce("first", number=number, when=repr(at))
    return number


def step(value, number):
    announce("step", value=value, number=number)
    return value + number


def held(number):
    gate("held")
    announce("held_ended", number=number)
    return number


def gather(values):
    announce("gathered", values=values)
    return values


def make_app():
    """Return the app for this process's environment."""
    settings = settings_from_environment(safeguards_namespace=os.environ[NAMESPACE])
    settings["safeguards_store_url"] = settings["result_backend"]
    app = Celery("editing", set_as_current=False)
    app.conf.update(settings)
    safeguards = Safeguards(repeatable=True, retry=RetryPolicy(attempts=1))
    for body in (first, step, held, gather):
        app.task(body, name=f"editing.{body.__name__}", base=SafeTask, safeguards=safeguards, shared=False)
    return app


# A worker finds its app here; a test imports this module without an environment, and makes its own.
app = make_app() if NAMESPACE in os.environ else None
