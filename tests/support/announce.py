"""
What a worker under test says, and where it waits: the worker's half of `tests.support.announcements`.

A test app imports this module; the worker then announces its life (`worker_ready`, `worker_process_init`,
`task_received`, `task_prerun`, ...) to the test over a unix socket, and a body can say and wait at points of its own:

    announce("effect", order_id=order_id)
    gate("after_effect", order_id=order_id)      passes at once, unless the test holds that gate

Every call opens its own connection and waits for the answer. So nothing is shared with a forked child, and what was
announced has been recorded before the body goes on: a kill right after an announcement cannot lose it.
Without the environment variable both calls do nothing.
"""

import json
import os
import socket
import time

from celery import signals

ADDRESS = "SAFEGUARDS_TEST_ANNOUNCE"
WORKER = "SAFEGUARDS_TEST_WORKER"
_ANSWER_SECONDS = 60


def announce(event, **fields):
    """Tell the test that something has happened; fields must be JSON."""
    _ask({"event": event, **fields})


def gate(name, **fields):
    """
    Announce `name` and wait while the test holds a gate of this name.

    Raises:
        TimeoutError: the test has not opened it within a minute.

    """
    _ask({"event": name, "is_gate": True, **fields})


def _ask(message):
    address = os.environ.get(ADDRESS)
    if not address:
        return
    message |= {"pid": os.getpid(), "worker": os.environ.get(WORKER, ""), "at": time.monotonic()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(address)
            connection.sendall(json.dumps(message).encode() + b"\n")
            connection.recv(1)
        except (ConnectionError, FileNotFoundError):
            # The test is over and about to kill this worker: there is nobody left to tell.
            return


@signals.worker_ready.connect
def _on_ready(**_):
    announce("worker_ready")


@signals.worker_process_init.connect
def _on_child(**_):
    announce("worker_process_init")


@signals.worker_shutting_down.connect
def _on_shutting_down(how=None, **_):
    announce("worker_shutting_down", how=how)


@signals.task_received.connect
def _on_received(request=None, **_):
    announce("task_received", task_id=request.id, task=request.name)


@signals.task_prerun.connect
def _on_prerun(task_id=None, task=None, **_):
    announce("task_prerun", task_id=task_id, task=task.name)


@signals.task_postrun.connect
def _on_postrun(task_id=None, task=None, state=None, retval=None, **_):
    announce("task_postrun", task_id=task_id, task=task.name, state=state, result=repr(retval))


@signals.task_failure.connect
def _on_failure(task_id=None, sender=None, exception=None, **_):
    announce("task_failure", task_id=task_id, task=getattr(sender, "name", None), error=repr(exception))
