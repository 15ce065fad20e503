"""
Letters as lines: what strangers sent is no formula, and no text that a reader refuses.
"""

import csv
import io
import json

import pytest

from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.deadletter.changes import closing
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.shown.export import columns, head, line, row_of, unreadable_row
from celery_safeguards.deadletter.wire import WireMessage
from tests.conformance.deadletter_contract import NOON, letter
from tests.integration.cli.odd_text import NASTY

FORMULAS = [
    "=1+1",
    "+1+1",
    "-1+1",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    '=HYPERLINK("http://x","y")',
    "=cmd|' /C calc'!A0",
    "\uff1d1+1",
]
PLAIN = ["shop.charge", "a=b", "1-1", "'=1", "a,b", 'a"b', "a\nb", "ü \u4e2d", " =1", ""]


def as_csv(found, *, with_payload=True):
    row = row_of(found, 86_400.0, with_payload=with_payload)
    text = head("csv", with_payload=with_payload) + line("csv", row, with_payload=with_payload)
    (read,) = csv.DictReader(io.StringIO(text, newline=""))
    return read


def as_json(found, *, with_payload=True):
    return json.loads(line("json", row_of(found, 86_400.0, with_payload=with_payload), with_payload=with_payload))


@pytest.mark.parametrize("text", FORMULAS)
@pytest.mark.parametrize("field", ["task", "key", "host", "error_message", "reason", "traceback"])
def test_cell_is_no_formula(text, field):
    """Whoever opens the file would run what a stranger has sent."""
    cell = as_csv(letter(**{field: text}))[field]

    assert cell.startswith("'")
    assert text.strip("\t\r\n") in cell
    assert as_json(letter(**{field: text}))[field] == text


@pytest.mark.parametrize("text", PLAIN)
def test_cell_that_is_none_is_left_as_it_is(text):
    """Changed without a reason, a key is found nowhere else."""
    assert (
        text
        == as_csv(letter(error_message=text))["error_message"]
        == as_json(letter(error_message=text))["error_message"]
    )


def test_no_formula_hides_in_a_name_that_a_message_has_chosen():
    wire = WireMessage(body=b'[["=1"], {"=k": "=v"}, {}]', content_type="application/json", headers={"=h": "=v"})
    cells = as_csv(letter(wire=wire, history=(HistoryEntry(at_seconds=NOON, what="=w", who="=x", detail="=y"),)))

    assert [] == [cell for cell in cells.values() if cell.startswith(("=", "+", "-", "@"))]
    assert {"args": ["=1"], "kwargs": {"=k": "=v"}, "embed": {}} == json.loads(cells["arguments"])


@pytest.mark.parametrize("form", ["csv", "json"])
def test_line_is_text_that_every_reader_takes(form):
    """One NUL in ten thousand lines, and nothing can be loaded."""
    odd = f"{NASTY}\x00\ud800\x1b[2J\u202e"
    found = letter(
        odd,
        key=odd,
        error_message=odd,
        wire=WireMessage(
            body=json.dumps([[odd, float("nan")], {odd: odd}, {}]).encode(),
            content_type="application/json",
            headers={odd: [odd, float("inf"), b"\xff", {1: odd}]},
        ),
    )
    text = head(form, with_payload=True) + line(form, row_of(found, 0, with_payload=True), with_payload=True)

    text.encode()
    assert [] == [each for each in text if not each.isprintable() and each not in "\r\n"]
    for escape in (r"\u0000", r"\ud800"):
        assert escape not in text.replace(r"\\u", "")
    if form == "json":
        json.loads(text, parse_constant=pytest.fail)
    else:
        assert 2 == len(list(csv.reader(io.StringIO(text, newline=""))))


def test_payload_is_in_no_line_unasked():
    found = letter(
        error_message="secret",
        reason="secret",
        traceback="secret",
        wire=WireMessage(body=b'[["secret"], {}, {}]', content_type="application/json", headers={"h": "secret"}),
        history=(HistoryEntry(at_seconds=NOON, what="note", detail="secret"),),
        attempt_history=(FailedAttempt(number=1, at_seconds=NOON, ended="buried: secret", message="secret"),),
    )

    for read in (as_csv, as_json):
        assert "secret" not in str(read(found, with_payload=False))
        assert 8 == str(read(found)).count("secret")


def test_line_says_how_long_the_letter_is_kept():
    over = closing("it succeeded", NOON)(letter())

    assert ("2023-11-14T22:13:20+00:00", "2023-11-15T22:13:20+00:00") == tuple(
        as_csv(over)[name] for name in ("over_since", "kept_until")
    )
    assert (None, None) == tuple(as_json(letter())[name] for name in ("over_since", "kept_until"))


@pytest.mark.parametrize("with_payload", [False, True])
def test_letter_that_cannot_be_read_has_a_line_all_the_same(with_payload):
    """A file that leaves something out without a word is taken for the whole."""
    text = line("csv", unreadable_row("=l-1"), with_payload=with_payload)
    (cells,) = csv.reader(io.StringIO(text, newline=""))

    assert len(columns(with_payload=with_payload)) == len(cells)
    assert ("'=l-1", "it cannot be read: damaged, or written by a newer version") == (cells[0], cells[-1])


def test_body_that_is_no_json_is_described():
    wire = WireMessage(body=b"\x80", content_type="application/x-python-serialize", headers={"argsrepr": "(7,)"})

    said = as_json(letter(wire=wire))["arguments"]

    assert ("(7,)", True) == (said["args as sent"], "only JSON is read here" in said["note"])


def test_each_failed_attempt_is_told():
    attempt = FailedAttempt(number=2, at_seconds=NOON, ended="retried in 2 s", message="no gateway", release="v7")

    (told,) = as_json(letter(attempt_history=(attempt,), release="v8"))["failed_attempts"]

    assert (told["number"], told["ended"], told["message"], told["release"]) == (
        2,
        "retried in 2 s",
        "no gateway",
        "v7",
    )
    assert as_csv(letter(release="v8"))["release"] == "v8"
    assert told["at"].startswith("20")
