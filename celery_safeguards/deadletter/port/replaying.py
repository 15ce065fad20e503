"""The steps by which a letter goes out again: of any number of callers each lets one through."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.errors import SafeguardsError


class ReplaysLetters(Protocol):
    """Takes letters through their replays, and through the copies that were made of them."""

    def begin_replay(
        self, letter_id: str, new_task_id: str, who: str, at_seconds: float, notes: Sequence[HistoryEntry] = ()
    ) -> Letter:
        """
        Go from open to replaying and allocate the replay's task id, by compare-and-set.

        Of any number of callers one wins. The winner publishes under `replay_task_id`, then calls `mark_replayed`.
        `notes` are written into the history with its beginning, and only the winner's.

        Raises:
            LetterNotOpen: somebody else began, or the letter is over; it carries the allocated id.
            LetterTruncated: the message is not whole.
            NoSuchLetter: no letter of that id.

        """
        ...

    def begin_replays(
        self, new_task_ids: Mapping[str, str], who: str, at_seconds: float, notes: Sequence[HistoryEntry] = ()
    ) -> Mapping[str, Letter | SafeguardsError]:
        """
        Begin the replay of each of several letters, as `begin_replay` does of one.

        Args:
            new_task_ids: by letter.
            who: for their histories.
            at_seconds: wall clock.
            notes: for the history of each, before its beginning.

        Returns:
            What became of each: the letter, or what `begin_replay` would have raised. After `StoreUnavailable` any
            number of them may have begun.

        """
        ...

    def resume_replay(self, letter_id: str) -> Letter:
        """
        Return a letter that is replaying, so that a replay cut short is sent again under the same task id.

        Changes nothing: two callers both get it, and their two messages share one task id.

        Raises:
            LetterNotOpen: it is not replaying.
            NoSuchLetter: no letter of that id.

        """
        ...

    def mark_replayed(self, letter_id: str, task_id: str, at_seconds: float | None = None) -> bool:
        """
        Go from replaying to replayed once the message is published.

        Returns:
            Whether that replay is marked. False: the letter has moved on, for instance the replay has died already.

        """
        ...

    def mark_each_replayed(self, task_ids: Mapping[str, str], at_seconds: float) -> None:
        """Mark several letters as `mark_replayed` does one; `task_ids`: by letter."""
        ...

    def begin_edit(
        self, letter_id: str, new_task_id: str, who: str, detail: str, look: str, at_seconds: float | None = None
    ) -> Letter:
        """
        Note that an edited copy is about to be sent, if the letter still is what `who` has looked at.

        Of any number of callers with one look one is let through: whoever is first changes the history.

        Args:
            letter_id: an open or a discarded letter.
            new_task_id: of the copy.
            who: for its history.
            detail: for its history.
            look: `changes.look_at` of the letter as it was shown.
            at_seconds: wall clock.

        Raises:
            LetterChanged: something was done to it since, or it has died again.
            LetterNotOpen: it is in any other state.
            LetterTruncated: the message is not whole.
            NoSuchLetter: no letter of that id.

        """
        ...
