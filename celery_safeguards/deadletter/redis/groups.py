"""
Groups of dead letters in Redis.

`write_letter.lua` counts; what a person says is written only as the group was read: neither a failure nor another
person came between, or it is decided anew.
"""

import uuid
from collections.abc import Sequence

from celery_safeguards._redis import Client, Keys, Script
from celery_safeguards.deadletter.group import (
    GroupChange,
    LetterGroup,
    ReleaseFailures,
    in_order,
    sample_of,
    status_of,
)
from celery_safeguards.deadletter.history import history_of
from celery_safeguards.deadletter.letter import STATES, Letter, LetterUnreadable
from celery_safeguards.deadletter.port.reading import GroupPage
from celery_safeguards.deadletter.redis.pages import Places, page_of
from celery_safeguards.deadletter.retention import is_forgotten
from celery_safeguards.deadletter.wire import dumps, loads
from celery_safeguards.outcome import FailureKind
from celery_safeguards.stored_types import require_types

_READ = Script.of("deadletter/redis/read_fields.lua")
_CHANGE = Script.of("deadletter/redis/change_group.lua")
_REMOVE = Script.of("deadletter/redis/remove_group.lua")
_HOUR, _RELEASE = "hour:", "release:"


class RedisGroups:
    """The groups of one namespace; see `RedisLetterStore`."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def get(self, fingerprint: str) -> LetterGroup | None:
        """See `LetterStore.get_group`."""
        (fields,) = self._read([fingerprint])
        return _group(fingerprint, fields) if fields else None

    def page(self, limit: int, before: str | None, **wanted: str | None) -> GroupPage:
        """See `LetterStore.groups`."""
        found: dict[str, LetterGroup | None] = {}

        def matching(places: Places) -> Places:
            names = [name for _seconds, name in places]
            for name, fields in zip(names, self._read(names), strict=True):
                if not fields:
                    continue  # it was removed since its name was read
                try:
                    group = _group(name, fields)
                except LetterUnreadable:
                    found[name] = None
                    continue
                if all(value in (None, getattr(group, field)) for field, value in wanted.items()):
                    found[name] = group
            return [place for place in places if place[1] in found]

        names, cursor = page_of(self._client, [self._keys.groups], limit, before, matching)
        return GroupPage(
            groups=tuple(group for name in names if (group := found[name]) is not None),
            next_cursor=cursor,
            unreadable=tuple(name for name in names if found[name] is None),
        )

    def apply(self, fingerprint: str, change: GroupChange) -> LetterGroup | None:
        """Change a group as it is stored; None: there is none."""
        while True:
            (fields,) = self._read([fingerprint])
            if not fields:
                return None
            changed = change(_group(fingerprint, fields))
            read = [fields.get("saying", ""), fields.get("failures", "0")]
            written = [changed.status, _desk_of(changed), _head_of(changed)]
            if self._client.run(_CHANGE, [self._keys.group(fingerprint)], [uuid.uuid4().hex, *read, *written]):
                return changed

    def remove(self, fingerprint: str, before_seconds: float) -> bool:
        """See `LetterStore.remove_group`."""
        (fields,) = self._read([fingerprint])
        try:
            if not fields or not is_forgotten(_group(fingerprint, fields), before_seconds):
                return False
        except LetterUnreadable:
            return False
        keys = [self._keys.group(fingerprint), self._keys.groups, self._keys.group_letters(fingerprint)]
        read = [fields.get("saying", ""), fields.get("failures", "0"), fingerprint]
        return bool(self._client.run(_REMOVE, keys, read))

    def _read(self, fingerprints: Sequence[str]) -> list[dict[str, str]]:
        found = self._client.run(_READ, [self._keys.group(each) for each in fingerprints], [])
        return [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in found]


def head_of(letter: Letter) -> str:
    """Return what a group is, as its newest failure tells it."""
    return dumps([letter.task, letter.kind, letter.error_type, sample_of(letter), letter.id])


def _head_of(group: LetterGroup) -> str:
    return dumps([group.task, group.kind, group.error_type, group.sample, group.sample_letter_id])


def _desk_of(group: LetterGroup) -> str:
    return dumps([group.assignee, group.note, [entry.plain for entry in group.history]])


def _group(fingerprint: str, fields: dict[str, str]) -> LetterGroup:
    try:
        task, kind, error_type, sample, sample_letter_id = loads(fields["head"])
        assignee, note, history = loads(fields["desk"]) if "desk" in fields else ("", "", [])
        counts = {state: int(fields.get(f"letters:{state}", 0)) for state in STATES}
        given = {
            "fingerprint": fingerprint,
            "task": task,
            "kind": FailureKind(kind),
            "error_type": error_type,
            "sample": sample,
            "sample_letter_id": sample_letter_id,
            "first_failed_seconds": float(fields["first"]),
            "last_failed_seconds": float(fields["last"]),
            "failures": int(fields.get("failures", 0)),
            "counts": {state: count for state, count in counts.items() if count},
            "hours": {int(name.removeprefix(_HOUR)): int(n) for name, n in fields.items() if name.startswith(_HOUR)},
            "first_release": fields.get("first_release", ""),
            "releases": in_order(_release(name, text) for name, text in fields.items() if name.startswith(_RELEASE)),
            "status": status_of(fields.get("status", "open")),
            "reopened_seconds": float(fields["reopened"]) if "reopened" in fields else None,
            "reopened_release": fields.get("reopened_release", ""),
            "assignee": assignee,
            "note": note,
            "history": history_of(history),
        }
        require_types(LetterGroup, given)
        return LetterGroup(**given)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LetterUnreadable(f"group {fingerprint} cannot be read: {type(error).__name__}: {error}") from error


def _release(name: str, text: str) -> ReleaseFailures:
    failures, first, last = text.split(" ")
    return ReleaseFailures.of([name.removeprefix(_RELEASE), int(failures), float(first), float(last)])
