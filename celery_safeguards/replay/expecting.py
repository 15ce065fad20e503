"""
What would become of a replay of a letter, in one word of a closed list: for programs, and for counting.

| the letter | expected |
|---|---|
| not open | `not_open` |
| not whole, without a way, of no task protocol | `cannot_be_sent` |
| needs a person's verdict, or consent | `needs_verdict`, `needs_consent` |
| without a key, or its task is not known here and its key says nothing | `would_run`, `unknown_task` |
| its key's work is done | `already_done`: what follows it is sent, its body does not run |
| its key is in use with other arguments, or under another letter | `conflict` |
| its key's work is under way, or `verify` must not be asked yet | `would_wait` |
| `verify` is asked before its body runs | `verified_first` |
| admission would bury it again, or fail it as before | `would_die` |
| the records cannot be asked | `not_known` |

It is admission's own decision (`ledger.decide`), on the record as it is now. What moves until the replay arrives is
admission's to answer.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from celery_safeguards import headers as h
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.ledger import decide as ledger
from celery_safeguards.ledger.record import State
from celery_safeguards.replay.plan import Need, OutgoingMessage, Work, is_keyed, need, refusal


class Expected(StrEnum):
    """What would become of a replay."""

    WOULD_RUN = "would_run"
    VERIFIED_FIRST = "verified_first"
    ALREADY_DONE = "already_done"
    WOULD_WAIT = "would_wait"
    UNKNOWN_TASK = "unknown_task"
    CONFLICT = "conflict"
    NEEDS_VERDICT = "needs_verdict"
    NEEDS_CONSENT = "needs_consent"
    WOULD_DIE = "would_die"
    CANNOT_BE_SENT = "cannot_be_sent"
    NOT_OPEN = "not_open"
    NOT_KNOWN = "not_known"


IN_WORDS = {
    Expected.WOULD_RUN: "would run",
    Expected.VERIFIED_FIRST: "would run, unless verify says that it has happened",
    Expected.ALREADY_DONE: "already done: the body does not run again",
    Expected.WOULD_WAIT: "would wait first",
    Expected.UNKNOWN_TASK: "task not known here: the worker's policy decides",
    Expected.CONFLICT: "conflict: the key is other work's",
    Expected.NEEDS_VERDICT: "needs a person's word whether it has happened",
    Expected.NEEDS_CONSENT: "needs consent to run twice",
    Expected.WOULD_DIE: "would be a dead letter again",
    Expected.CANNOT_BE_SENT: "cannot be sent",
    Expected.NOT_OPEN: "not open any more",
    Expected.NOT_KNOWN: "not known: the records could not be read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What is expected, why, and until when `verify` must not be asked (the store's microseconds; 0: it may be)."""

    expected: Expected
    why: str = ""
    due_us: int = 0


def expectation(letter: Letter, work: Work, message: OutgoingMessage) -> Expectation:
    """
    Return what would become of a replay of an open letter, without a person's word.

    Args:
        letter: an open one.
        work: what is known of its work.
        message: as the replay would send it.

    """
    refused, needed = refusal(letter, work) or "", need(letter, work)
    if needed is not Need.NOTHING:
        expected = Expected.NEEDS_VERDICT if needed is Need.VERDICT else Expected.NEEDS_CONSENT
        return Expectation(expected=expected, why=refused)
    if refused:
        return Expectation(expected=Expected.CONFLICT, why=refused)
    if work.policy is None:
        is_done = is_keyed(letter, None) and work.record is not None and work.record.state is State.DONE
        why = f"task {letter.task} is unknown to this app"
        return Expectation(expected=Expected.ALREADY_DONE if is_done else Expected.UNKNOWN_TASK, why=why)
    if not is_keyed(letter, work.policy):
        return Expectation(expected=Expected.WOULD_RUN, why="it has no idempotency key")
    return _decided(letter, work, work.policy.ledger(), message)


def _decided(  # noqa: PLR0911 - the table, a row a return
    letter: Letter, work: Work, policy: ledger.LedgerPolicy, message: OutgoingMessage
) -> Expectation:
    lineage = h.Lineage.from_headers(message.headers)
    arrival = ledger.Arrival(
        task_id=message.task_id,
        owner="",
        fingerprint=lineage.fingerprint or "",
        seen=lineage.seen,
        epoch=lineage.epoch,
        letter_id=letter.id,
    )
    answer = ledger.decide(work.record, arrival, policy, work.store)
    match answer:
        case ledger.Go() | ledger.Resume():
            return Expectation(expected=Expected.WOULD_RUN)
        case ledger.Ask():
            return Expectation(expected=Expected.VERIFIED_FIRST, why=answer.reason)
        case ledger.Defer():
            return Expectation(expected=Expected.WOULD_WAIT, why=answer.reason, due_us=answer.until_us)
        case ledger.FinishBurial():
            return Expectation(expected=Expected.WOULD_WAIT, why="its burial is not finished")
        case ledger.Return() | ledger.Accept():
            return Expectation(expected=Expected.ALREADY_DONE)
        case ledger.Bury():
            return Expectation(expected=Expected.WOULD_DIE, why=answer.reason)
        case ledger.Fail():
            is_stored = answer.refusal is ledger.Refusal.STORED
            return Expectation(
                expected=Expected.WOULD_DIE if is_stored else Expected.CONFLICT, why=_failing(letter, work)
            )
        case _:
            assert_never(answer)


def _failing(letter: Letter, work: Work) -> str:
    record = work.record
    if record is None:
        return ""
    under = f" under letter {record.letter_id}" if record.letter_id else ""
    return f"key {letter.key} is {record.state}{under}, by task {record.task_id}"
