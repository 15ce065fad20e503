"""
Text for a terminal and JSON for a program.

A letter holds what strangers sent. A terminal obeys escape sequences, and a bidirectional mark makes a line read as
what it is not, so whatever is not printable is shown as its escape.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

_MAX_CHARS = 10_000


def clean(text: object, max_chars: int = _MAX_CHARS) -> str:
    """Return text as one line of printable characters; the others as Python escapes."""
    shown = "".join(each if each.isprintable() else _escaped(each) for each in str(text)[: max_chars + 1])
    return shown if len(shown) <= max_chars else f"{shown[:max_chars]}..."


def clean_lines(text: str) -> Iterable[str]:
    """Return text's lines, each clean."""
    return [clean(line) for line in text.split("\n")]


def say(line: str = "") -> None:
    """Write a line to stdout; it must be clean."""
    click.echo(line)


def complain(text: object) -> None:
    """Write a message to stderr."""
    click.echo(clean(text), err=True)


def print_json(document: Any) -> None:
    """Write one JSON document to stdout, in ASCII."""
    click.echo(json.dumps(document, ensure_ascii=True, indent=2, default=clean))


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]], last_chars: int = 80) -> None:
    """Write clean, aligned columns; the last one is cut."""
    shown = [list(head), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(head) - 1)]
    for row in shown:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        say("  ".join([*cells, clean(row[-1], last_chars)]).rstrip())


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Write a name and a clean value on each line; None is left out."""
    for name, value in pairs:
        if value is not None:
            say(f"{name:<18}{clean(value)}")


def when(seconds: float) -> str:
    """Return a wall-clock time in UTC; one that no calendar has is shown as its number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{seconds} s"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
