"""What a replay of a letter would do, asked without changing anything: for people, and (`expecting`) for counting."""

from dataclasses import dataclass
from typing import Any

from celery_safeguards.clock import to_seconds, to_us
from celery_safeguards.deadletter.changes import RESTORE_FIRST
from celery_safeguards.deadletter.letter import Letter, LetterTruncated
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.ledger.record import RecordUnreadable
from celery_safeguards.replay.copies.edit_history import copies_in_words
from celery_safeguards.replay.expecting import Expectation, Expected, expectation
from celery_safeguards.replay.plan import (
    Need,
    ReplayRefused,
    Work,
    is_keyed,
    need,
    refusal,
    replay_message,
    resend_refusal,
)
from celery_safeguards.replay.publishing import route_of
from celery_safeguards.replay.send import verdict_of, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """
    What a replay needs and does.

    Attributes:
        refused: why it would not be sent as it is; None: it would.
        needs: what a person must add.
        expectation: what would become of it.
        notes: what it would do, and what it leaves behind.

    """

    refused: str | None
    expectation: Expectation
    needs: Need = Need.NOTHING
    notes: tuple[str, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Whether it would be sent, or would be with what it needs."""
        return self.refused is None or self.needs is not Need.NOTHING


def outlook(app: Any, letter: Letter, at_seconds: float, work: Work | StoreUnavailable | None = None) -> Outlook:
    """
    Return what a replay of a letter needs and does.

    Args:
        app: one that knows its tasks, or as many as it can.
        letter: in any state.
        at_seconds: wall clock.
        work: what is known of its work, or why nothing is; None: it is asked.

    """
    try:
        message = replay_message(letter, "(a new id)", at_seconds=at_seconds)
        exchange, routing_key, _queues = route_of(app, message)
    except (LetterTruncated, ReplayRefused) as error:
        return _refused(str(error), Expected.CANNOT_BE_SENT)
    to = f"exchange {exchange}, routing key {routing_key}" if exchange else f"queue {routing_key}"
    notes = (f"goes to {to} under a new task id", *message.left_behind, *copies_in_words(letter))
    if letter.state == "replaying":
        cut_short = f"it is replaying as task {letter.replay_task_id}; cut short? resume it"
        return _refused(cut_short, Expected.NOT_OPEN, notes)
    if letter.state == "archived":
        return _refused(f"the letter is archived: {RESTORE_FIRST}", Expected.NOT_OPEN, notes)
    if letter.state != "open":
        return _refused(f"the letter is {letter.state}", Expected.NOT_OPEN)
    found = _known(app, letter) if work is None else work
    if isinstance(found, StoreUnavailable):
        return _not_known(found, notes)
    return Outlook(
        refused=refusal(letter, found),
        needs=need(letter, found),
        expectation=expectation(letter, found, message),
        notes=(*notes, *_expected(letter, found)),
    )


def resume_outlook(app: Any, letter: Letter) -> Outlook:
    """Return what sending a letter's replay again needs, if it was cut short; `app`: see `outlook`."""
    try:
        work = work_of(app, letter)
    except StoreUnavailable as error:
        return _not_known(error)
    refused = resend_refusal(letter, work, verdict_of(letter))
    needs = Need.NOTHING if refused is None else Need.VERDICT if is_keyed(letter, work.policy) else Need.CONSENT
    became = Expectation(expected=Expected.NOT_OPEN, why=f"it is replaying as task {letter.replay_task_id}")
    return Outlook(
        refused=refused, needs=needs, expectation=became, notes=(f"goes out again as task {letter.replay_task_id}",)
    )


def unreadable(why: str) -> Outlook:
    """Return what a replay of a letter would do that cannot be read."""
    return _refused(why, Expected.CANNOT_BE_SENT)


def _known(app: Any, letter: Letter) -> Work | StoreUnavailable:
    try:
        return work_of(app, letter)
    except StoreUnavailable as error:
        return error


def _not_known(error: StoreUnavailable, notes: tuple[str, ...] = ()) -> Outlook:
    if isinstance(error, RecordUnreadable):
        return _refused(f"not known: {error}", Expected.NOT_KNOWN, notes)
    return _refused(f"not known, the store of records did not answer: {error}", Expected.NOT_KNOWN, notes)


def _refused(why: str, expected: Expected, notes: tuple[str, ...] = ()) -> Outlook:
    return Outlook(refused=why, expectation=Expectation(expected=expected, why=why), notes=notes)


def _expected(letter: Letter, work: Work) -> list[str]:
    if not is_keyed(letter, work.policy):
        return ["has no idempotency key: the body runs once for each message"]
    record, policy = work.record, work.policy
    state = record.state.value if record else "gone from the store"
    said = [f"keeps key {letter.key}, whose record is {state}"]
    if policy is None:
        said.append(f"task {letter.task} is unknown to this app: the worker's policy decides")
    elif policy.idempotent is not None and policy.idempotent.verify is not None and letter.effect_possible:
        doubt_us = record.doubt_us if record else to_us(letter.last_failed_seconds)
        left_us = doubt_us + to_us(policy.ledger().quiet_seconds) - work.now_us
        wait = f", in {to_seconds(left_us):.0f} s" if left_us > 0 else ""
        said.append(f"verify is asked first{wait}")
    return said
