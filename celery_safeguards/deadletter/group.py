"""
Letters of one cause as one group: how many, since when, and what people have said of it.

    first failure            acknowledge               resolve               a letter of it dies
   ───────────────▶  open  ──────────────▶ acknowledged ──────▶ resolved ──────────────────────▶ open, "reopened"
                       └── mute ──▶ muted: stays muted, whatever fails

The promise: each letter is counted in one group and one state, in the same step that writes the letter; so a group's
numbers are kept, not computed, and a page of groups costs the same with ten letters or a million. So are the releases
in which it has failed: which one it came with, and in which it was back after it was resolved.

The race that `failures_seen` decides, a person against a failure:

    t0 a person reads the group: 41 failures     t1 a letter of it dies: 42     t2 the person says "resolved"
    without it: the failure of t1 lies in a resolved group, and nobody looks    with it: refused, `GroupHasMoved`

Not covered: letters that were written before groups were; each is counted at its next change. Nor which release a
failure was of that nobody has named: it is counted in none.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from celery_safeguards.conf import MOST_RELEASE_CHARS
from celery_safeguards.deadletter.history import MAX_HISTORY, HistoryEntry, history_of
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State
from celery_safeguards.deadletter.text import clean_text
from celery_safeguards.deadletter.wire import dumps
from celery_safeguards.errors import ConfigurationError, SafeguardsError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.printable import counted
from celery_safeguards.stored_types import known_fields, require_row, require_types

GroupStatus = Literal["open", "acknowledged", "resolved", "muted"]
STATUSES: tuple[GroupStatus, ...] = ("open", "acknowledged", "resolved", "muted")
HOUR_SECONDS = 3_600
MOST_HOURS = 168
"""How many hours with failures a group remembers: a week in which every hour has one."""

MOST_RELEASES = 20
"""How many releases a group remembers: those that failed last."""

MOST_NOTE_CHARS = 4_000
_SAMPLE_CHARS = 300


class NoSuchGroup(SafeguardsError):
    """Raised when a group that is to be changed is not in the store."""


class GroupHasMoved(SafeguardsError):
    """Raised when letters of a group have died since the person who changes it has looked at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFailures:
    """How often a group has failed in one release, and when."""

    release: str
    failures: int
    first_failed_seconds: float
    last_failed_seconds: float

    @property
    def plain(self) -> list[Any]:
        """It as stores write it."""
        return [self.release, self.failures, self.first_failed_seconds, self.last_failed_seconds]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> "ReleaseFailures":
        """Read what `plain` has made of it; raises `TypeError` or `ValueError` if it is none."""
        require_row(cls, plain)
        release, failures, first, last = plain
        return cls(release=release, failures=failures, first_failed_seconds=first, last_failed_seconds=last)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroup:
    """
    All letters of one fingerprint.

    Attributes:
        fingerprint: of `Letter.fingerprint`.
        task: of all of them, as kind and error_type are.
        kind: see `FailureKind`.
        error_type: path of the error's class; may be empty.
        sample: beginning of the newest failure's message.
        sample_letter_id: the letter of that failure.
        first_failed_seconds: wall clock, as the next.
        last_failed_seconds: of the newest failure.
        failures: how often a letter of it has died; one that dies again counts again.
        counts: how many letters are in each state now.
        hours: failures by hours since the epoch, of the last `MOST_HOURS` hours that had any.
        first_release: of the first failure; empty: nobody has named it.
        releases: the `MOST_RELEASES` that failed last, the newest last.
        status: what people say of it; a failure reopens a resolved one.
        reopened_seconds: when a failure last did that.
        reopened_release: of that failure; empty: nobody has named it.
        assignee: whose it is; may be empty.
        note: what people know of it.
        history: who changed what of these three, the newest last.

    """

    fingerprint: str
    task: str
    kind: FailureKind
    error_type: str
    sample: str = ""
    sample_letter_id: str = ""
    first_failed_seconds: float
    last_failed_seconds: float
    failures: int = 0
    counts: Mapping[State, int] = field(default_factory=dict)
    hours: Mapping[int, int] = field(default_factory=dict)
    first_release: str = ""
    releases: tuple[ReleaseFailures, ...] = ()
    status: GroupStatus = "open"
    reopened_seconds: float | None = None
    reopened_release: str = ""
    assignee: str = ""
    note: str = ""
    history: tuple[HistoryEntry, ...] = ()

    @property
    def letters(self) -> int:
        """How many letters it has, in whatever state."""
        return sum(self.counts.values())

    def to_json(self) -> str:
        """Return it as ASCII text."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain |= {"history": [each.plain for each in self.history], "releases": [each.plain for each in self.releases]}
        return dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> "LetterGroup":
        """
        Read a group.

        Raises:
            LetterUnreadable: the text is damaged, or written by a newer version.

        """
        try:
            given = known_fields(cls, json.loads(text))
            given["kind"] = FailureKind(given["kind"])
            given["status"] = status_of(given["status"])
            given["hours"] = {int(hour): count for hour, count in given["hours"].items()}
            given["history"] = history_of(given["history"])
            given["releases"] = tuple(ReleaseFailures.of(each) for each in given.get("releases", ()))
            require_types(cls, given)
            return cls(**given)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise LetterUnreadable(f"this is no group: {type(error).__name__}: {error}") from error

    def noted(self, at_seconds: float, what: str, who: str, detail: str = "") -> "LetterGroup":
        """Return it with one more line of history; the oldest beyond `MAX_HISTORY` is dropped."""
        entry = HistoryEntry(at_seconds=at_seconds, what=what, who=who, detail=detail)
        return replace(self, history=(*self.history, entry)[-MAX_HISTORY:])


GroupChange = Callable[[LetterGroup], LetterGroup]
"""Decides what a stored group becomes, or raises."""


def group_of(letter: Letter) -> LetterGroup:
    """Return the group that a letter would begin, with nothing counted yet."""
    return LetterGroup(
        fingerprint=letter.fingerprint,
        task=letter.task,
        kind=letter.kind,
        error_type=letter.error_type,
        sample=sample_of(letter),
        sample_letter_id=letter.id,
        first_failed_seconds=letter.last_failed_seconds,
        last_failed_seconds=letter.last_failed_seconds,
        first_release=release_of(letter),
    )


def status_of(text: str) -> GroupStatus:
    """Return a status that was written; raises `ValueError` if it is none."""
    for status in STATUSES:
        if text == status:
            return status
    raise ValueError(f"status {text!r} is none of {', '.join(STATUSES)}")


def sample_of(letter: Letter) -> str:
    """Return what a group says of its newest failure."""
    error, reason = letter.shown_error or letter.error_message, letter.shown_reason or letter.reason
    return clean_text(error or reason, _SAMPLE_CHARS)


def release_of(letter: Letter) -> str:
    """Return the release that a letter's failure is counted in; empty: in none."""
    return clean_text(letter.release, MOST_RELEASE_CHARS)


