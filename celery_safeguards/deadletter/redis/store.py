"""
Dead letters in Redis: one hash for each letter and each group, sorted sets of them by the time of the last failure.

The promise: every change is one script that compares the letter's version, so of any number of writers in any number
of processes each change has one winner, decided by the same functions as in every other store; and what a group
counts and what a letter is found by is written by that same script.

    t0 A reads version 5: open       t1 B reads version 5: open
    t2 B writes if 5 → 6: replaying  t3 A writes if 5 → refused; A reads 6, decides again: `LetterNotOpen`

Each write has a version of its own that nobody else can have. When the answer to a write is lost and the client sends
it again, the script finds its own version stored and says "written" once more.

Not covered: an answer that is lost *and* another writer before the second try. The caller is then told of the other
state, which is true by then. Letters never expire: those that are over are removed by `remove`, and by no TTL, which
would go on under a letter that died again. A server that evicts keys or forgets at a restart loses letters.
"""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from celery_safeguards._redis import Client, Keys, Script
from celery_safeguards.deadletter import changes, group, retention
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State, letter_or_error
from celery_safeguards.deadletter.port.reading import GroupPage, Page
from celery_safeguards.deadletter.redis import groups
from celery_safeguards.deadletter.redis.pages import Places, as_bytes, page_of
from celery_safeguards.deadletter.steps import LetterSteps
from celery_safeguards.deadletter.terms import terms_of
from celery_safeguards.outcome import FailureKind

_READ = Script.of("deadletter/redis/read_fields.lua")
_WRITE = Script.of("deadletter/redis/write_letter.lua")
_REMOVE = Script.of("deadletter/redis/remove_letter.lua")
_MAX_NAME_BYTES = 200
_LETTERS_A_TRIP = 20

Fields = list[list[str | None]]


class _AsRead(NamedTuple):
    """How a letter was stored when it was read: its version, the group that counts it, and the terms that find it."""

    version: str
    counted_in: str | None = None
    terms: str = ""


