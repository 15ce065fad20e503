"""
One person's data, taken from letters, from their groups' samples and from the records of their keys.

    looked for → discarded, if open → its record's result and texts → the samples of groups → the letter, with its index

The letter comes last: it is what the data is found by. So whoever is killed in between runs it again, and what is left
is found; and two at once do the same, each step of it once.

| the letter | |
|---|---|
| open | discarded, which gives its key free, and erased |
| replaying | refused: its message may have to be sent again; resume it, or wait |
| replayed | erased: its message is out; if it dies again, that is a new letter in this one's place |
| closed, discarded | erased |
| archived | restored, and then as it was |
| any, while the work of its key is under way | refused: what it will leave is not there yet |

A record stays, without its result, so that a duplicate of the work is known for one.

Not covered: see `NOT_COVERED`, which is said to whoever erases.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from celery_safeguards.admission.store import Erasure, RecordKey
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.deadletter.refusals import LetterChanged, LetterNotOpen
from celery_safeguards.deadletter.terms import name_term
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.record import State
from celery_safeguards.printable import clean, counted
from celery_safeguards.replay.discarding import discard
from celery_safeguards.wiring import Wiring

logger = logging.getLogger("celery_safeguards")
_A_TRIP = 200
_UNDER_WAY = "the work of its key is under way: run this again when it is over"
_IS_OVER = frozenset({State.DONE, State.DEAD, State.QUARANTINED})
NOT_COVERED = (
    "messages that wait in a broker or are with a worker, and what follows them",
    "results of Celery's own result backend",
    "logs of workers and of the application, error trackers, and the log of the admin",
    "letters in spool directories of other hosts, or that cannot be read",
    "work that has not died, or whose argument is not searchable: erase it by its key",
    "results of single steps of work that died, which hold back a second effect",
    "ids and keys, by which duplicates are known",
    "backups, replicas, exports, and pages or logs that the store's server has not written over yet",
)
"""What may hold the same data, and is not reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """
    Whose data is erased: letters by their ids, of a group, by the terms of an argument, or by a key.

    Attributes:
        letter_ids: these letters.
        fingerprint: all letters of this group.
        terms: all letters that have one of these.
        key: all letters of this key, and its records in every scope.
        secret: what was searched for, which stands in no trace.

    """

    letter_ids: tuple[str, ...] = ()
    fingerprint: str | None = None
    terms: tuple[str, ...] = ()
    key: str | None = None
    secret: str = ""

    @property
    def how(self) -> str:
        """How it was looked for, without what for."""
        given = (("by a group", self.fingerprint), ("by an argument", self.terms), ("by a key", self.key))
        return next((name for name, value in given if value), "by ids")


@dataclass(slots=True, kw_only=True)
class Found:
    """
    What there is to erase.

    Attributes:
        last_failed_seconds: of each letter, by its id.
        records: of keys, and whether one is there, or was of a letter that is.
        refused: why a letter is not erased, by its id.
        is_cut: whether there are more letters, which were not looked at.

    """

    last_failed_seconds: dict[str, float] = field(default_factory=dict)
    records: dict[RecordKey, bool] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False

    @property
    def letters(self) -> int:
        """How many letters would be erased."""
        return len(self.last_failed_seconds.keys() - self.refused.keys())

    @property
    def keys(self) -> int:
        """How many keys may have a record."""
        return sum(self.records.values())

    def __str__(self) -> str:
        if not self.letters and not self.keys and not self.refused:
            return "nothing: neither a letter nor a record is there"
        kept = f", and not {len(self.refused)} of them that are refused," if self.refused else ""
        of_keys = f" and the results of at most {counted(self.keys, 'key')}" if self.keys else ""
        return f"the content of {counted(self.letters, 'letter')}{kept}{of_keys}"


@dataclass(slots=True, kw_only=True)
class Erased:
    """
    How many letters, records and samples of groups lost what they held.

    Attributes:
        under_way: records of work that is not over, which keep all.
        refused: why letters are not erased, by their ids.

    """

    letters: int = 0
    records: int = 0
    samples: int = 0
    under_way: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        samples = "1 sample of a group" if self.samples == 1 else f"{self.samples} samples of groups"
        return f"{counted(self.letters, 'letter')}, {counted(self.records, 'record')}, {samples}"


def find(app: Any, wanted: Wanted, *, most: int | None = None) -> Found:
    """Return what there is to erase, of so many letters at most; changes nothing."""
    wiring, found = Wiring.of(app), Found()
    for letter in _letters(wiring, wanted, found):
        if letter.erased:
            continue
        if len(found.last_failed_seconds) == most:
            found.is_cut = True
            break
        found.last_failed_seconds[letter.id] = letter.last_failed_seconds
        why = _refusal(wiring, letter)
        if why:
            found.refused[letter.id] = why
        if letter.key is not None and letter.scope is not None:
            found.records[RecordKey(letter.scope, letter.key)] = True
    if wanted.key is not None:
        keys = [RecordKey(scope, wanted.key) for scope in scopes_of(app)]
        there = wiring.admission.read_many(keys)
        found.records = {**{each: each in there for each in keys}, **found.records}
    return found


