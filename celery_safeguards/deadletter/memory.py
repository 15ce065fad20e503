"""
Dead letters in this process's memory: for tests and for eager development.

The same decisions and the same races as the real stores, under one lock. Not covered: anything that outlives the
process, or a second process.
"""

import threading

from celery_safeguards.deadletter import changes, store
from celery_safeguards.deadletter.letter import Letter, State
from celery_safeguards.deadletter.steps import LetterSteps
from celery_safeguards.outcome import FailureKind


class MemoryLetterStore(LetterSteps):
    """
    A `LetterStore` in a dict.

    Safe when: used by several threads of one process.
    """

    def __init__(self) -> None:
        self._letters: dict[str, Letter] = {}
        self._lock = threading.Lock()

    def bury(self, letter: Letter) -> bool:
        """See `LetterStore.bury`."""
        with self._lock:
            stored = self._letters.get(letter.id)
            changed = changes.as_buried(letter) if stored is None else changes.reburial(letter)(stored)
            if changed is not None:
                self._letters[letter.id] = changed
            return changed is not None

    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""
        with self._lock:
            return self._letters.get(letter_id)

    def list(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        state: State | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
    ) -> store.Page:
        """See `LetterStore.list`."""
        changes.require_limit(limit)
        with self._lock:
            letters = sorted(self._letters.values(), key=_place, reverse=True)
        if before is not None:
            seconds, name = changes.from_cursor(before)
            letters = [letter for letter in letters if _place(letter) < (seconds, _as_bytes(name))]
        wanted = [
            letter
            for letter in letters
            if state in (None, letter.state) and task in (None, letter.task) and kind in (None, letter.kind)
        ]
        page = tuple(wanted[:limit])
        is_last = len(wanted) <= limit
        return store.Page(
            letters=page, next_cursor=None if is_last else changes.to_cursor(page[-1].last_failed_seconds, page[-1].id)
        )

    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        """Return the changed letter; None: there is none, or it stays as it is."""
        with self._lock:
            stored = self._letters.get(letter_id)
            changed = None if stored is None else change(stored)
            if changed is not None:
                self._letters[letter_id] = changed
            return changed


def _place(letter: Letter) -> tuple[float, bytes]:
    return letter.last_failed_seconds, _as_bytes(letter.id)


def _as_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
