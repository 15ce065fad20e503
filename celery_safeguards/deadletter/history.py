"""What was done to a letter or a group, line by line: when, what, by whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery_safeguards.deadletter.text import clean_text
from celery_safeguards.stored_types import require_row

MAX_HISTORY = 100
MAX_DETAIL_CHARS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """Something that was done to a letter: when (wall clock), what, by whom (None: by the system), and details."""

    at_seconds: float
    what: str
    who: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", clean_text(self.what, MAX_DETAIL_CHARS))
        object.__setattr__(self, "detail", clean_text(self.detail, MAX_DETAIL_CHARS))
        if self.who is not None:
            object.__setattr__(self, "who", clean_text(self.who, MAX_DETAIL_CHARS))

    @property
    def plain(self) -> list[Any]:
        """It as stores write it."""
        return [self.at_seconds, self.what, self.who, self.detail]


def history_of(plain: Sequence[Sequence[Any]]) -> tuple[HistoryEntry, ...]:
    """
    Return what `HistoryEntry.plain` has made of a history.

    Raises:
        TypeError: it holds a value of another type; ValueError: an entry has more or fewer.

    """
    for row in plain:
        require_row(HistoryEntry, row)
    return tuple(HistoryEntry(at_seconds=at, what=what, who=who, detail=detail) for at, what, who, detail in plain)
