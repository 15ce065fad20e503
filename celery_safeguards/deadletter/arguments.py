"""
A letter's arguments, for people and programs.

Only JSON is decoded: reading a pickle runs the code that it names. For people the values are Python's, with the types
that Celery's JSON carries; for programs they are the JSON of the wire, so `datetime` and its like stay envelopes.
"""

import json
from dataclasses import dataclass
from typing import Any

from kombu.utils import json as kombu_json

from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.printable import counted

_KOMBU: Any = kombu_json
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a body holds, as far as it can be read; `note` says why it cannot."""

    plain: dict[str, Any] | None = None
    shown: tuple[tuple[str, str], ...] = ()
    note: str = ""


def arguments_of(wire: WireMessage) -> Arguments:
    """Return a message's arguments without running anything that it brings."""
    plain, note = plain_of(wire)
    if plain is None:
        described = () if wire.content_type == JSON else _as_described(wire)
        return Arguments(shown=() if wire.truncated else (("body", repr(wire.body[:200])), *described), note=note)
    embed = plain["embed"]
    followed = [name for name, value in embed.items() if value] if isinstance(embed, dict) else []
    try:
        typed_args, typed_kwargs, _ = _KOMBU.loads(_text_of(wire))
    except Exception:  # noqa: BLE001  decoders are registered by users
        typed_args, typed_kwargs = plain["args"], plain["kwargs"]
    shown = [("args", _safe_repr(typed_args)), ("kwargs", _safe_repr(typed_kwargs))]
    if followed:
        shown.append(("followed by", ", ".join(followed)))
    return Arguments(plain=plain, shown=tuple(shown))


def plain_of(wire: WireMessage) -> tuple[dict[str, Any] | None, str]:
    """Return args, kwargs and embed as the JSON of the wire, or None and why they cannot be read."""
    if wire.truncated:
        return None, "the message is not whole"
    if wire.content_type != JSON:
        whole = len(wire.body) if wire.body_bytes is None else wire.body_bytes
        held = f"{counted(whole, 'byte')} of {wire.content_type or 'unknown type'}"
        return None, f"{held}, not decoded: only JSON is read here"
    try:
        args, kwargs, embed = json.loads(_text_of(wire), parse_constant=str)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        return None, f"the body is no task message: {error}"
    return {"args": args, "kwargs": kwargs, "embed": embed}, ""


def _text_of(wire: WireMessage) -> str:
    return wire.body.decode(wire.content_encoding or "utf-8")


def _as_described(wire: WireMessage) -> tuple[tuple[str, str], ...]:
    """Return the shortened reprs that Celery's sender puts into the headers."""
    named = (("args as sent", "argsrepr"), ("kwargs as sent", "kwargsrepr"))
    return tuple((label, str(wire.headers[name])) for label, name in named if wire.headers.get(name))


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  values are built by users' decoders
        return f"<its __repr__ raises {type(error).__name__}>"
