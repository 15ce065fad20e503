"""
Failed attempts as records and headers carry them: bounded, without what nobody may read there, whoever wrote them.
"""

import json

import pytest

from celery_safeguards.attempts import (
    MOST_IN_HEADER,
    MOST_IN_HEADER_CHARS,
    MOST_IN_LETTER,
    MOST_IN_RECORD,
    MOST_IN_RECORD_CHARS,
    FailedAttempt,
    joined,
    kept_in_header,
    kept_in_record,
    read_attempts,
)
from celery_safeguards.clock import to_us
from celery_safeguards.headers import ATTEMPTS, Lineage
from celery_safeguards.ledger.past import past_of
from celery_safeguards.ledger.record import Record, State

NASTY = "\x00\ud800 \u202e<b>\x1b[2J"


def attempt(number=1, **changes):
    values = {
        "number": number,
        "at_seconds": 1_700_000_000.125 + number,
        "ended": "retried in 2 s",
        "error_type": "builtins.ConnectionRefusedError",
        "message": "ann@example.com is away",
        "worker": "web-1:4711",
        "release": "v4.2",
        "task_id": "t-1",
    }
    return FailedAttempt(**{**values, **changes})


def kept(keep, count, **changes):
    """Return what is kept of so many attempts."""
    texts = ()
    for number in range(1, count + 1):
        texts = keep(texts, attempt(number, **changes))
    return texts


def test_record_keeps_an_attempt_whole():
    assert (attempt(1), attempt(2)) == read_attempts(kept(kept_in_record, 2))


def test_header_keeps_no_text_of_an_error():
    """Whoever may look into a queue would read what masks and erasure hide elsewhere."""
    texts = kept(kept_in_header, 1, ended="buried: ann@example.com is away")

    assert "ann@example.com" not in "".join(texts)
    (read,) = read_attempts(texts, "t-7")
    assert ("buried", "", "t-7", "web-1:4711") == (read.ended, read.message, read.task_id, read.worker)
    assert "builtins.ConnectionRefusedError" == read.error_type


@pytest.mark.parametrize("changes", [{}, {"message": "x" * 5_000}, {"worker": "ü" * 5_000, "release": NASTY * 100}])
@pytest.mark.parametrize(
    ("keep", "most", "most_chars"),
    [
        (kept_in_record, MOST_IN_RECORD, MOST_IN_RECORD_CHARS),
        (kept_in_header, MOST_IN_HEADER, MOST_IN_HEADER_CHARS),
    ],
)
def test_what_is_carried_is_bounded_and_the_newest(keep, most, most_chars, changes):
    """A task that is retried for a week must not be slower to publish each time."""
    texts = kept(keep, 50, **changes)

    assert all(text.isascii() for text in texts)
    assert (len(texts) <= most, sum(map(len, texts)) <= most_chars) == (True, True)
    numbers = [each.number for each in read_attempts(texts)]
    assert [*range(51 - len(texts), 51)] == numbers
    if not changes:
        assert len(texts) >= 5


def test_header_that_is_full_is_a_kilobyte():
    assert len(json.dumps(kept(kept_in_header, 50))) < 1_200


@pytest.mark.parametrize("text", [NASTY, "one\ntwo", "x" * 5_000], ids=["odd", "lines", "long"])
def test_any_text_is_printable_bounded_and_read_as_it_was_kept(text):
    names = ("ended", "error_type", "message", "worker", "release", "task_id")
    made = attempt(**dict.fromkeys(names, text))

    assert all(getattr(made, name).isprintable() and len(getattr(made, name)) <= 310 for name in names)
    assert "two" not in made.message
    assert (made,) == read_attempts([made.to_text()])


@pytest.mark.parametrize(
    "texts",
    [
        None,
        "[1,2]",
        7,
        {"a": 1},
        ["", "{}", "[]", "null", "[1]", '["x",0,"","","","","",""]', "[" * 100_000, 7, None],
        [f'[1,{at},"","","","","",""]' for at in ("NaN", "Infinity", "1e300", "-1", "true1")],
        [f'[{number},0,"","","","","",""]' for number in ("1e12", "-1", "NaN", "9" * 5_000)],
        ['[1e999,0,"","","","","",""]', '[1,2,"e",3,"m","w","r","t"]'],
    ],
    ids=range(8),
)
def test_what_a_stranger_puts_in_the_place_of_attempts_proves_nothing(texts):
    """A header is anybody's: it must not keep a failure from being recorded."""
    assert () == read_attempts(texts)
    lineage = Lineage.from_headers({ATTEMPTS: texts})
    assert 1 == len(read_attempts(kept_in_record(lineage.attempts, attempt())))


def test_what_a_newer_version_adds_is_left_out():
    text = json.dumps([*attempt().plain, "and more"])

    assert (attempt(),) == read_attempts([text])


def test_letter_keeps_attempts_of_all_replays_once_and_in_their_order():
    first, again = [attempt(1), attempt(2)], [attempt(1, task_id="t-2", at_seconds=5.0)]

    assert (*first, *again) == joined(first, [first[1]], again)
    assert MOST_IN_LETTER == len(joined(attempt(number) for number in range(MOST_IN_LETTER + 5)))


def test_without_texts_leaves_how_it_ended():
    bare = attempt(ended="quarantined: ann is away").without_texts()

    assert ("quarantined", "", "v4.2") == (bare.ended, bare.message, bare.release)


# --- a record that is taken over


def record(**changes):
    values = {"state": State.IN_PROGRESS, "attempt": 2, "task_id": "t-1", "lease_until_us": to_us(1_700_000_030.0)}
    return Record(**{**values, "attempt_history": kept(kept_in_record, 1), **changes})


def test_a_start_that_nobody_has_settled_was_lost():
    failure = {"kind": "worker_lost", "error": "signal 9", "worker": "web-1:7", "release": "v4"}
    seen = read_attempts(past_of(record(lost_us=to_us(1_700_000_010.0), failure=failure)))
    unseen = read_attempts(past_of(record(failure={"error": "of the attempt before"})))

    assert [(1, "retried in 2 s"), (2, "lost: its process ended")] == [(each.number, each.ended) for each in seen]
    assert ("signal 9", "web-1:7", "v4", 1_700_000_010.0) == (
        *(seen[1].message, seen[1].worker, seen[1].release, seen[1].at_seconds),
    )
    assert ("lost: its lease lapsed, nobody saw it end", "", 1_700_000_030.0) == (
        *(unseen[1].ended, unseen[1].message, unseen[1].at_seconds),
    )


@pytest.mark.parametrize(
    "changes", [{"asking": True}, {"attempt": 0}, {"state": State.RETRY_DUE}, {"state": State.DEAD}]
)
def test_what_was_no_start_was_not_lost(changes):
    """A claim that was held to ask `verify` is none."""
    found = record(**changes)

    assert found.attempt_history == past_of(found)
