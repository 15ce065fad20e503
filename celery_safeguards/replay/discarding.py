"""
Giving up a letter, and with it the key it holds: a new publication of that work begins a new series.

    letter discarded → record released.  Killed in between: discarding again releases it.

A burial that was cut short behind its letter is finished first: finished later, it would take the key again.

The record keeps its doubt: a new publication of work whose effect is possible is answered by `on_unknown`.
"""

from typing import Any

from celery_safeguards.admission.store import Change, RecordKey
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.errors import NotOurs
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.policy import WEEK_SECONDS
from celery_safeguards.wiring import Wiring


def discard(app: Any, letter_id: str, who: str, reason: str) -> Letter:
    """
    Give up an open letter and release its key.

    Safe when: called again after it was interrupted; called while the work's replay is being admitted, which then wins.

    Raises:
        ConfigurationError: `who` or `reason` is empty.
        LetterNotOpen: it is in any other state than open or discarded.
        NoSuchLetter: no letter of that id.
        StoreUnavailable: a store did not answer; call again.

    """
    wiring = Wiring.of(app)
    try:
        letter = wiring.letters.discard(letter_id, who, reason)
    except LetterNotOpen as error:
        found = wiring.letters.get(letter_id)
        if error.state != "discarded" or found is None:
            raise
        letter = found
    held = held_by(wiring, letter)
    if held is not None:
        release(wiring, *held)
    return letter


def held_by(wiring: Wiring, letter: Letter) -> tuple[RecordKey, Record] | None:
    """Return the key that a letter holds, and its record; None: it holds none."""
    if letter.key is None or letter.scope is None:
        return None
    key = RecordKey(letter.scope, letter.key)
    record = wiring.admission.read(key)
    if record is None or record.letter_id != letter.id:
        return None
    is_nearly_buried = record.state is State.DYING and record.fence == letter.burial
    return (key, record) if is_nearly_buried or record.state in {State.DEAD, State.QUARANTINED} else None


def release(wiring: Wiring, key: RecordKey, record: Record) -> None:
    """Give a discarded letter's key free, if its record still is what was read."""
    try:
        if record.state is State.DYING:
            buried = Change(fields={"state": State(record.final), "letter": ""}, retention_seconds=None)
            record = wiring.admission.settle(key, record, State.DYING, buried)
        # From here on the record lives as long as a finished one: nothing waits for it any more.
        released = Change(fields={"state": record.state, "released": True}, retention_seconds=WEEK_SECONDS)
        wiring.admission.settle(key, record, record.state, released)
    except NotOurs:
        return  # a replay has begun meanwhile: the work is alive
    letter = wiring.letters.get(record.letter_id)
    if letter is not None and letter.erased:
        # Since the record was read: what it said then is written with the release.
        wiring.admission.erase(key)
