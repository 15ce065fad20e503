"""What a letter is found by and what is shown of it, by a process that may know its task: that names the arguments."""

import inspect
import logging
from collections.abc import Mapping
from typing import Any

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.shown.masking import FAILED
from celery_safeguards.deadletter.shown.redaction import Redaction
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.key import body_signature
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)


def indexed(wiring: Wiring, letter: Letter, tasks: Mapping[str, Any]) -> Letter:
    """Return a letter with its terms and with what lists show of it; `tasks`: those that are known here, by name."""
    signature = signature_of(tasks.get(letter.task))
    found = wiring.search.indexed(letter, signature)
    return redaction_of(wiring).summarised(found, signature)


def shown(wiring: Wiring, letter: Letter, tasks: Mapping[str, Any]) -> Letter:
    """Return a letter as a person may see it."""
    return redaction_of(wiring).letter(letter, signature_of(tasks.get(letter.task)))


def shown_error(wiring: Wiring, wire: WireMessage, task: Any, error: str) -> str:
    """Return what a record keeps of the error of work that is tried again: nobody but a person reads it."""
    return redaction_of(wiring).text_of("failure", error, wire, task.name, signature_of(task))


def shown_failure(wiring: Wiring, failure: Mapping[str, Any], letter: Letter | None, task: str) -> dict[str, Any]:
    """
    Return what a record keeps of a failure, as a person may see it.

    Args:
        wiring: the app's.
        failure: the record's.
        letter: the one that it names, redacted; None: it names none, or it is gone.
        task: the record's.

    """
    if letter is not None:
        error = f"{letter.error_type}: {letter.error_message}" if letter.error_type else letter.reason
        return {**failure, "error": error, "reason": letter.reason}
    redaction = redaction_of(wiring)
    return {name: redaction.text("failure", str(text), task) for name, text in failure.items()}


def redaction_of(wiring: Wiring) -> Redaction:
    """Return what masks values; where the project's function cannot be had, all of them."""
    try:
        return wiring.redaction
    except ConfigurationError as error:
        logger.error("%s: nothing of a letter's content is shown", error)  # noqa: TRY400 - it says why
        return Redaction(wiring.settings.sensitive_arguments, lambda *_: FAILED)


def signature_of(task: Any) -> inspect.Signature | None:
    """Return what names a task's arguments; None: the task is not known here, or cannot be looked into."""
    try:
        return None if task is None else body_signature(task.run)
    except ConfigurationError:
        # A callable that Python cannot look into: what is passed by keyword has its name all the same.
        return None