class RedisLetterStore(LetterSteps):
    """
    A `LetterStore` in Redis.

    Args:
        client: used for scripts only.
        keys: the namespace.

    Safe when: used by several threads and processes; used before and after a fork.

    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._groups = groups.RedisGroups(client, keys)

    def bury(self, letter: Letter) -> bool:
        """See `LetterStore.bury`."""
        while True:  # a purge may remove it after any look at it: then it is buried anew
            stored, as_read = self._read(letter.id) or (None, None)
            changed = changes.as_buried(letter) if stored is None else changes.reburial(letter)(stored)
            if changed is None:
                return False
            if self._write(changed, as_read, has_died=True):
                return True

    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""
        found = self._read(letter_id)
        return None if found is None else found[0]

    def get_many(self, letter_ids: Sequence[str]) -> Mapping[str, Letter | LetterUnreadable]:
        """See `LetterStore.get_many`."""
        names = [_stored_name(letter_id) for letter_id in letter_ids]
        texts = zip(letter_ids, self._texts(names), strict=True)
        return {letter_id: letter_or_error(text) for letter_id, text in texts if text is not None}

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
        See `LetterStore.list`.

        One call looks at no more than about 10,000 letters: a rare filter gets a short page and a cursor.
        """
        given = {"state": state, "task": task, "kind": kind, "group": fingerprint if terms else None}
        wanted = {name: str(value) for name, value in given.items() if value is not None}
        keys = [self._keys.term(term) for term in terms]
        if not keys:
            keys = [self._keys.letters if fingerprint is None else self._keys.group_letters(fingerprint)]
        names, cursor = page_of(self._client, keys, limit, before, lambda places: self._matching(places, wanted))
        letters, unreadable = self._read_all(names)
        return Page(letters=letters, next_cursor=cursor, unreadable=unreadable)

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
        return self._groups.page(limit, before, status=status, task=task, kind=kind)

    def over(self, before_seconds: float, *, limit: int = 50, before: str | None = None) -> Page:
        """See `LetterStore.over`."""
        place = changes.to_cursor(before_seconds, "") if before is None else before
        names, cursor = page_of(self._client, [self._keys.letters_over], limit, place)
        letters, unreadable = self._read_all(names)
        return Page(letters=letters, next_cursor=cursor, unreadable=unreadable)

    def remove(self, letter_ids: Sequence[str], before_seconds: float) -> int:
        """See `LetterStore.remove`."""
        return sum(self._remove(letter_id, before_seconds) for letter_id in letter_ids)

    def remove_group(self, fingerprint: str, before_seconds: float) -> bool:
        """See `LetterStore.remove_group`."""
        return self._groups.remove(fingerprint, before_seconds)

    def _remove(self, letter_id: str, before_seconds: float) -> bool:
        try:
            found = self._read(letter_id)
        except LetterUnreadable:
            return False
        if found is None or not retention.is_over(found[0], before_seconds):
            return False
        version, counted_in, found_by = found[1]
        name, group_of_it = _stored_name(letter_id), counted_in or ""
        keys = [self._keys.letter(name), self._keys.letters, self._keys.letters_over]
        keys += [self._keys.group(group_of_it), self._keys.group_letters(group_of_it)]
        keys += [self._keys.term(term) for term in found_by.split()]
        return bool(self._client.run(_REMOVE, keys, [version, name, int(bool(counted_in))]))

    def get_group(self, fingerprint: str) -> group.LetterGroup | None:
        """See `LetterStore.get_group`."""
        return self._groups.get(fingerprint)

    def _apply_to_group(self, fingerprint: str, change: group.GroupChange) -> group.LetterGroup | None:
        return self._groups.apply(fingerprint, change)

    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        while True:
            found = self._read(letter_id)
            if found is None:
                return None
            stored, as_read = found
            changed = change(stored)
            if changed is None or self._write(changed, as_read, has_died=False):
                return changed

    def _write(self, letter: Letter, as_read: _AsRead | None = None, *, has_died: bool) -> bool:
        """Write a letter unless it is another by now than was read; returns whether it is written."""
        version, counted_in, found_by = as_read or _AsRead("")
        name = _stored_name(letter.id)
        keys = [self._keys.letter(name), self._keys.letters, self._keys.groups, self._keys.letters_over]
        for fingerprint in (letter.fingerprint, counted_in):
            if fingerprint:
                keys += [self._keys.group(fingerprint), self._keys.group_letters(fingerprint)]
        terms = terms_of(letter)
        dropped = [each for each in found_by.split() if each not in terms]
        keys += [self._keys.term(term) for term in (*terms, *dropped)]
        fields = [uuid.uuid4().hex, letter.to_json(), letter.state, letter.task, letter.kind]
        score = repr(letter.last_failed_seconds)
        hour = str(group.hour_of(letter)) if has_died else ""
        tally: Sequence[str | int] = [letter.fingerprint, groups.head_of(letter), hour, group.MOST_HOURS]
        over = retention.over_since(letter)
        places: Sequence[str | int] = ["" if over is None else repr(over), " ".join(terms), len(terms), len(dropped)]
        release: Sequence[str | int] = [group.release_of(letter), group.MOST_RELEASES]
        return bool(self._client.run(_WRITE, keys, [*fields, score, name, version, *tally, *places, *release]))

    def _read(self, letter_id: str) -> tuple[Letter, _AsRead] | None:
        names = ["letter", "version", "group", "terms"]
        ((text, version, counted_in, terms),) = self._read_fields([_stored_name(letter_id)], names)
        if text is None or version is None:
            return None
        return Letter.from_json(text), _AsRead(version, counted_in, terms or "")

    def _read_all(self, names: Sequence[str]) -> tuple[tuple[Letter, ...], tuple[str, ...]]:
        # None: it was removed since its name was read.
        texts = zip(names, self._texts(names), strict=True)
        found = [(name, letter_or_error(text)) for name, text in texts if text is not None]
        unreadable = tuple(name for name, each in found if isinstance(each, LetterUnreadable))
        return tuple(each for _, each in found if isinstance(each, Letter)), unreadable

    def _texts(self, names: Sequence[str]) -> Iterator[str | None]:
        # A few at a time: a letter may have many megabytes, and a trip has a time limit.
        for first in range(0, len(names), _LETTERS_A_TRIP):
            for (text,) in self._read_fields(names[first : first + _LETTERS_A_TRIP], ["letter"]):
                yield text

    def _matching(self, places: Places, wanted: dict[str, str]) -> Places:
        if not wanted:
            return places
        found = self._read_fields([name for _seconds, name in places], list(wanted))
        return [place for place, values in zip(places, found, strict=True) if values == list(wanted.values())]

    def _read_fields(self, names: Sequence[str], fields: Sequence[str]) -> Fields:
        keys = [self._keys.letter(name) for name in names]
        found: Fields = self._client.run(_READ, keys, fields)
        return found


def _stored_name(letter_id: str) -> str:
    """Return the id as it is, or a readable head and a digest where Redis or a person could not handle it."""
    if letter_id.isprintable() and len(letter_id.encode()) <= _MAX_NAME_BYTES:
        return letter_id
    digest = hashlib.sha256(as_bytes(letter_id)).hexdigest()
    return f"{''.join(filter(str.isprintable, letter_id))[:40]}~{digest}"