def erase(app: Any, wanted: Wanted, who: str, reason: str, *, progress: Callable[[], None] = lambda: None) -> Erased:
    """
    Erase the data of one person; it cannot be undone.

    Args:
        app: one that knows its tasks: a key is looked for in their scopes.
        wanted: whose.
        who: for the histories.
        reason: why, for the histories.
        progress: called after each letter.

    Raises:
        ConfigurationError: `who` or `reason` is empty, or names what is to be erased.
        StoreUnavailable: any part was done; run it again.

    Safe when: interrupted, and run again; two do the same at once; workers run.

    """
    for name, text in (("who", who), ("reason", reason)):
        if not text.strip():
            raise ConfigurationError(f"{name}={text!r}: data is erased only with a name and a reason")
        if wanted.secret.strip() and wanted.secret.strip().casefold() in text.casefold():
            raise ConfigurationError(f"{name}: it names what is to be erased, and would keep it")
    wiring = Wiring.of(app)
    if wiring.spool is not None:
        # What lies there would come back when it is brought in.
        wiring.spool.drain(wiring.letters)
    found = find(app, wanted)
    erased = Erased(refused=dict(found.refused))
    ids = [each for each in found.last_failed_seconds if each not in found.refused]
    for first in range(0, len(ids), _A_TRIP):
        some = ids[first : first + _A_TRIP]
        ready = [each for each in some if _prepare(app, each, who, reason, erased)]
        erased.samples += _forget_samples(wiring, set(ready))
        for letter_id in ready:
            _erase_letter(wiring, letter_id, who, reason, found.last_failed_seconds[letter_id], erased)
            progress()
    # Of work that never died, and of a letter that was erased before its record was over.
    for key in found.records:
        outcome = wiring.admission.erase(key)
        erased.records += outcome is Erasure.ERASED
        erased.under_way += outcome is Erasure.UNDER_WAY
    said = "erased, %s: %s, by %s (reason: %s); %s refused"
    logger.warning(said, wanted.how, erased, clean(who), clean(reason), counted(len(erased.refused), "letter"))
    return erased


def scopes_of(app: Any) -> list[str]:
    """Return the scopes of the keys of the tasks that an app knows."""
    plans = [plan for each in app.tasks.values() if (plan := getattr(each, "plan", None)) is not None]
    return sorted({plan.record_key("").scope for plan in plans})


def _letters(wiring: Wiring, wanted: Wanted, found: Found) -> Iterable[Letter]:
    for letter_id in dict.fromkeys(wanted.letter_ids):
        try:
            letter = wiring.letters.get(letter_id)
        except LetterUnreadable as error:
            found.refused[letter_id] = str(error)
            continue
        if letter is None:
            found.refused[letter_id] = "there is no such letter"
        else:
            yield letter
    terms = wanted.terms if wanted.key is None else (name_term(wanted.key),)
    if wanted.fingerprint is None and not terms:
        return
    cursor: str | None = None
    while True:
        page = wiring.letters.list(limit=_A_TRIP, before=cursor, fingerprint=wanted.fingerprint, terms=terms)
        found.refused |= dict.fromkeys(page.unreadable, "it cannot be read")
        # Of a key: an id may be of the same text.
        yield from (each for each in page.letters if wanted.key in (None, each.key))
        cursor = page.next_cursor
        if cursor is None:
            return


def _refusal(wiring: Wiring, letter: Letter) -> str:
    """Return why a letter cannot be erased now; '': it can."""
    if letter.state == "replaying":
        return f"it is replaying as task {letter.replay_task_id}: resume it, or wait until that is over"
    if letter.key is None or letter.scope is None:
        return ""
    record = wiring.admission.read(RecordKey(letter.scope, letter.key))
    return "" if record is None or record.state in _IS_OVER else _UNDER_WAY


def _prepare(app: Any, letter_id: str, who: str, reason: str, erased: Erased) -> bool:
    """Discard a letter that is open, and erase its record; returns whether the letter is next."""
    wiring = Wiring.of(app)
    letter = wiring.letters.get(letter_id)
    if letter is not None and letter.state == "archived":
        wiring.letters.restore([letter_id], who, reason=reason)
        letter = wiring.letters.get(letter_id)
    if letter is None or letter.erased:
        return False
    try:
        if letter.state in {"open", "discarded"}:
            # Also of a discarded one: whoever was killed between its discarding and its key's release finishes it.
            discard(app, letter_id, who, reason)
    except LetterNotOpen as error:
        erased.refused[letter_id] = str(error)
        return False
    if letter.key is not None and letter.scope is not None:
        outcome = wiring.admission.erase(RecordKey(letter.scope, letter.key))
        if outcome is Erasure.UNDER_WAY:
            erased.refused[letter_id] = _UNDER_WAY
            return False
        erased.records += outcome is Erasure.ERASED
    return True


def _forget_samples(wiring: Wiring, letter_ids: set[str]) -> int:
    """Take what these letters have said from whatever groups still say it: one that has moved on left it behind."""
    forgotten, cursor = 0, None
    while letter_ids:
        page = wiring.letters.groups(limit=_A_TRIP, before=cursor)
        for group in page.groups:
            if group.sample and group.sample_letter_id in letter_ids:
                wiring.letters.forget_sample(group.fingerprint, letter_ids)
                forgotten += 1
        cursor = page.next_cursor
        if cursor is None:
            break
    return forgotten


def _erase_letter(
    wiring: Wiring, letter_id: str, who: str, reason: str, last_failed_seconds: float, erased: Erased
) -> None:
    try:
        erased.letters += wiring.letters.erase(letter_id, who, reason, last_failed_seconds)
    except (LetterChanged, LetterNotOpen) as error:
        erased.refused[letter_id] = str(error)
