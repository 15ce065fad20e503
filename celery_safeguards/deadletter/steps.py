"""The steps of a letter's life, for every store that can change one letter at once or not at all."""

from abc import ABC, abstractmethod

from celery_safeguards.deadletter import changes
from celery_safeguards.deadletter.letter import Letter


class LetterSteps(ABC):
    """A store of letters but for how they are kept, found and listed; see `LetterStore`."""

    @abstractmethod
    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""

    @abstractmethod
    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        """Return the changed letter; None: there is none, or it stays as it is."""

    def begin_replay(self, letter_id: str, new_task_id: str, who: str, at_seconds: float) -> Letter:
        """See `LetterStore.begin_replay`."""
        return changes.require_found(
            self._apply(letter_id, changes.beginning_of_replay(new_task_id, who, at_seconds)), letter_id
        )

    def resume_replay(self, letter_id: str) -> Letter:
        """See `LetterStore.resume_replay`."""
        letter = changes.require_found(self.get(letter_id), letter_id)
        changes.require_state(letter, "replaying")
        return letter

    def mark_replayed(self, letter_id: str, task_id: str, at_seconds: float | None = None) -> bool:
        """See `LetterStore.mark_replayed`."""
        return self._apply(letter_id, changes.end_of_replay(task_id, at_seconds)) is not None

    def close(self, letter_id: str, note: str, at_seconds: float | None = None) -> bool:
        """See `LetterStore.close`."""
        return self._apply(letter_id, changes.closing(note, at_seconds)) is not None

    def discard(self, letter_id: str, who: str, reason: str, at_seconds: float | None = None) -> Letter:
        """See `LetterStore.discard`."""
        return changes.require_found(self._apply(letter_id, changes.discarding(who, reason, at_seconds)), letter_id)

    def add_note(
        self, letter_id: str, what: str, who: str | None, detail: str = "", at_seconds: float | None = None
    ) -> Letter:
        """See `LetterStore.add_note`."""
        return changes.require_found(self._apply(letter_id, changes.noting(what, who, detail, at_seconds)), letter_id)
