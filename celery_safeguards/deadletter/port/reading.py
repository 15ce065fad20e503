"""Letters and groups as they are listed and looked at: nothing here changes one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from celery_safeguards.deadletter.group import GroupStatus, LetterGroup
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State
from celery_safeguards.outcome import FailureKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Letters, newest failure first."""

    letters: tuple[Letter, ...]
    next_cursor: str | None = None
    """Give it as `before` to go on; None: that was all. A page with few letters, or none, may still have one."""

    unreadable: tuple[str, ...] = ()
    """Letters that are stored but cannot be read, by their stored names: damaged, or of a newer version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """Groups of letters, newest failure first."""

    groups: tuple[LetterGroup, ...]
    next_cursor: str | None = None
    """See `Page`."""

    unreadable: tuple[str, ...] = ()
    """Groups that are stored but cannot be read, by their fingerprints."""


class ReadsLetters(Protocol):
    """Reads letters, and the groups that they are counted in."""

    def get(self, letter_id: str) -> Letter | None:
        """
        Return a letter, or None.

        Raises:
            LetterUnreadable: it is stored, but damaged or of a newer version.

        """
        ...

    def get_many(self, letter_ids: Sequence[str]) -> Mapping[str, Letter | LetterUnreadable]:
        """Return those letters that are there, by their ids; one that cannot be read: why."""
        ...

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
        """
        Return letters, the newest failure first.

        Args:
            limit: letters at most.
            before: cursor of an earlier page.
            state: in this state.
            task: of this task.
            kind: of this kind of failure.
            fingerprint: of one group.
            terms: that have one of these, see `deadletter.terms`; found by an index.

        A walk by cursor shows every letter that stays as it is once. One that dies again meanwhile moves to the
        front: it may be shown twice, or only to the next walk.

        Raises:
            ConfigurationError: `before` is no cursor of a page, or `limit` is below 1.

        """
        ...

    def over(self, before_seconds: float, *, limit: int = 50, before: str | None = None) -> Page:
        """
        Return letters whose work came to its end before a time, the latest first; see `retention.over_since`.

        Read from an index of their own, so that what is not over costs nothing. Letters that an older version has
        closed or discarded are in it from their next change on, or from `regroup` on.

        Args:
            before_seconds: wall clock.
            limit: letters at most.
            before: cursor of an earlier page.

        """
        ...

    def groups(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        status: GroupStatus | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
    ) -> GroupPage:
        """
        Return groups of letters, the newest failure first; cursors and errors are those of `list`.

        Every letter is counted in one group by the very step that writes it.
        """
        ...

    def get_group(self, fingerprint: str) -> LetterGroup | None:
        """
        Return a group, or None.

        Raises:
            LetterUnreadable: it is stored, but damaged or of a newer version.

        """
        ...
