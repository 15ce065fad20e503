"""
Orders that ask a dependency on a port of this host, and die while nobody listens there.
"""

import os
import socket

from celery import Celery

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask
from tests.support.announce import announce
from tests.support.apps import NAMESPACE, settings_from_environment

DEPENDENCY = "REPLAY_DEPENDENCY_PORT"


def ask(number):
    announce("asked", number=number)
    socket.create_connection(("127.0.0.1", int(os.environ[DEPENDENCY])), timeout=5).close()
    return number


def make_app():
    """Return the app for this process's environment."""
    settings = settings_from_environment(safeguards_namespace=os.environ[NAMESPACE], result_backend=None)
    app = Celery("replay", set_as_current=False)
    app.conf.update(settings, safeguards_store_url=settings["broker_url"], task_ignore_result=True)
    safeguards = Safeguards(idempotent=Idempotent("ask:{number}", on_unknown="rerun"), retry=RetryPolicy(attempts=1))
    app.task(ask, name="replay.ask", base=SafeTask, safeguards=safeguards, shared=False)
    return app


# A worker finds its app here; a test imports this module without an environment, and makes its own.
app = make_app() if NAMESPACE in os.environ else None
