"""
What was taken from a queue and is no message becomes a dead letter, kind `undecodable`, with its bytes.

The transport knows no letters: it sets such bytes aside in the broker (`delivery.restoring`), in one step with taking
them out of the worker's way. From there any worker moves them, once a second, as an errand:

    set aside ──▶ letter written ──▶ taken off the list

Whoever else has read the same entry, or reads it after a kill in between, makes the same letter of it: its id and its
time are the entry's.
"""

import hashlib
from types import SimpleNamespace
from typing import Any

from celery_safeguards.delivery import restoring
from celery_safeguards.delivery.lease import MessageLease
from celery_safeguards.outcome import FailureKind
from celery_safeguards.worker.errands import run_errand
from celery_safeguards.worker.unread import keep_unread


class Aside:
    """Moves what is set aside to its letters, one errand at a time."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._is_moving = False

    def move(self, lease: MessageLease) -> None:
        """Have what a lease's broker keeps aside written as letters; does nothing while that is under way."""
        if not self._is_moving:
            self._is_moving = True
            run_errand(self._app, lambda: lease.give_aside(self._keep), lambda _: self._done(), self._done)

    def _done(self) -> None:
        self._is_moving = False

    def _keep(self, aside: restoring.Aside) -> bool:
        message = SimpleNamespace(
            body=aside.raw,
            content_type=None,
            content_encoding=None,
            headers={},
            properties={},
            payload=None,
            delivery_info={"exchange": "", "routing_key": aside.queue, "redelivered": False},
            channel=None,
            delivery_tag=hashlib.sha256(repr(aside).encode()).hexdigest(),
        )
        error = ValueError(aside.reason)
        return keep_unread(self._app, message, FailureKind.UNDECODABLE, aside.reason, error, aside.at_seconds)
