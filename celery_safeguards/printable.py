"""
Whatever strangers sent, as text that can be shown to a person.

A terminal obeys escape sequences, a bidirectional mark makes a line read as what it is not, and half a surrogate pair
cannot be encoded at all; so whatever is not printable is shown as its escape.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

MAX_CHARS = 10_000
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def clean(text: object, max_chars: int = MAX_CHARS) -> str:
    """Return text as one line of printable characters; the others as Python escapes."""
    shown = "".join(each if each.isprintable() else _escaped(each) for each in str(text)[: max_chars + 1])
    return shown if len(shown) <= max_chars else f"{shown[:max_chars]}..."


def clean_lines(text: str) -> Iterable[str]:
    """Return text's lines, each clean."""
    return [clean(line) for line in text.split("\n")]


def when(seconds: float) -> str:
    """Return a wall-clock time in UTC; one that no calendar has is shown as its number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{seconds} s"


def counted(number: int, thing: str) -> str:
    """Return a number of things, such as `1 letter` or `1,200 letters`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def duration(seconds: float) -> str:
    """Return seconds as people say them, such as `45.2 s`, `3 min 20 s` or `1 d 2 h`: the two largest units."""
    if seconds < 59.5:
        return f"{seconds:.3g} s"
    left = round(seconds)
    parts: list[tuple[int, str]] = []
    for size, unit in (*_UNITS, (1, "s")):
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
