"""How a letter stops asking for attention: over, put away, emptied or removed."""

from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.errors import SafeguardsError


class EndsLetters(Protocol):
    """Closes, gives up, puts away, empties and removes letters, and groups that have none."""

    def close(self, letter_id: str, note: str, at_seconds: float | None = None) -> bool:
        """
        Close an open, replaying or replayed letter: the same operation has succeeded.

        So is an archived one, if it was put away before its work was over.

        Returns:
            Whether it is closed by this call. False: there is none, or it is closed or discarded.

        """
        ...

    def discard(self, letter_id: str, who: str, reason: str, at_seconds: float | None = None) -> Letter:
        """
        Give up an open letter; it stays in the store, as discarded.

        Raises:
            ConfigurationError: `who` or `reason` is empty.
            LetterNotOpen: it is in any other state, above all replaying.
            NoSuchLetter: no letter of that id.

        """
        ...

    def archive(
        self, letter_ids: Sequence[str], who: str, reason: str, at_seconds: float | None = None
    ) -> Mapping[str, Letter | SafeguardsError]:
        """
        Put letters away: they ask for no attention, and can come back.

        Nothing is given up by it: what is not over still can be closed by a success, reopened by another failure, and
        keeps its key.

        Returns:
            What became of each: the letter, or why it was left as it is: `LetterNotOpen` (replaying, or archived
            already), `NoSuchLetter` or `LetterUnreadable`. After `StoreUnavailable` any number of them may have been
            put away.

        Raises:
            ConfigurationError: `who` or `reason` is empty.

        """
        ...

    def restore(
        self, letter_ids: Sequence[str], who: str, at_seconds: float | None = None, *, reason: str = ""
    ) -> Mapping[str, Letter | SafeguardsError]:
        """
        Bring archived letters back to where each was when it was put away; the reason is kept in their histories.

        Returns:
            As `archive`; `LetterNotOpen`: it is not archived.

        Raises:
            ConfigurationError: `who` is empty.

        """
        ...

    def erase(
        self, letter_id: str, who: str, reason: str, last_failed_seconds: float, at_seconds: float | None = None
    ) -> bool:
        """
        Take from a letter that is over, or whose replay is out, all that its message and its error said.

        It stays in the store and in its group, with its ids, its times and who did what; it is found by its ids alone,
        and nobody can send it again. See `changes.erasing`.

        Args:
            letter_id: a replayed, closed or discarded letter.
            who: for its history.
            reason: for its history.
            last_failed_seconds: its last failure, as it was looked at.
            at_seconds: wall clock.

        Returns:
            Whether it is erased by this call. False: there is none, or it is erased already.

        Raises:
            ConfigurationError: `who` or `reason` is empty.
            LetterChanged: it has died again since.
            LetterNotOpen: it is open, or replaying.

        """
        ...

    def forget_sample(self, fingerprint: str, letter_ids: Container[str]) -> None:
        """Take from a group what its newest failure said, if one of these letters has said it."""
        ...

    def remove(self, letter_ids: Sequence[str], before_seconds: float) -> int:
        """
        Remove letters, each with what it is found by and with its count in its group, if its work is over since a time.

        Each is looked at by the step that removes it: one that is not over, or came to its end later, stays as it is.

        Args:
            letter_ids: those that `over` has found.
            before_seconds: wall clock; they were over before that.

        Returns:
            How many were removed by this call; of several at once each letter is counted by one.

        """
        ...

    def remove_group(self, fingerprint: str, before_seconds: float) -> bool:
        """
        Remove a group that has no letters any more, if nothing of it must stay; see `retention.is_forgotten`.

        Returns:
            Whether it is removed by this call.

        """
        ...
