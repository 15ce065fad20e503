"""
Removing letters that have been over for as long as the project keeps them, and groups that have none any more.

    a page of letters that are over ──▶ keys given free ──▶ those that still are over: removed ──▶ the next page
                                groups without a letter: removed; those that stay forget what a letter that is gone said

Everything goes in steps of `_MOST_A_STEP` letters at most. Killed anywhere, the next purge finds what is left; two at
once share the letters. What each step removes is what is over at that moment: see `deadletter.retention`.

Whoever discards a letter and is killed before its key is free says it again, by the letter's id. Once the letter is
gone nobody could: so its key is given free before that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from celery_safeguards.deadletter.changes import to_cursor
from celery_safeguards.deadletter.group import LetterGroup
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.deadletter.retention import is_forgotten, is_over
from celery_safeguards.replay.discarding import held_by, release
from celery_safeguards.wiring import Wiring

_MOST_A_STEP = 200
_GROUPS_A_TRIP = 200


@dataclass(frozen=True, slots=True)
class Purged:
    """How many letters and groups were removed."""

    letters: int = 0
    groups: int = 0


def purge_letters(wiring: Wiring, batch: int = _MOST_A_STEP) -> Purged:
    """
    Remove what has been over for as long as the settings say; nothing, where they keep letters for ever.

    Args:
        wiring: the app's.
        batch: >= 1, letters in one step; of a large number no more than fit into one.

    Safe when: called while workers run, by several at once, and again after it was interrupted.

    Raises:
        StoreUnavailable: what was removed until then is removed; call again.

    """
    kept_seconds = wiring.settings.letter_retention_seconds
    if not kept_seconds:
        return Purged()
    before_seconds = wiring.clock.wall_seconds() - kept_seconds
    letters = _purge_letters(wiring, before_seconds, min(batch, _MOST_A_STEP))
    return Purged(letters=letters, groups=_purge_groups(wiring, before_seconds))


def _purge_letters(wiring: Wiring, before_seconds: float, batch: int) -> int:
    removed, cursor = 0, None
    while True:
        page = wiring.letters.over(before_seconds, limit=batch, before=cursor)
        for letter in page.letters:
            _give_key_free(wiring, letter, before_seconds)
        removed += wiring.letters.remove([letter.id for letter in page.letters], before_seconds)
        cursor = page.next_cursor
        if cursor is None:
            return removed


def _give_key_free(wiring: Wiring, letter: Letter, before_seconds: float) -> None:
    held = held_by(wiring, letter) if letter.work_state == "discarded" else None
    if held is None or held[1].released:
        return
    try:
        # After its record: had it died again since the page was read, its key would be held by what is open now.
        found = wiring.letters.get(letter.id)
    except LetterUnreadable:
        return
    if found is not None and found.work_state == "discarded" and is_over(found, before_seconds):
        release(wiring, *held)


def _purge_groups(wiring: Wiring, before_seconds: float) -> int:
    removed, cursor = 0, to_cursor(before_seconds, "")
    while True:
        page = wiring.letters.groups(limit=_GROUPS_A_TRIP, before=cursor)
        kept = []
        for group in page.groups:
            is_removed = is_forgotten(group, before_seconds) and wiring.letters.remove_group(
                group.fingerprint, before_seconds
            )
            removed += is_removed
            kept += [] if is_removed else [group]
        _forget_what_is_gone(wiring, kept)
        if page.next_cursor is None:
            return removed
        cursor = page.next_cursor


def _forget_what_is_gone(wiring: Wiring, groups: Sequence[LetterGroup]) -> None:
    """Take the samples of letters that are gone: no erasing would find them any more."""
    said = [group for group in groups if group.sample]
    there = wiring.letters.get_many([group.sample_letter_id for group in said])
    for group in said:
        if group.sample_letter_id not in there:
            wiring.letters.forget_sample(group.fingerprint, {group.sample_letter_id})
