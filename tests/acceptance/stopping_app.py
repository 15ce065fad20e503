"""
An app whose worker gets a signal while it writes a job into a child's pipe: at the head of the job, or once the pipe is
full. Its tasks are guarded or plain, never both, since one guarded task brings the safeguards to the whole worker.
"""

import json
import os
import signal

from billiard.connection import Connection
from celery import Celery

from celery_safeguards import Safeguards, SafeTask
from tests.support.announce import announce
from tests.support.apps import NAMESPACE, queue_settings, settings_from_environment

WHEN = "STOPPING_WHEN"
"""`head` or `pipe`, and a signal's name, as JSON; unset: no signal comes."""
IS_GUARDED = "STOPPING_IS_GUARDED"
_HEAD_BYTES = 4


def work(number, data=""):
    announce("effect", number=number)


def build(namespace, celery_settings, *, is_guarded):
    """Return the app."""
    built = Celery("stopping", set_as_current=False)
    built.conf.update({"safeguards_namespace": namespace, **queue_settings(namespace), **celery_settings})
    options = {"base": SafeTask, "safeguards": Safeguards(repeatable=True)} if is_guarded else {"acks_late": True}
    built.task(work, name="stopping.work", **options)
    return built


def _interrupt(where, name):
    """Send the signal to this process, once, in the midst of a job."""
    main, send_offset, signals = os.getpid(), Connection.send_offset, [getattr(signal, name)]

    def send_and_stop(self, data, offset):
        sent = send_offset(self, data, offset)
        is_head = len(data) == _HEAD_BYTES
        is_there = is_head if where == "head" else offset + sent < len(data) and not is_head
        if is_there and signals and os.getpid() == main:
            announce("interrupted")
            os.kill(main, signals.pop())
        return sent

    Connection.send_offset = send_and_stop


def _app_from_environment():
    if WHEN in os.environ:
        _interrupt(*json.loads(os.environ[WHEN]))
    changes = settings_from_environment()
    return build(os.environ[NAMESPACE], changes, is_guarded=os.environ[IS_GUARDED] == "yes")


app = _app_from_environment() if IS_GUARDED in os.environ else None
