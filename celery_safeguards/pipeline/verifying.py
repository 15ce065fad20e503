"""Asking the outside what became of an attempt whose end nobody recorded."""

import logging
from collections.abc import Mapping
from typing import Any

from celery_safeguards.deadletter.text import describe_error
from celery_safeguards.policy import CannotTell, DidNotHappen, Happened, Verdict, Verify, call_with_named

logger = logging.getLogger(__name__)
MAX_REASON_CHARS = 1_000


def ask_outside(verify: Verify, arguments: Mapping[str, Any], key: str, step: str | None = None) -> Verdict:
    """
    Return the verdict of the user's function; an exception, or an answer of another type, is no answer.

    Safe when: the caller holds the key's claim, so that no other delivery acts on the same question.
    """
    offered = {**arguments, "idempotency_key": key, "step": step}
    try:
        verdict = call_with_named(verify.find, (), offered)
    except Exception as error:  # noqa: BLE001 - the function is the user's, and its dependency may be down
        shown = describe_error(error, MAX_REASON_CHARS, 1)
        logger.warning("verify of %s could not be asked: %s: %s", key, shown.type, shown.message)
        return CannotTell(f"{shown.type}: {shown.message}")
    if isinstance(verdict, Happened | DidNotHappen | CannotTell):
        return verdict
    return CannotTell(f"verify returned {verdict!r}, not Happened(result), DidNotHappen() or CannotTell()")
