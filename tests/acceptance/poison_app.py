"""
An app of tasks that end their own process or worker, by every way there is, so many times as they are told.

Each way is there under every declaration, and once on plain Celery as a careful team sets it up: late acknowledgement,
put back when the child is lost.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from celery import Celery

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask
from tests.support.announce import announce, gate
from tests.support.apps import NAMESPACE, settings_from_environment

SETTINGS = "POISON_SETTINGS"
ALWAYS = 1_000


def recurse():
    return recurse() + 1


def interrupt():
    raise KeyboardInterrupt


def run_out_of_memory():
    raise MemoryError("no more")


def hang():
    threading.Event().wait(60)


WAYS = {
    "kill_child": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill_worker": lambda: os.kill(os.getppid(), signal.SIGKILL) or hang(),
    "exit": lambda: sys.exit(3),
    "exit_well": lambda: sys.exit(0),
    "interrupt": interrupt,
    "hard_limit": hang,
    "recursion": recurse,
    "memory": run_out_of_memory,
}


def started(number, directory):
    """Note a start, and return how many there were: a file outlives every process."""
    with Path(directory, str(number)).open("a+") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        file.seek(0)
        return len(file.readlines())


def die(self, way, number, directory, times=ALWAYS):
    """End by this way at the first so many starts, then succeed."""
    count = started(number, directory)
    gate("started", number=number, count=count)
    if count <= times:
        WAYS[way]()
    announce("ran", number=number)
    return number


class DiesBefore(SafeTask):
    """Ends its process where no safeguard is yet at work."""

    abstract = True

    def before_start(self, task_id, args, kwargs):
        started(kwargs["number"], kwargs["directory"])
        WAYS[kwargs["way"]]()


SOON = RetryPolicy(attempts=4, base_seconds=0.2, factor=1.0, cap_seconds=0.2)
KEYED = Safeguards(idempotent=Idempotent("{number}", on_unknown="rerun"), retry=SOON)
REPEATABLE = Safeguards(repeatable=True, retry=SOON)
GUARDED = {"keyed": KEYED, "repeatable": REPEATABLE, "undeclared": Safeguards()}


def make_app(**changes):
    """Return the app for this process's environment."""
    settings = settings_from_environment(
        safeguards_namespace=os.environ[NAMESPACE],
        safeguards_lease_seconds=3.0,
        safeguards_store_timeout_seconds=0.9,
        safeguards_deferral_base_seconds=0.2,
        safeguards_deferral_cap_seconds=0.5,
        **changes,
        **json.loads(os.environ.get(SETTINGS, "{}")),
    )
    settings["safeguards_store_url"] = settings["result_backend"]
    app = Celery("poison", set_as_current=False)
    app.conf.update(settings)
    common = {"bind": True, "shared": False}
    for name, safeguards in GUARDED.items():
        app.task(die, name=f"poison.{name}", base=SafeTask, safeguards=safeguards, **common)
        limited = {"base": SafeTask, "safeguards": safeguards, "time_limit": 1}
        app.task(die, name=f"poison.{name}_limited", **limited, **common)
        app.task(die, name=f"poison.{name}_before", base=DiesBefore, safeguards=safeguards, **common)
    plain = {"acks_late": True, "reject_on_worker_lost": True, **common}
    app.task(die, name="poison.plain", **plain)
    # What makes plain Celery keep a message that was over its limit, in new versions and in old ones.
    kept = {"acks_on_timeout": False, "acks_on_failure_or_timeout": False}
    app.task(die, name="poison.plain_limited", time_limit=1, **kept, **plain)
    return app


# A worker finds its app here; a test imports this module without an environment, and makes its own.
app = make_app() if NAMESPACE in os.environ else None
