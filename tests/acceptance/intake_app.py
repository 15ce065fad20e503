"""
An app that is sent what it cannot read: one guarded task, one plain task, and one that only some of its workers know.

With `INTAKE_STOCK` it has plain tasks alone, and nothing of the safeguards is loaded: what Celery does by itself.
"""

import os

from celery import Celery
from celery.signals import task_rejected, task_unknown

from celery_safeguards import Idempotent, Safeguards, SafeTask
from celery_safeguards.signals import message_dead_lettered
from celery_safeguards.worker import errands
from tests.support.announce import announce, gate
from tests.support.apps import NAMESPACE, settings_from_environment

STOCK = "INTAKE_STOCK"
KNOWS_GONE = "INTAKE_KNOWS_GONE"
INLINE = "INTAKE_INLINE"
"""Errands are done where they are given: on the consumer's loop."""
SPOOL = "INTAKE_SPOOL"
STORE_TIMEOUT = "INTAKE_STORE_TIMEOUT_SECONDS"


def note(number):
    announce("ran", number=number)
    return number


def wait(number):
    gate("waiting", number=number)
    return number


def make_app(**changes):
    """Return the app for this process's environment."""
    settings = settings_from_environment(
        safeguards_namespace=os.environ[NAMESPACE],
        safeguards_lease_seconds=30.0,
        safeguards_store_timeout_seconds=float(os.environ.get(STORE_TIMEOUT, "1")),
        task_ignore_result=True,
    )
    settings["safeguards_store_url"] = settings["result_backend"]
    # Results are the broker's affair here: the store alone is cut off.
    settings["result_backend"] = settings["broker_url"]
    settings["safeguards_spool_directory"] = os.environ.get(SPOOL)
    app = Celery("intake", set_as_current=False)
    app.conf.update({**settings, **changes})
    app.task(note, name="intake.plain", shared=False)
    if STOCK in os.environ:
        for name in [each for each in app.conf if str(each).startswith("safeguards_")]:
            del app.conf[name]
        return app
    safe = {"base": SafeTask, "shared": False}
    app.task(note, name="intake.guarded", safeguards=Safeguards(repeatable=True), **safe)
    app.task(wait, name="intake.wait", safeguards=Safeguards(repeatable=True), **safe)
    app.task(wait, name="intake.limited", safeguards=Safeguards(repeatable=True), time_limit=1, **safe)
    if KNOWS_GONE in os.environ:
        keyed = Safeguards(idempotent=Idempotent("{number}", on_unknown="rerun"))
        app.task(note, name="intake.gone", safeguards=keyed, **safe)
        app.task(note, name="intake.gone_plain", shared=False)
    return app


@message_dead_lettered.connect
def _on_letter(letter=None, **_):
    gate("letter", id=letter.id, kind=letter.kind, reason=letter.reason)


@task_unknown.connect
def _on_unknown(name=None, **_):
    gate("task_unknown", task=name)


@task_rejected.connect
def _on_rejected(**_):
    announce("task_rejected")


if INLINE in os.environ:
    errands.appoint = lambda app, its_errands: None

# A worker finds its app here; a test imports this module without an environment, and makes its own.
app = make_app() if NAMESPACE in os.environ else None
