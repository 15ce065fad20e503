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

from typing import Protocol

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.port.ending import EndsLetters
from celery_safeguards.deadletter.port.grouping import GroupsLetters
from celery_safeguards.deadletter.port.reading import ReadsLetters
from celery_safeguards.deadletter.port.replaying import ReplaysLetters


class LetterStore(ReadsLetters, ReplaysLetters, EndsLetters, GroupsLetters, Protocol):
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

    def add_note(
        self, letter_id: str, what: str, who: str | None, detail: str = "", at_seconds: float | None = None
    ) -> Letter:
        """
        Add a line to a letter's history, in any state.

        Raises:
            NoSuchLetter: no letter of that id.

        """
        ...
