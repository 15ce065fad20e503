"""What a letter is found by, as a process can tell that may know its task, and so the names of its arguments."""

import inspect
from collections.abc import Mapping
from typing import Any

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.key import body_signature
from celery_safeguards.wiring import Wiring


def indexed(wiring: Wiring, letter: Letter, tasks: Mapping[str, Any]) -> Letter:
    """Return a letter with the terms of its searchable arguments; `tasks`: those that are known here, by name."""
    return wiring.search.indexed(letter, _signature_of(tasks.get(letter.task)))


def _signature_of(task: Any) -> inspect.Signature | None:
    try:
        return None if task is None else body_signature(task.run)
    except ConfigurationError:
        # A callable that Python cannot look into: what is passed by keyword has its name all the same.
        return None
