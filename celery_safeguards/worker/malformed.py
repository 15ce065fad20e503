"""
What is wrong with a message, before Celery builds its request of it.

Celery takes the shape of a message on trust: a body that is no list of three ends the worker (celery 5.7,
`worker/request.py`), an id that is missing is taken for a lost Redis connection (kombu 5.7, `transport/redis.py`,
counts `KeyError` as one), and both come back with the message. So do stamps that are none (`Request.revoked`), a shadow
that no counter takes (`worker/state.py`), and headers too deep to be pickled for a child. What Celery refuses by itself
is left to it: an unknown task, a content type that is not accepted, a body that its decoder refuses, an eta that is no
date.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware, timezone
from kombu.asynchronous.timer import to_timestamp
from kombu.exceptions import ContentDisallowed, DecodeError

_MOST_NESTED = 200
"""Pickle goes about 490 levels deep in a stack that is empty (CPython 3.11)."""


def fault_of(message: Any, tasks: Mapping[str, Any]) -> str | None:
    """
    Return what is wrong with a message; None: nothing, or something that Celery refuses by itself.

    What plain Celery runs is no fault, however odd, unless the task is guarded: without an id of its own its starts
    could not be counted, nor its letter be told from another's.

    Args:
        message: kombu's; its body is decoded, which Celery does next anyway and finds done.
        tasks: this worker's, by name.

    """
    if not isinstance(message.headers, Mapping):
        return None
    try:
        return _fault(message, tasks)
    except (ContentDisallowed, DecodeError):
        return None
    except Exception as error:  # noqa: BLE001 - decoders, and encodings that nobody knows, raise what they like
        return f"its body cannot be read: {type(error).__name__}: {error}"


def _fault(message: Any, tasks: Mapping[str, Any]) -> str | None:
    is_protocol_1 = "task" not in message.headers
    fields = message.payload if is_protocol_1 else message.headers
    if not isinstance(fields, Mapping) or "task" not in fields:
        return None
    if not isinstance(fields["task"], str):
        return f"its task is no name: {_short(fields['task'])}"
    task = tasks.get(fields["task"])
    is_guarded = hasattr(task, "policy")
    # The body of protocol 2 goes to the child as bytes.
    if _is_deeper(message.headers, _MOST_NESTED) or (is_protocol_1 and _is_deeper(fields, _MOST_NESTED)):
        return f"it is nested deeper than {_MOST_NESTED} levels"
    fault = _fault_of_fields(fields, is_guarded=is_guarded, needs_id=not is_protocol_1)
    if fault is not None or task is None:
        return fault
    return _fault_of_body(message.payload, is_guarded=is_guarded, is_protocol_1=is_protocol_1)


def _fault_of_fields(fields: Mapping[str, Any], *, is_guarded: bool, needs_id: bool) -> str | None:
    if needs_id and "id" not in fields:
        return "it has no id"
    id_ = fields.get("id")
    if (is_guarded and not (isinstance(id_, str) and id_)) or not isinstance(id_, Hashable):
        return f"its id is none: {_short(id_)}"
    limits = fields.get("timelimit") or (None, None)
    if not isinstance(limits, list | tuple) or len(limits) != 2 or not all(map(_is_number, limits)):
        return f"its time limits are no pair of numbers: {_short(limits)}"
    if is_guarded and not _is_count(fields.get("retries") or 0):
        return f"its number of retries is none: {_short(fields['retries'])}"
    return _fault_of_looks(fields) or _fault_of_eta(fields.get("eta"))


def _fault_of_looks(fields: Mapping[str, Any]) -> str | None:
    """Return what is wrong with that by which a message is counted and revoked in the worker's main process."""
    if not isinstance(fields.get("shadow"), Hashable):
        return f"its shadow is no name: {_short(fields['shadow'])}"
    names, stamps = fields.get("stamped_headers") or [], fields.get("stamps") or {}
    is_named = isinstance(names, Iterable) and all(isinstance(name, Hashable) for name in names)
    if not is_named or not isinstance(stamps, Mapping):
        return f"its stamps are none: {_short((names, stamps))}"
    return None


def _fault_of_eta(eta: Any) -> str | None:
    if eta is None:
        return None
    try:
        moment = maybe_iso8601(eta)
    except (AttributeError, ValueError, TypeError):
        return None  # Celery says so
    try:
        to_timestamp(timezone.to_system(maybe_make_aware(moment)))  # type: ignore[no-untyped-call]
    except (OverflowError, ValueError) as error:
        # Celery gives such a message up where no hook sees it (celery 5.7, `worker/strategy.py`).
        return f"its eta is no time that a clock has: {_short(eta)} ({error})"
    return None


def _fault_of_body(payload: Any, *, is_guarded: bool, is_protocol_1: bool) -> str | None:
    args: Any
    embed: Any
    if isinstance(payload, Mapping) and (is_protocol_1 or "args" in payload):
        args, kwargs, embed = payload.get("args", ()), payload.get("kwargs", {}), {}
    elif isinstance(payload, list | tuple) and len(payload) == 3:
        args, kwargs, embed = payload
    else:
        return f"its body is no list of args, kwargs and embed: {_short(payload)}"
    if not isinstance(args, Iterable):
        return f"its args are no list: {_short(args)}"
    if not isinstance(kwargs, Mapping):
        return f"its kwargs are no mapping: {_short(kwargs)}"
    if not isinstance(embed, Mapping) and (embed or is_guarded):
        return f"its embed is no mapping: {_short(embed)}"
    return None


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in value)


def _short(value: Any) -> str:
    return f"{value!r:.100}"
