"""
Dead letters in this process's memory: for tests and for eager development.

The same decisions and the same races as the real stores, under one lock. Not covered: anything that outlives the
process, or a second process.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from celery_safeguards.deadletter import changes, group, retention
from celery_safeguards.deadletter.letter import Letter, State
from celery_safeguards.deadletter.port.reading import GroupPage, Page
from celery_safeguards.deadletter.steps import LetterSteps
from celery_safeguards.deadletter.terms import terms_of
from celery_safeguards.outcome import FailureKind

T = TypeVar("T")


class MemoryLetterStore(LetterSteps):
    """
    A `LetterStore` in a dict.

    Safe when: used by several threads of one process.
    """

    def __init__(self) -> None:
        self._letters: dict[str, Letter] = {}
        self._groups: dict[str, group.LetterGroup] = {}
        self._found: dict[str, set[str]] = {}
        """Ids of letters by the terms that they are found by."""
        self._lock = threading.Lock()

    def bury(self, letter: Letter) -> bool:
        """See `LetterStore.bury`."""
        with self._lock:
            stored = self._letters.get(letter.id)
            changed = changes.as_buried(letter) if stored is None else changes.reburial(letter)(stored)
            return self._write(stored, changed, has_died=True) is not None

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
        fingerprint: str | None = None,
        terms: Sequence[str] = (),
    ) -> Page:
        """See `LetterStore.list`."""
        changes.require_limit(limit)
        with self._lock:
            chosen = set().union(*(self._found.get(term, ()) for term in terms)) if terms else self._letters
            letters = sorted((self._letters[each] for each in chosen), key=_place, reverse=True)
        if before is not None:
            seconds, name = changes.from_cursor(before)
            letters = [letter for letter in letters if _place(letter) < (seconds, _as_bytes(name))]
        given = {"state": state, "task": task, "kind": kind, "fingerprint": fingerprint}
        wanted = _matching(letters, given)
        page = tuple(wanted[:limit])
        is_last = len(wanted) <= limit
        return Page(
            letters=page, next_cursor=None if is_last else changes.to_cursor(page[-1].last_failed_seconds, page[-1].id)
        )

    def groups(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        status: group.GroupStatus | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
    ) -> GroupPage:
        """See `LetterStore.groups`."""
        changes.require_limit(limit)
        with self._lock:
            groups = sorted(self._groups.values(), key=_place_of_group, reverse=True)
        if before is not None:
            place = changes.from_cursor(before)
            groups = [each for each in groups if _place_of_group(each) < place]
        wanted = _matching(groups, {"status": status, "task": task, "kind": kind})
        page = tuple(wanted[:limit])
        is_last = len(wanted) <= limit
        return GroupPage(groups=page, next_cursor=None if is_last else changes.to_cursor(*_place_of_group(page[-1])))

    def over(self, before_seconds: float, *, limit: int = 50, before: str | None = None) -> Page:
        """See `LetterStore.over`."""
        changes.require_limit(limit)
        place = (before_seconds, b"")
        if before is not None:
            seconds, name = changes.from_cursor(before)
            place = (seconds, _as_bytes(name))
        with self._lock:
            ends = [(retention.over_since(letter), letter) for letter in self._letters.values()]
        places = [(at, _as_bytes(letter.id), letter) for at, letter in ends if at is not None]
        wanted = sorted((each for each in places if each[:2] < place), key=lambda each: each[:2], reverse=True)
        page = wanted[:limit]
        is_last = len(wanted) <= limit
        return Page(
            letters=tuple(letter for *_, letter in page),
            next_cursor=None if is_last else changes.to_cursor(page[-1][0], page[-1][2].id),
        )

    def remove(self, letter_ids: Sequence[str], before_seconds: float) -> int:
        """See `LetterStore.remove`."""
        removed = 0
        with self._lock:
            for letter_id in letter_ids:
                stored = self._letters.get(letter_id)
                if stored is None or not retention.is_over(stored, before_seconds):
                    continue
                del self._letters[letter_id]
                for term in terms_of(stored):
                    self._found[term].discard(letter_id)
                left = self._groups[stored.fingerprint]
                self._groups[stored.fingerprint] = group.without(left, stored.state)
                removed += 1
        return removed

    def remove_group(self, fingerprint: str, before_seconds: float) -> bool:
        """See `LetterStore.remove_group`."""
        with self._lock:
            stored = self._groups.get(fingerprint)
            is_removed = stored is not None and retention.is_forgotten(stored, before_seconds)
            if is_removed:
                del self._groups[fingerprint]
            return is_removed

    def get_group(self, fingerprint: str) -> group.LetterGroup | None:
        """See `LetterStore.get_group`."""
        with self._lock:
            return self._groups.get(fingerprint)

    def _apply_to_group(self, fingerprint: str, change: group.GroupChange) -> group.LetterGroup | None:
        with self._lock:
            stored = self._groups.get(fingerprint)
            if stored is not None:
                self._groups[fingerprint] = change(stored)
            return self._groups.get(fingerprint)

    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        with self._lock:
            stored = self._letters.get(letter_id)
            return self._write(stored, None if stored is None else change(stored), has_died=False)

    def _write(self, stored: Letter | None, changed: Letter | None, *, has_died: bool) -> Letter | None:
        if changed is not None:
            self._letters[changed.id] = changed
            for term in () if stored is None else terms_of(stored):
                self._found[term].discard(changed.id)
            for term in terms_of(changed):
                self._found.setdefault(term, set()).add(changed.id)
            if stored is not None:
                left = self._groups[stored.fingerprint]
                self._groups[stored.fingerprint] = group.without(left, stored.state)
            joined = self._groups.get(changed.fingerprint) or group.group_of(changed)
            self._groups[changed.fingerprint] = group.holding(joined, changed, has_died=has_died)
        return changed


def _matching(each_of: Iterable[T], wanted: Mapping[str, object]) -> list[T]:
    given = {name: value for name, value in wanted.items() if value is not None}
    return [each for each in each_of if all(getattr(each, name) == value for name, value in given.items())]


def _place_of_group(each: group.LetterGroup) -> tuple[float, str]:
    return each.last_failed_seconds, each.fingerprint


def _place(letter: Letter) -> tuple[float, bytes]:
    return letter.last_failed_seconds, _as_bytes(letter.id)


def _as_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
