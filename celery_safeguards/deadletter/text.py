"""
Text that every store can hold: clean, of bounded length, whatever an exception's class does.

NUL, lone surrogates, a 5 MB traceback, an exception whose `__str__` raises or that holds a lock: none of them may make
recording a failure fail. No exception is ever pickled.
"""

import re
import traceback as tracebacks
from dataclasses import dataclass
from typing import Literal

MAX_PATH_CHARS = 2_000
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """Return text with NUL and lone surrogates replaced by U+FFFD, one for one."""
    # Most text needs nothing, and to be told that takes a fraction of the time.
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub("\ufffd", text)


def clean_text(text: str, max_chars: int, *, keep: Literal["first", "last"] = "first") -> str:
    """
    Return text that every store can hold, of bounded length.

    NUL and lone surrogates become U+FFFD, one for one.

    Args:
        text: any text.
        max_chars: > 0; the mark that tells how much was dropped is counted in.
        keep: `first` for messages; `last` for tracebacks, whose end names the error.

    """
    if len(text) > max_chars:
        # The mark's own length depends on the number it names: measured with the longest number possible.
        room = max_chars - len(f"[{len(text)} characters dropped]") - 1
        if room <= 0:
            text = text[:max_chars] if keep == "first" else text[-max_chars:]
        elif keep == "first":
            text = f"{text[:room]}\n[{len(text) - room} characters dropped]"
        else:
            text = f"[{len(text) - room} characters dropped]\n{text[-room:]}"
    return storable(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorText:
    """An exception as text: class path, message, traceback."""

    type: str
    message: str = ""
    traceback: str = ""


def describe_error(error: BaseException, max_message_chars: int, max_traceback_chars: int) -> ErrorText:
    """
    Return an exception as clean text, whatever its class does.

    Safe when: `__str__` or `__repr__` raises, the constructor cannot be called again, or it holds a lock or a socket.
    """
    cls = type(error)
    path = f"{cls.__module__}.{cls.__qualname__}"
    # The classes are the user's: reading them may raise anything, and a failure must be recorded all the same.
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001
        message = f"<its __str__ raises {type(second).__name__}>"
    try:
        trace = "".join(tracebacks.format_exception(error))
    except Exception as second:  # noqa: BLE001
        trace = "".join(tracebacks.format_tb(error.__traceback__)) + f"{path}: <formatting raises {type(second)}>\n"
    return ErrorText(
        type=clean_text(path, MAX_PATH_CHARS),
        message=clean_text(message, max_message_chars),
        traceback=clean_text(trace, max_traceback_chars, keep="last"),
    )
