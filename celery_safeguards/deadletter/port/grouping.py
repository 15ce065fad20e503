"""What people say of a group of letters, and how older letters come to be counted in theirs."""

from collections.abc import Callable
from typing import Protocol

from celery_safeguards.deadletter.group import GroupStatus, LetterGroup
from celery_safeguards.deadletter.letter import Letter


def as_it_is(letter: Letter) -> Letter:
    """Return a letter unchanged."""
    return letter


class GroupsLetters(Protocol):
    """Keeps what people say of groups, and counts letters of older versions in them."""

    def declare_group(
        self,
        fingerprint: str,
        status: GroupStatus,
        who: str,
        reason: str = "",
        *,
        failures_seen: int | None = None,
        at_seconds: float | None = None,
    ) -> LetterGroup:
        """
        Say how a group stands; a failure that comes later reopens a resolved one.

        Args:
            fingerprint: of the group.
            status: how it stands.
            who: for its history.
            reason: for its history.
            failures_seen: how many failures it had when `who` looked at it; None: whatever has come since.
            at_seconds: wall clock.

        Raises:
            ConfigurationError: `who` is empty.
            GroupHasMoved: letters of it have died since.
            NoSuchGroup: no group of that fingerprint.

        """
        ...

    def assign_group(self, fingerprint: str, assignee: str, who: str, at_seconds: float | None = None) -> LetterGroup:
        """Make a group somebody's, or with `""` nobody's; raises as `declare_group`."""
        ...

    def annotate_group(self, fingerprint: str, note: str, who: str, at_seconds: float | None = None) -> LetterGroup:
        """Replace a group's note, `MOST_NOTE_CHARS` characters at most; raises as `declare_group`."""
        ...

    def regroup(self, letter_id: str, indexed: Callable[[Letter], Letter] = as_it_is) -> bool:
        """
        Count a letter of an older version in its group, and write what it is found by into the index.

        Args:
            letter_id: the letter.
            indexed: gives it the terms that its arguments have now.

        Returns:
            Whether there is such a letter.

        Safe when: called again, or on a letter that is counted already.
        """
        ...
