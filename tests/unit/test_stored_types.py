"""Stored text that is JSON and none of what was written: damage, like text that breaks off."""

import json
from dataclasses import replace
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

import pytest

from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.deadletter.group import LetterGroup, ReleaseFailures
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.refusals import JobUnreadable
from celery_safeguards.jobs.tally import Tally
from celery_safeguards.ledger.record import Record, RecordUnreadable, State
from celery_safeguards.locks.redis import state_of
from celery_safeguards.locks.store import LockUnreadable
from celery_safeguards.outcome import FailureKind
from tests.support.record_text import text_of

NOTED = HistoryEntry(at_seconds=5.0, what="noted", who="ann", detail="why")
LETTER = Letter(
    id="l-1",
    task="shop.charge",
    task_id="t-1",
    wire=WireMessage(body=b"[]"),
    kind=FailureKind.DATA,
    effect_possible=False,
    reason="attempt 1 of 1",
    first_seen_seconds=5.0,
    last_failed_seconds=5.0,
    history=(NOTED,),
    attempt_history=(FailedAttempt(number=1, at_seconds=5.0, ended="buried"),),
)
GROUP = LetterGroup(
    fingerprint="f" * 32,
    task="shop.charge",
    kind=FailureKind.DATA,
    error_type="ValueError",
    first_failed_seconds=5.0,
    last_failed_seconds=5.0,
    counts={"open": 1},
    hours={0: 1},
    releases=(ReleaseFailures(release="1.0", failures=1, first_failed_seconds=5.0, last_failed_seconds=5.0),),
    history=(NOTED,),
)
JOB = ReplayJob(
    id="j-1",
    who="ann",
    chosen="all",
    total=3,
    created_seconds=5.0,
    on_their_way={"l-1": (5.0, 6.0)},
    unsure=("l-2",),
    tally=Tally(sent=1, reasons={"closed": 1}),
)
RECORD = Record(state=State.DONE, owner="A", series=("t-1",), steps={"pay": "1"}, failure={"kind": "data"}, result="1")
RECORD_HEAD, RECORD_BODY = text_of(RECORD).split("\n")


def read_record(body):
    return Record.from_text(f"{RECORD_HEAD}\n{body}")


READERS = {
    Letter: (LETTER.to_json(), Letter.from_json, LetterUnreadable),
    LetterGroup: (GROUP.to_json(), LetterGroup.from_json, LetterUnreadable),
    ReplayJob: (JOB.to_json(), ReplayJob.from_json, JobUnreadable),
    Record: (RECORD_BODY, read_record, RecordUnreadable),
}


def wrong_for(hint):
    """Yield values that JSON has and a field of this type cannot."""
    several = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    kinds = {get_origin(each) or each for each in several}
    yield [[1]]
    if NoneType not in kinds:
        yield None
    if not kinds & {int, float}:
        yield 7
    if str not in kinds:
        yield "?"
    if float in kinds:
        yield from (1e999, 1e300)


def fields_and_what_they_cannot_hold():
    for cls, (text, *_) in READERS.items():
        hints = get_type_hints(cls)
        for name in json.loads(text):
            for wrong in wrong_for(hints[name]) if name in hints else ():
                yield pytest.param(cls, name, wrong, id=f"{cls.__name__}-{name}-{wrong}")


@pytest.mark.parametrize(("cls", "name", "wrong"), [*fields_and_what_they_cannot_hold()])
def test_value_of_another_type_is_damage(cls, name, wrong):
    """Read as what it is not, it fails on the page that shows it, or in the job that counts with it."""
    text, read, unreadable = READERS[cls]

    with pytest.raises(unreadable):
        read(json.dumps({**json.loads(text), name: wrong}))


@pytest.mark.parametrize(
    ("cls", "name", "wrong"),
    [
        (Letter, "history", [["yesterday", "noted", "ann", "why"]]),
        (Letter, "history", [[5.0, "noted", 7, "why"]]),
        (Letter, "history", [[5.0, "noted", "ann"]]),
        (Letter, "terms", [1]),
        (Letter, "attempt_history", [[1e999, 5.0, "lost", "", "", "", "", ""]]),
        (Letter, "wire", {"headers": []}),
        (Letter, "wire", {"truncated": "no"}),
        (LetterGroup, "counts", {"open": "1"}),
        (LetterGroup, "hours", {"0": None}),
        (LetterGroup, "releases", [["1.0", "3", 5.0, 5.0]]),
        (LetterGroup, "releases", [["1.0", 3, 5.0, 1e999]]),
        (LetterGroup, "releases", [["1.0", 3, 5.0]]),
        (LetterGroup, "history", ["noted"]),
        (ReplayJob, "on_their_way", {"l-1": 5.0}),
        (ReplayJob, "on_their_way", {"l-1": [5.0]}),
        (ReplayJob, "on_their_way", {"l-1": ["a", "b"]}),
        (ReplayJob, "on_their_way", {"l-1": [5.0, 1e999]}),
        (ReplayJob, "tally", {"sent": "1"}),
        (ReplayJob, "tally", {"reasons": {"closed": None}}),
        (ReplayJob, "tempo", {"share": None}),
        (ReplayJob, "unsure", "l-2"),
        (Record, "series", "t-1"),
        (Record, "publishes", [None]),
        (Record, "continued_by", {"a": 1}),
    ],
)
def test_value_of_another_type_within_is_damage(cls, name, wrong):
    """One odd line of a history would take the page with it."""
    text, read, unreadable = READERS[cls]
    plain = json.loads(text)
    if isinstance(wrong, dict) and isinstance(plain.get(name), dict):
        wrong = {**plain[name], **wrong}

    with pytest.raises(unreadable):
        read(json.dumps({**plain, name: wrong}))


@pytest.mark.parametrize("cls", READERS)
def test_damage_is_named_without_what_it_says(cls):
    """What stands in a field that is damaged may be a secret of somebody's, and this is shown to whoever looks."""
    text, read, unreadable = READERS[cls]
    name = "tally" if cls is ReplayJob else "fingerprint"

    with pytest.raises(unreadable) as refused:
        read(json.dumps({**json.loads(text), name: ["hunter2"]}))

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("cls", READERS)
def test_what_was_written_is_read(cls):
    """Asked too strictly, nothing would be left of what is stored."""
    text, read, _ = READERS[cls]

    assert {Letter: LETTER, LetterGroup: GROUP, ReplayJob: JOB, Record: RECORD}[cls] == read(text)


def test_empty_list_of_a_record_may_have_become_an_object():
    """Redis' scripts know one kind of empty table: a lost owner's record would be taken for damaged."""
    assert () == read_record(json.dumps({**json.loads(RECORD_BODY), "attempt_history": {}})).attempt_history


def test_whole_number_stands_for_a_time():
    """Another program's JSON has no other for one without a fraction."""
    assert Letter.from_json(LETTER.to_json().replace("5.0", "5")) == LETTER


def test_content_type_of_a_strangers_message_may_be_anything():
    """The letter of a message that no task can read would be lost with what is wrong about it."""
    odd = replace(LETTER, wire=WireMessage(body=b"", content_type=7))

    assert odd == Letter.from_json(odd.to_json())


@pytest.mark.parametrize("holder", ["5", "null", "[]", "{", ""])
def test_lock_whose_holder_is_no_object_is_damaged(holder):
    """Whoever asks for it would take the damage for a fault of their own, and give their work up."""
    with pytest.raises(LockUnreadable, match="the lock is damaged"):
        state_of("order:7", f"1 A 7 100 50 - 0\n{holder}")
