"""
Dead letters in Redis: one hash for each letter, one sorted set of all by the time of the last failure.

The promise: every change is one script that compares the letter's version, so of any number of writers in any number
of processes each change has one winner, decided by the same functions as in every other store.

    t0 A reads version 5: open       t1 B reads version 5: open
    t2 B writes if 5 → 6: replaying  t3 A writes if 5 → refused; A reads 6, decides again: `LetterNotOpen`

Each write has a version of its own that nobody else can have. When the answer to a write is lost and the client sends
it again, the script finds its own version stored and says "written" once more.

Not covered: an answer that is lost *and* another writer before the second try. The caller is then told of the other
state, which is true by then. Letters never expire. A server that evicts keys or forgets at a restart loses letters.
"""

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

from celery_safeguards._redis import Client, Keys, Script
from celery_safeguards.deadletter import changes, store
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, State
from celery_safeguards.deadletter.steps import LetterSteps
from celery_safeguards.outcome import FailureKind

_READ = Script.of("deadletter/read_letters.lua")
_PAGE = Script.of("deadletter/page_letters.lua")
_BURY = Script.of("deadletter/bury_letter.lua")
_CHANGE = Script.of("deadletter/change_letter.lua")
_MAX_NAME_BYTES = 200
_NAMES_A_TRIP = 200
_LETTERS_A_TRIP = 20
_MAX_TRIPS_A_PAGE = 50

Place = tuple[float, str]
"""Where a letter stands in the list: last failure, stored name."""
Places = list[Place]
Fields = list[list[str | None]]


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

    def bury(self, letter: Letter) -> bool:
        """See `LetterStore.bury`."""
        while True:
            if self._write(_BURY, changes.as_buried(letter)):
                return True
            if self._read(letter.id) is not None:
                return self._apply(letter.id, changes.reburial(letter)) is not None

    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""
        found = self._read(letter_id)
        return None if found is None else found[0]

    def list(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        state: State | None = None,
        task: str | None = None,
        kind: FailureKind | None = None,
    ) -> store.Page:
        """
        See `LetterStore.list`.

        One call looks at no more than about 10,000 letters: a rare filter gets a short page and a cursor.
        """
        changes.require_limit(limit)
        place = None if before is None else changes.from_cursor(before)
        wanted = {
            name: value for name, value in (("state", state), ("task", task), ("kind", kind)) if value is not None
        }
        chosen: Places = []
        for _ in range(_MAX_TRIPS_A_PAGE):
            places, is_end = self._places_after(place)
            chosen += self._matching(places, wanted)
            if len(chosen) > limit:
                chosen = chosen[:limit]
                place = chosen[-1]
                break
            place = None if is_end else places[-1]
            if is_end:
                break
        letters, unreadable = self._read_all([name for _seconds, name in chosen])
        return store.Page(
            letters=letters, next_cursor=None if place is None else changes.to_cursor(*place), unreadable=unreadable
        )

    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        """Return the changed letter; None: there is none, or it stays as it is."""
        while True:
            found = self._read(letter_id)
            if found is None:
                return None
            stored, version = found
            changed = change(stored)
            if changed is None or self._write(_CHANGE, changed, version):
                return changed

    def _write(self, script: Script, letter: Letter, *read_version: str) -> bool:
        name = _stored_name(letter.id)
        keys = [self._keys.letter(name), self._keys.letters]
        fields = [uuid.uuid4().hex, letter.to_json(), letter.state, letter.task, letter.kind]
        score = repr(letter.last_failed_seconds)
        return bool(self._client.run(script, keys, [*fields, score, name, *read_version]))

    def _read(self, letter_id: str) -> tuple[Letter, str] | None:
        ((text, version),) = self._read_fields([_stored_name(letter_id)], ["letter", "version"])
        return None if text is None or version is None else (Letter.from_json(text), version)

    def _read_all(self, names: Sequence[str]) -> tuple[tuple[Letter, ...], tuple[str, ...]]:
        letters: list[Letter] = []
        unreadable: list[str] = []
        # A few at a time: a letter may have many megabytes, and a trip has a time limit.
        for first in range(0, len(names), _LETTERS_A_TRIP):
            some = names[first : first + _LETTERS_A_TRIP]
            for name, (text,) in zip(some, self._read_fields(some, ["letter"]), strict=True):
                try:
                    letters.append(Letter.from_json(text or ""))
                except LetterUnreadable:
                    unreadable.append(name)
        return tuple(letters), tuple(unreadable)

    def _matching(self, places: Places, wanted: dict[str, str]) -> Places:
        if not wanted or not places:
            return places
        found = self._read_fields([name for _seconds, name in places], list(wanted))
        return [place for place, values in zip(places, found, strict=True) if values == list(wanted.values())]

    def _read_fields(self, names: Sequence[str], fields: Sequence[str]) -> Fields:
        keys = [self._keys.letter(name) for name in names]
        found: Fields = self._client.run(_READ, keys, fields)
        return found

    def _places_after(self, place: Place | None) -> tuple[Places, bool]:
        """Return the next places of the list, and whether they are its last."""
        score = "" if place is None else repr(place[0])
        ties, below = self._client.run(_PAGE, [self._keys.letters], [_NAMES_A_TRIP, score])
        # The set orders equal scores by their names' bytes; Lua would compare them by the server's locale.
        later = [tie for tie in _places(ties) if place is not None and _as_bytes(tie[1]) < _as_bytes(place[1])]
        return [*later, *_places(below)], len(below) < 2 * _NAMES_A_TRIP


def _places(flat: Sequence[Any]) -> Places:
    return [(float(score), name) for name, score in zip(flat[::2], flat[1::2], strict=True)]


def _as_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _stored_name(letter_id: str) -> str:
    """Return the id as it is, or a readable head and a digest where Redis or a person could not handle it."""
    if letter_id.isprintable() and len(letter_id.encode()) <= _MAX_NAME_BYTES:
        return letter_id
    digest = hashlib.sha256(_as_bytes(letter_id)).hexdigest()
    return f"{''.join(filter(str.isprintable, letter_id))[:40]}~{digest}"
