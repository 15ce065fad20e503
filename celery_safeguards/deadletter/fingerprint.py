"""
Which failures are the same one: a fingerprint of kind, task, error class and stack, with all values out.

Two letters of one cause get one fingerprint, on any host and in any release: line numbers, absolute paths, messages
and the depth of a recursion are left out, and so are the frames of libraries, whose upgrade would part a group in two.

    File "/srv/releases/41/shop/tasks.py", line 12, in charge      ─▶  shop/tasks.py:charge
    File "/usr/lib/python3.11/json/decoder.py", line 337, in …     ─▶  (a library's: left out)

A failure without a stack (expired, unknown task, a process that died) is told by its message instead, with numbers,
hexadecimal words, addresses and quoted text out.

Not covered: one cause that is met at two places has two fingerprints, and two causes that raise one class at one place
have one. Where a message varies by words that look like none of these, a failure without a stack is a group of its own.
"""

import hashlib
import re

VERSION = 1
"""Part of what is hashed: other rules make other fingerprints."""

FINGERPRINT_CHARS = 16
_MOST_FRAMES = 20
_TRACEBACK_CHARS = 100_000
_MESSAGE_CHARS = 300
_PARTS_OF_A_PATH = 2
_FRAME = re.compile(r'^[ \t|+-]*File "([^"\n]*)", line \d+(?:, in ([^\n]+))?$', re.MULTILINE)
_OF_A_LIBRARY = re.compile(
    r"^<|[/\\](?:site-packages|dist-packages|celery_safeguards|lib[/\\]python\d[^/\\]*|python\d+[/\\]lib)[/\\]",
    re.IGNORECASE,
)
# Python 3.12 has no frames of their own for these.
_INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}
_VALUE = re.compile(
    r"""
    "[^"\n]*" | '[^'\n]*'           # quoted, as repr() writes text
    | \S+@\S+                       # addresses, of people and of objects
    | \b0x[0-9a-f]+                 # places in memory
    | \b(?=[a-f-]*\d)[0-9a-f-]{8,}  # ids and digests
    | \d+
    """,
    re.VERBOSE | re.IGNORECASE,
)


def fingerprint_of(*, kind: str, task: str, error_type: str, message: str, traceback: str) -> str:
    """
    Return the fingerprint of a failure, 16 hexadecimal digits.

    Args:
        kind: a `FailureKind`'s value.
        task: the task's name, as the message has it.
        error_type: path of the error's class; may be empty.
        message: of the error; counts only where there is no stack.
        traceback: as Python formats it, perhaps without its beginning; may be empty.

    """
    cause = stack_of(traceback) or [without_values(message)]
    whole = "\x00".join([str(VERSION), kind, task, error_type, *cause])
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:FINGERPRINT_CHARS]


def stack_of(traceback: str) -> list[str]:
    """Return the project's own frames, outermost first, as `file:function`; of libraries' alone, all of them."""
    found = _FRAME.findall(traceback[-_TRACEBACK_CHARS:])
    own = [frame for frame in found if not _OF_A_LIBRARY.search(frame[0])]
    stack: list[str] = []
    for path, function in own or found:
        frame = f"{_short(path)}:{function}"
        # How deep a recursion was is a value.
        if function not in _INLINED and stack[-1:] != [frame]:
            stack.append(frame)
    return stack[-_MOST_FRAMES:]


def without_values(message: str) -> str:
    """Return the beginning of a message, with `?` for all that looks like a value."""
    return _VALUE.sub("?", message[:_MESSAGE_CHARS])


def _short(path: str) -> str:
    return "/".join(path.replace("\\", "/").split("/")[-_PARTS_OF_A_PATH:])
