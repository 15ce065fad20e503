"""
Copies of a message: the retry that follows a failed attempt, and the deferral of one that could not start.

A copy is published before its original is acknowledged; a crash between the two leaves both, and admission makes one
of them. It keeps task id, route, priority, time limits, expiry, links, chain, group, chord and serializer. Celery's own
`Task.retry` publishes by itself and, when the broker refuses, rejects the message: the task is lost (celery 5.7,
`app/task.py`). Here whoever cannot publish keeps the original.
"""

from collections.abc import Mapping
from typing import Any

from kombu.exceptions import OperationalError
from kombu.serialization import registry

from celery_safeguards import headers as h
from celery_safeguards.clock import Clock
from celery_safeguards.delivery.delayed import delay_options
from celery_safeguards.ledger.record import Record
from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry.classify import classify


class CopyRefused(Exception):
    """Raised when the broker did not take a copy; the original must be kept."""

    @property
    def is_final(self) -> bool:
        """Whether the copy itself is wrong, and would be refused again: no serializer takes it, or no calendar."""
        # What the broker says itself may be over in a moment, whatever its class.
        if self.__cause__ is None or isinstance(self.__cause__, OperationalError):
            return False
        failure = classify(self.__cause__)
        return failure.recognised and failure.kind in {FailureKind.DATA, FailureKind.BUG}


def publish_copy(
    task: Any,
    request: Any,
    countdown_seconds: float,
    *,
    headers: Mapping[str, Any],
    retries: int,
    args: Any = None,
    kwargs: Any = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """
    Publish the running message again, under the same task id.

    Args:
        task: the guarded task.
        request: the running request.
        countdown_seconds: from now; at least, where the broker waits for it by whole seconds.
        headers: set on top of those the message came with.
        retries: Celery's counter; it grows with a retry, not with a deferral.
        args: other positional arguments than the message's, from `retry(args=...)`.
        kwargs: other keyword arguments.
        options: further options of `apply_async`, from `retry(**options)`.

    Raises:
        CopyRefused: nothing was published.

    """
    given = {**_serializer_of(task, request), **(options or {})}
    given["headers"] = {**h.outgoing(request.headers), **(given.get("headers") or {}), **headers}
    try:
        due = delay_options(task.app, request.delivery_info or {}, countdown_seconds)
        if given.keys() & {"queue", "exchange", "routing_key"}:
            due.pop("queue", None)
        signature = task.signature_from_request(request, args, kwargs, retries=retries, **due, **given)
        task.publish(signature.args, signature.kwargs, add_to_parent=False, **signature.options)
    except Exception as error:
        # Whatever went wrong, from the broker to a serializer: the caller keeps the original message.
        raise CopyRefused(f"{task.name}[{request.id}]: {error!r}") from error


def _serializer_of(task: Any, request: Any) -> dict[str, str]:
    """Return what the message is encoded by, if not by its task's own: what it carries may fit no other."""
    content_type = (getattr(request, h.WIRE, None) or {}).get("content_type")
    own = task.serializer or task.app.conf.task_serializer
    found = registry.type_to_name.get(content_type)
    return {} if found is None or registry.name_to_type.get(own) == content_type else {"serializer": found}


def eager_copy(task: Any, request: Any, args: Any, kwargs: Any, *, headers: Mapping[str, Any]) -> Any:
    """Return what Celery's `apply` runs next after an eager attempt: nothing is published."""
    carried = {**h.outgoing(request.headers), **headers}
    return task.signature_from_request(request, args, kwargs, retries=request.retries + 1, headers=carried)


def lineage_headers(record: Record | None, key: str | None, lineage: h.Lineage) -> dict[str, Any]:
    """Return what every copy of a keyed message says of its past."""
    if key is None:
        return {}
    seen = max(lineage.seen, record.fence if record else 0)
    found = {h.VERSION: h.FORMAT, h.KEY: key, h.FINGERPRINT: lineage.fingerprint, h.EPOCH: lineage.epoch}
    return {**{name: value for name, value in found.items() if value is not None}, **({h.SEEN: seen} if seen else {})}


def deferral_headers(lineage: h.Lineage, clock: Clock) -> dict[str, Any]:
    """Return the headers that count deferrals."""
    since = lineage.deferred_since if lineage.deferred_since is not None else clock.wall_seconds()
    return {h.DEFERRALS: lineage.deferrals + 1, h.DEFERRED_SINCE: since}
