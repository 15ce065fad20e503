"""
Where dead letters are kept: the port, and the decisions that every store shares.

The promise: one failure is one letter; a letter is replayed by one person at a time, under one task id; a replay that
dies again reopens its own letter instead of writing another.

        bury                        begin_replay              mark_replayed
    ──────────▶  open  ───────────────────────▶  replaying  ─────────────────▶  replayed
                 │  ▲                              │   │ ▲                         │
         discard │  │ bury by a newer burial       │   └─┘ resume_replay           │
                 ▼  └──────────────(from any state)┴───────────────────────────────┘
            discarded                close (the same operation succeeded): open, replaying, replayed ──▶ closed

                                       archive
    open, replayed, closed, discarded ─────────▶ archived    put away: it remembers where it was, and `restore` brings
                                      ◀─────────             it back there; bury and close find it as if it still were
                                       restore

The race that `burial` decides, a slow first burier against a replay:

    t0 A and B both bury burial 7; A is slow    t1 B writes the letter: open    t2 a person begins a replay: replaying
    t3 A writes burial 7: not newer than what is stored → nothing changes, the replay goes on
    t4 the replay dies as burial 9 → newer: the letter is open again, with the new error and the whole history

A letter that is closed or discarded is over. It is kept for a time, and then removed by `remove`; see
`deadletter.retention`.

Not covered: whether the replayed message takes effect once. That is the record's business, under the original key.

`deadletter.changes` decides; a store applies it under its own lock or compare-and-set.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from celery_safeguards.deadletter.group import GroupStatus, LetterGroup
from celery_safeguards.deadletter.letter import HistoryEntry, Letter, LetterUnreadable, State
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.outcome import FailureKind


class NoSuchLetter(SafeguardsError):
    """Raised when a letter that is to be changed is not in the store."""


class LetterNotOpen(SafeguardsError):
    """
    Raised when a step needs a letter in another state: somebody else was faster, or it is over.

    Args:
        letter_id: the letter.
        state: the state it is in.
        replay_task_id: the id already allocated to its replay, if any.
        hint: what to do about it, or who has done it.

    """

    def __init__(self, letter_id: str, state: State, replay_task_id: str | None = None, hint: str = "") -> None:
        super().__init__(letter_id, state, replay_task_id, hint)
        self.letter_id = letter_id
        self.state = state
        self.replay_task_id = replay_task_id
        self.hint = hint

    def __str__(self) -> str:
        under = f", as task {self.replay_task_id}" if self.replay_task_id else ""
        hint = f": {self.hint}" if self.hint else ""
        return f"letter {self.letter_id} is {self.state}{under}{hint}"


class LetterChanged(SafeguardsError):
    """
    Raised when something was done to a letter, or it has died again, since a person looked at it: nothing was changed.

    Args:
        letter_id: the letter.
        last: what was done last, in words.

    """

    def __init__(self, letter_id: str, last: str = "") -> None:
        super().__init__(letter_id, last)
        self.letter_id = letter_id
        self.last = last

    def __str__(self) -> str:
        last = f", last: {self.last}" if self.last else ""
        return f"letter {self.letter_id} has changed since it was looked at{last}: look at it again"


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


def as_it_is(letter: Letter) -> Letter:
    """Return a letter unchanged."""
    return letter


class LetterStore(Protocol):
    """
    Keeps letters, each change of one letter at once or not at all.

    Every method raises `StoreUnavailable` when the store does not answer; a change may then have been made or not.
    Times are wall clock; `at_seconds=None` means now.

    Safe when: used by many threads and processes at once; a call is made again after `StoreUnavailable`, where
    `begin_replay` then answers `LetterNotOpen` with the caller's own task id: go on by `resume_replay`.
    """

    def bury(self, letter: Letter) -> bool:
        """
        Write a letter as open, unless it is there.

        A letter of the same id with a lower `burial` is reopened: new message and error, no replay, the first failure's
        time kept, both histories and one line more. The same or a higher `burial` stays untouched, so a slow second
        writer never reopens what is being replayed. Work without a fence (`burial` 0) reopens its letter only when
        it is the very replay that the letter allocated, and that letter is replaying or replayed.

        Returns:
            True if it was written or reopened; False if the letter exists already: the burial is done.

        """
        ...

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

    def add_note(
        self, letter_id: str, what: str, who: str | None, detail: str = "", at_seconds: float | None = None
    ) -> Letter:
        """
        Add a line to a letter's history, in any state.

        Raises:
            NoSuchLetter: no letter of that id.

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
