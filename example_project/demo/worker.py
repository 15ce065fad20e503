"""
What the demo adds to its workers: notes that say which process charges which order, so that it kills the right one.

Loaded by `celery worker --include`. Each note is a file, complete from the moment it is seen.
"""

import os
import time
from pathlib import Path

from celery import signals

NOTES = "SHOP_DEMO_NOTES"


def write_note(name, text):
    """Leave a note, by a rename."""
    directory = Path(os.environ[NOTES])
    unfinished = directory / f"{name}.{os.getpid()}.new"
    unfinished.write_text(text)
    unfinished.replace(directory / name)


@signals.worker_ready.connect
def _on_ready(**_):
    write_note(f"ready-{os.getpid()}", "")


@signals.task_prerun.connect
def _on_start(sender=None, kwargs=None, **_):
    order_id = (kwargs or {}).get("order_id")
    if order_id and sender.name.endswith(".charge"):
        write_note(f"order-{order_id}", f"{os.getpid()} {os.getppid()} {time.time()}")
