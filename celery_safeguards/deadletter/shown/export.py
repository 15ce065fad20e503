"""
Letters as lines of a file for other programs: CSV, for spreadsheets, or JSON, one object on each line.

The promise: a line is made of one letter alone, so a file may be of any length; and what strangers sent is no formula,
no command of a terminal and no text that a reader refuses.

- *A cell that a spreadsheet would calculate* (it begins with `=`, `+`, `-`, `@`, or what Excel reads as these) is given
  an apostrophe. All cells are quoted, and hold no control character but line breaks.
- *NUL and halves of surrogate pairs*, which databases and parsers of JSON refuse, are U+FFFD.

What a letter says of its work's content is in no line unless it is asked for. Whoever writes lines gives letters as a
person may see them; see `deadletter.shown.redaction`.

Not covered: a spreadsheet that parts cells of quoted CSV at another character than the comma; tell it which it is.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

from celery_safeguards.deadletter.arguments import arguments_of
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.retention import kept_until, over_since
from celery_safeguards.deadletter.text import storable
from celery_safeguards.printable import clean, when

Format = Literal["csv", "json"]
FORMATS: tuple[Format, ...] = ("csv", "json")
_PLAIN = (
    *("id", "fingerprint", "state", "archived_from", "kind", "effect_possible", "task", "task_id", "key", "scope"),
    *("root_id", "parent_id", "group_id", "replay_task_id", "error_type", "attempts", "deliveries", "lost_starts"),
    *("host", "release", "erased"),
)
_MADE = ("edited_from", "first_seen", "last_failed", "over_since", "kept_until")
_PAYLOAD = ("reason", "error_message", "traceback", "arguments", "headers", "properties", "history", "failed_attempts")
_PROBLEM = "problem"
"""Why there is no more than the id: the letter cannot be read."""

_BEGINS_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_LONGEST_ESCAPE = len(r"\U00000000")

Row = Mapping[str, Any]


def columns(*, with_payload: bool) -> Sequence[str]:
    """Return the names of what each line holds, in their order."""
    return (*_PLAIN, *_MADE, *(_PAYLOAD if with_payload else ()), _PROBLEM)


def row_of(seen: Letter, retention_seconds: float, *, with_payload: bool) -> Row:
    """
    Return what a line holds of a letter.

    Args:
        seen: as a person may see it.
        retention_seconds: how long letters are kept.
        with_payload: whether with its arguments, headers, error and history.

    """
    times = {
        "first_seen": seen.first_seen_seconds,
        "last_failed": seen.last_failed_seconds,
        "over_since": over_since(seen),
        "kept_until": kept_until(seen, retention_seconds),
    }
    made = {name: None if at is None else when(at) for name, at in times.items()}
    row = {**{name: getattr(seen, name) for name in _PLAIN}, **made, "edited_from": seen.edited_from}
    return {**row, **_payload_of(seen)} if with_payload else row


def unreadable_row(name: str) -> Row:
    """Return what a line holds of a letter that cannot be read, by its stored name."""
    return {"id": name, _PROBLEM: "it cannot be read: damaged, or written by a newer version"}


def head(form: Format, *, with_payload: bool) -> str:
    """Return what a file begins with."""
    return _csv_line(columns(with_payload=with_payload)) if form == "csv" else ""


def line(form: Format, row: Row, *, with_payload: bool) -> str:
    """Return a line, with its end."""
    values = [row.get(name) for name in columns(with_payload=with_payload)]
    if form == "csv":
        return _csv_line([_cell(value) for value in values])
    named = dict(zip(columns(with_payload=with_payload), map(_readable, values), strict=True))
    return f"{json.dumps(named, ensure_ascii=True, default=_as_text)}\n"


def _payload_of(seen: Letter) -> Row:
    arguments = arguments_of(seen.wire)
    plain = arguments.plain or {"note": arguments.note, **dict(arguments.shown)}
    history = [
        {"at": when(entry.at_seconds), "what": entry.what, "who": entry.who, "detail": entry.detail}
        for entry in seen.history
    ]
    attempts = [
        {each.name: getattr(attempt, each.name) for each in fields(attempt) if each.name != "at_seconds"}
        | {"at": when(attempt.at_seconds)}
        for attempt in seen.attempt_history
    ]
    return {
        "reason": seen.reason,
        "error_message": seen.error_message,
        "traceback": seen.traceback,
        "arguments": plain,
        "headers": dict(seen.wire.headers),
        "properties": dict(seen.wire.properties),
        "history": history,
        "failed_attempts": attempts,
    }


def _csv_line(cells: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerow(cells)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        value = json.dumps(_readable(value), ensure_ascii=True, default=_as_text)
    text = "\n".join(clean(each, len(each) * _LONGEST_ESCAPE) for each in storable(value).split("\n"))
    return f"'{text}" if value.startswith(_BEGINS_FORMULAS) or text.startswith(_BEGINS_FORMULAS) else text


def _readable(value: Any) -> Any:
    """Return a value as every parser of JSON takes it."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {storable(str(name)): _readable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(each) for each in value]
    return value


def _as_text(value: object) -> str:
    return storable(repr(value))
