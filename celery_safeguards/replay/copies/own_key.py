"""
The key decision of an edited copy: what admission would answer to it, asked before it is sent.

The key and the fingerprint are those that `apply_async` makes of the copy's own arguments. With another key than the
original's the copy is another operation. With the same one it is the same operation, and its record has the word:

| the record of the key | the copy |
|---|---|
| none, and no effect of the original is possible | its body runs |
| none, and an effect is possible | as unknown: the copy brings the original's proof of a start |
| done | returns the stored result; what follows it is sent |
| dead, or quarantined | refused before it is sent, unless `on_dead="run"`; a discarded letter has given its key free |
| in use with other arguments, of work that may have had an effect | refused before it is sent: a conflict |

Nothing holds a copy without that key and an effect of the original apart: there a person must consent, as for a replay.
So he must where there is no key at all, and an earlier copy may be out.

Not covered: what moves between this question and the copy's admission, which decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from celery_safeguards import headers as h
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.errors import KeyRefused
from celery_safeguards.ledger import decide as ledger
from celery_safeguards.ledger.record import Record
from celery_safeguards.policy import Declared
from celery_safeguards.replay.copies.edit import Edit, EditRefused
from celery_safeguards.replay.copies.edit_history import copies_of
from celery_safeguards.wiring import Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKey:
    """
    A copy's key, and what it means.

    Attributes:
        key: None: its task has none.
        headers: what the copy brings of the original's past.
        notes: for people.
        consent: why a person must consent; "": he need not.

    """

    key: str | None = None
    headers: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    consent: str = ""


def own_key(app: Any, task: Any, letter: Letter, edit: Edit) -> OwnKey:
    """
    Return the key decision of a copy.

    Raises:
        EditRefused: its arguments name no operation, or its key would not let it run.
        StoreUnavailable: the record of its key cannot be asked.

    """
    try:
        made = task.key_headers(edit.args, edit.kwargs) if hasattr(task, "key_headers") else {}
    except KeyRefused as error:
        raise EditRefused(str(error)) from error
    if h.KEY not in made:
        return OwnKey(headers={}, notes=("has no idempotency key: its body runs",), consent=_without_key(task, letter))
    place = task.plan.record_key(made[h.KEY])
    is_same = (letter.scope, letter.key) == (place.scope, place.key)
    seen = max(h.Lineage.from_headers(letter.wire.headers).seen, letter.burial) if letter.effect_possible else 0
    brought = {h.SEEN: seen} if is_same and seen else {}
    admission = Wiring.of(app).admission
    record, lineage = admission.read(place), h.Lineage.from_headers({**made, **brought})
    arrival = ledger.Arrival(
        task_id="(a new id)",
        owner="",
        fingerprint=lineage.fingerprint or "",
        seen=lineage.seen,
        epoch=lineage.epoch,
    )
    answer = ledger.decide(record, arrival, task.policy.ledger(), admission.view())
    which = "the same as the original's" if is_same else "another one than the original's"
    said = (f"its key is {place.key}, {which}", _in_words(answer, record, letter))
    why = "the original may have had an effect, and the key of the copy is another one: nothing holds a second one back"
    return OwnKey(
        key=place.key, headers=brought, notes=said, consent=why if letter.effect_possible and not is_same else ""
    )


def _without_key(task: Any, letter: Letter) -> str:
    if hasattr(task, "policy") and task.policy.declared is Declared.REPEATABLE:
        return ""
    if letter.effect_possible:
        return "the original may have had an effect, and no key holds a second one back"
    lost = [task_id for _, task_id, is_out in copies_of(letter) if not is_out]
    return f"an edited copy was begun as task {lost[-1]}, and may be out already" if lost else ""


def _in_words(answer: ledger.Decision, record: Record | None, letter: Letter) -> str:
    match answer:
        case ledger.Go() | ledger.Resume():
            return "its body runs"
        case ledger.Ask():
            return f"verify is asked before its body runs: {answer.reason}"
        case ledger.Defer():
            return f"it waits first: {answer.reason}"
        case ledger.Return() | ledger.Accept():
            return "the work of this key is done: its body does not run, and the stored result is returned"
        case ledger.FinishBurial():
            raise EditRefused("the work of its key is being buried: ask again in a moment")
        case ledger.Bury():
            raise EditRefused(f"its body would not run, and it would be a dead letter itself: {answer.reason}")
        case ledger.Fail():
            raise EditRefused(_failing(answer.refusal, record, letter))
        case _:
            assert_never(answer)


def _failing(refusal: ledger.Refusal, record: Record | None, letter: Letter) -> str:
    if record is None:
        raise AssertionError(f"{refusal} without a record")
    if refusal is ledger.Refusal.CONFLICT and not ledger.is_without_effect(record):
        in_use = f"key {record.key} is in use with other arguments, by task {record.task_id}"
        return f"{in_use}, which may have had an effect: change what the key is made of too"
    mine = "this letter" if record.letter_id == letter.id else f"letter {record.letter_id}"
    return (
        f"key {record.key} is {record.state} under {mine}, so the copy would be refused: discard {mine} first, which "
        "gives the key free, or change what the key is made of"
    )
