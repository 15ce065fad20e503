"""Text for a terminal and JSON for a program; a letter holds what strangers sent, so it is cleaned first."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from celery_safeguards.printable import clean, counted


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


def quoted_text_hint(name: str) -> str:
    """Return what to say where a key or a lock's name was not found: a shell takes the quotes of a text in it."""
    first, *values = name.split(":")
    if '"' in name or all(value.isdecimal() for value in values):
        return ""
    return f"; a text in it has its quotes, as in '{first}:\"{':'.join(values)}\"'"


@contextmanager
def progress(what: str = "letter") -> Iterator[Callable[[int], None]]:
    """Tell a person how many it were so far, where nobody knows how many it will be; no file, and no other program."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    yield lambda count: click.echo(f"\r{counted(count, what)}", err=True, nl=False)
    click.echo("\r", err=True, nl=False)
