"""
Failed attempts of one piece of work: what each retry, lost start and burial leaves for whoever reads the letter.

    1: retried in 2 s ──▶ 2: lost ──▶ 3: buried ──▶ letter: 1, 2, 3 ──▶ its replay dies at once ──▶ letter: 1, 2, 3, 1

| carried by | each attempt with | at most |
|---|---|---|
| the record of keyed work | the error's first line, redacted as it is written | 10, 4,000 characters |
| the header `sg_attempts` of a retry without a key | no text and no id | 5, 1,000 characters |
| the letter | the above, and the one that has buried it | 30, of all replays |

It costs no round trip, and before something fails the 21 bytes of a record's empty list. A record's history is written
by what settles a failed attempt anyway, a lost start by whoever takes its claim over, a header by the retry's own
publish; a success takes a record's history away by its own settle. Nothing of a history decides anything.

A header has no error's text: the broker, its tools and every tracer in between read and keep headers, where nobody
masks or erases a customer's name. What is left (number, time, end, class, worker, release) is the project's own.

Not covered: lost starts of work without a key and of atomic bodies, but for the last one: nobody is left to write them,
and they are counted alone. Attempts in workers of an older version, and what those drop of a record that they write.
"""

import json
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from celery_safeguards.printable import clean

MOST_IN_RECORD, MOST_IN_RECORD_CHARS = 10, 4_000
MOST_IN_HEADER, MOST_IN_HEADER_CHARS = 5, 1_000
MOST_IN_LETTER = 30
_MOST_NUMBER, _LATEST_SECONDS = 10**9, 1e11
_MOST_CHARS = {"ended": 200, "error_type": 200, "message": 300, "worker": 120, "release": 100, "task_id": 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """
    One start that did not end well.

    Attributes:
        number: of its series, from 1; a replay begins a new one.
        at_seconds: when it failed, wall clock.
        ended: how, such as `retried in 2 s` or `buried: attempt 3 of 3`; what follows a colon may quote an error.
        error_type: path of the error's class; may be empty.
        message: the first line of what it said, printable; empty where it is not kept.
        worker: host and process, such as `web-1:4711`.
        release: of the worker's code; see `safeguards_release`.
        task_id: under which it ran.

    """

    number: int
    at_seconds: float
    ended: str
    error_type: str = ""
    message: str = ""
    worker: str = ""
    release: str = ""
    task_id: str = ""

    def __post_init__(self) -> None:
        for name, most in _MOST_CHARS.items():
            text = str(getattr(self, name)).partition("\n")[0]
            object.__setattr__(self, name, clean(text, most))

    @property
    def plain(self) -> list[Any]:
        """It as stores write it."""
        return [getattr(self, each.name) for each in fields(self)]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> Self:
        """
        Read what `plain` has made of it; what a newer version has behind it is left out.

        Raises:
            ValueError: it is none.

        """
        values = list(plain)[: len(fields(cls))]
        number, at_seconds, *texts = values
        if len(texts) != len(_TEXTS) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{plain!r:.100} is no failed attempt")
        read = cls(number=int(number), at_seconds=float(at_seconds), **dict(zip(_TEXTS, texts, strict=True)))
        if not (0 <= read.number < _MOST_NUMBER and 0 <= read.at_seconds < _LATEST_SECONDS):
            # No calendar, column or page could show it.
            raise ValueError(f"{plain!r:.100} is no failed attempt")
        return read

    def to_text(self) -> str:
        """Return it as ASCII text, for a record or a header."""
        number, at_seconds, *texts = self.plain
        return json.dumps([number, round(at_seconds, 3), *texts], separators=(",", ":"))

    def without_texts(self) -> Self:
        """Return it without what an error has said."""
        return replace(self, message="", ended=self.ended.partition(":")[0])


_TEXTS = tuple(each.name for each in fields(FailedAttempt))[2:]


def worker_name(pid: int | None = None) -> str:
    """Return the name of a process of this host, this one unless it is given."""
    return f"{socket.gethostname()}:{os.getpid() if pid is None else pid}"


def kept_in_record(texts: Sequence[str], attempt: FailedAttempt) -> tuple[str, ...]:
    """Return what a record keeps once another attempt has failed."""
    return _newest([*texts, attempt.to_text()], MOST_IN_RECORD, MOST_IN_RECORD_CHARS)


def kept_in_header(texts: Sequence[str], attempt: FailedAttempt) -> list[str]:
    """Return what the retry of work without a key carries."""
    bare = replace(attempt.without_texts(), task_id="")
    return list(_newest([*texts, bare.to_text()], MOST_IN_HEADER, MOST_IN_HEADER_CHARS))


def read_attempts(texts: object, task_id: str = "") -> tuple[FailedAttempt, ...]:
    """
    Return the attempts of a record or a header; what is none, or damaged, proves nothing and is left out.

    Args:
        texts: as they were kept, or whatever a stranger has put in their place.
        task_id: of those that name none.

    """
    found = []
    for text in texts if isinstance(texts, list | tuple) else ():
        try:
            attempt = FailedAttempt.of(json.loads(text))
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
        found.append(attempt if attempt.task_id else replace(attempt, task_id=task_id))
    return tuple(found[-MOST_IN_LETTER:])


def joined(*parts: Iterable[FailedAttempt]) -> tuple[FailedAttempt, ...]:
    """Return attempts of several sources, the newest last, each once, as a letter keeps them."""
    # In the order in which they are known: clocks of two hosts may differ by more than two attempts.
    return tuple(dict.fromkeys(each for part in parts for each in part))[-MOST_IN_LETTER:]


def _newest(texts: Sequence[str], most: int, most_chars: int) -> tuple[str, ...]:
    kept, chars = [], 0
    for text in reversed(texts[-most:]):
        chars += len(text)
        if chars > most_chars:
            break
        kept.append(text)
    return tuple(reversed(kept))