def in_order(releases: Iterable[ReleaseFailures]) -> tuple[ReleaseFailures, ...]:
    """Return releases as a group has them: the one that failed last is last."""
    return tuple(sorted(releases, key=lambda each: (each.last_failed_seconds, each.release)))


def hour_of(letter: Letter) -> int:
    """Return the hour of a letter's last failure, counted from the epoch."""
    return int(letter.last_failed_seconds // HOUR_SECONDS)


def without(group: LetterGroup, state: State) -> LetterGroup:
    """Return a group that a letter in this state has left."""
    return replace(group, counts=_counted(group.counts, state, -1))


def holding(group: LetterGroup, letter: Letter, *, has_died: bool) -> LetterGroup:
    """
    Return a group that has come to hold a letter in its state.

    Args:
        group: the stored one, or `group_of` the letter.
        letter: as it is stored from now on.
        has_died: whether this step is a failure; otherwise the letter only changes its state.

    """
    group = replace(group, counts=_counted(group.counts, letter.state, 1))
    if not has_died:
        return group
    hour, at_seconds = hour_of(letter), letter.last_failed_seconds
    hours = {**group.hours, hour: group.hours.get(hour, 0) + 1}
    is_reopened, is_newest = group.status == "resolved", at_seconds >= group.last_failed_seconds
    release, is_oldest = release_of(letter), at_seconds < group.first_failed_seconds
    return replace(
        group,
        sample=sample_of(letter) if is_newest else group.sample,
        sample_letter_id=letter.id if is_newest else group.sample_letter_id,
        first_failed_seconds=min(group.first_failed_seconds, at_seconds),
        last_failed_seconds=max(group.last_failed_seconds, at_seconds),
        failures=group.failures + 1,
        hours={each: hours[each] for each in sorted(hours)[-MOST_HOURS:]},
        first_release=release if is_oldest else group.first_release,
        releases=_with_failure(group.releases, release, at_seconds) if release else group.releases,
        status="open" if is_reopened else group.status,
        reopened_seconds=at_seconds if is_reopened else group.reopened_seconds,
        reopened_release=release if is_reopened else group.reopened_release,
    )


def declared(status: GroupStatus, who: str, reason: str, failures_seen: int | None, at_seconds: float) -> GroupChange:
    """Return the change by which a person says how a group stands; see `LetterStore.declare_group`."""
    _require_name(who)

    def change(group: LetterGroup) -> LetterGroup:
        if failures_seen is not None and group.failures > failures_seen:
            new = group.failures - failures_seen
            raise GroupHasMoved(f"group {group.fingerprint} has failed {counted(new, 'time')} since it was looked at")
        return replace(group.noted(at_seconds, status, who, reason), status=status)

    return change


def assigned(assignee: str, who: str, at_seconds: float) -> GroupChange:
    """Return the change by which a group becomes somebody's, or nobody's."""
    _require_name(who)
    assignee = clean_text(assignee.strip(), 100)
    return lambda group: replace(group.noted(at_seconds, "assigned", who, assignee), assignee=assignee)


def annotated(note: str, who: str, at_seconds: float) -> GroupChange:
    """Return the change by which a person writes down what is known of a group; the old note stays in the history."""
    _require_name(who)
    if len(note) > MOST_NOTE_CHARS:
        raise ConfigurationError(f"a note has at most {MOST_NOTE_CHARS} characters, this one has {len(note)}")
    note = clean_text(note.strip(), MOST_NOTE_CHARS)

    def change(group: LetterGroup) -> LetterGroup:
        return replace(group.noted(at_seconds, "noted", who, f"was: {group.note}" if group.note else ""), note=note)

    return change


def without_sample(letter_ids: Container[str]) -> GroupChange:
    """Return the change by which a group forgets what its newest failure said, if that was one of these letters."""
    return lambda group: replace(group, sample="") if group.sample_letter_id in letter_ids else group


def _with_failure(releases: Sequence[ReleaseFailures], release: str, at_seconds: float) -> tuple[ReleaseFailures, ...]:
    new = ReleaseFailures(release=release, failures=0, first_failed_seconds=at_seconds, last_failed_seconds=at_seconds)
    before = next((each for each in releases if each.release == release), new)
    counted = replace(
        before,
        failures=before.failures + 1,
        first_failed_seconds=min(before.first_failed_seconds, at_seconds),
        last_failed_seconds=max(before.last_failed_seconds, at_seconds),
    )
    return in_order([*(each for each in releases if each.release != release), counted])[-MOST_RELEASES:]


def _counted(counts: Mapping[State, int], state: State, by: int) -> Mapping[State, int]:
    changed = {**counts, state: counts.get(state, 0) + by}
    return {each: count for each, count in changed.items() if count}


def _require_name(who: str) -> None:
    if not who.strip():
        raise ConfigurationError(f"who={who!r}: a group is changed under a name")
