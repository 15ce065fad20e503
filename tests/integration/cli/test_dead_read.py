"""
`dead list` and `dead show`: what a person sees before he decides, and what a script reads.
"""

import json

import pytest

from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.outcome import FailureKind
from celery_safeguards.wiring import Wiring
from tests.integration.cli.odd_text import NASTY

pytestmark = pytest.mark.redis


# --- dead list


def test_list_shows_open_letters(cli, bury):
    """Whoever is on call sees first what waits for him."""
    bury("waits", key="order:1")
    bury("given-up")
    cli("dead", "discard", "given-up", "--by", "ann", "--reason", "a test order")

    listed = cli("dead", "list")

    assert listed.exit_code == 0
    assert "waits" in listed.stdout
    assert "order:1" in listed.stdout
    assert "given-up" not in listed.stdout


def test_list_of_nothing_exits_with_1(cli):
    """A script asks by the exit code whether there is anything."""
    listed = cli("dead", "list")

    assert (listed.exit_code, listed.stdout, listed.stderr) == (1, "", "no letters\n")


def test_list_as_json_is_one_document_with_a_cursor(cli, bury):
    """A program that reads pages must find the next one."""
    for number in range(3):
        bury(f"letter-{number}", last_failed_seconds=1_750_000_000.0 + number)

    first = json.loads(cli("dead", "list", "--limit", "2", "--json").stdout)
    second = json.loads(cli("dead", "list", "--before", first["next_cursor"], "--json").stdout)

    assert [letter["id"] for page in (first, second) for letter in page["letters"]] == [
        *("letter-2", "letter-1", "letter-0"),
    ]
    assert second["next_cursor"] is None


def test_list_chooses_by_state_task_and_kind(cli, bury):
    """Ten thousand letters of one storm hide the one of another."""
    bury("mail", task="shop.mail")
    bury("data", kind=FailureKind.DATA)

    chosen = [
        json.loads(cli("dead", "list", *words, "--json").stdout)["letters"]
        for words in (["--task", "shop.mail"], ["--kind", "data"], ["--state", "any"])
    ]

    assert [[letter["id"] for letter in letters] for letters in chosen] == [["mail"], ["data"], ["mail", "data"]]


def test_cursor_that_is_none_is_a_usage_error(cli):
    """A mistyped cursor must not read as an empty desk."""
    listed = cli("dead", "list", "--before", "yesterday")

    assert listed.exit_code == 2
    assert "next_cursor" in listed.stderr


# --- dead show


def test_show_tells_typed_arguments_error_and_what_a_replay_would_do(cli, bury):
    """A person decides by the real values, not by what a repr has left of them."""
    bury(traceback="Traceback ...\nValueError", headers={"group": "g-7"}, kind=FailureKind.DATA)

    shown = cli("dead", "show", "letter-1").stdout

    for part in (
        *("Decimal('10.10')", "datetime.datetime(2025, 3, 1, 12, 30, 5, 123456", "followed by", "chain"),
        *("builtins.ValueError: no such order", "  ValueError", "first seen", "possible"),
        "group g-7: a finished group or chord is not repaired by a replay",
    ):
        assert part in shown


def test_show_tells_each_failed_attempt(cli, bury):
    """Three different errors are three things to mend; a worker that failed alone is one to restart."""
    first = {"number": 1, "at_seconds": 1_750_000_000.0, "ended": "retried in 2 s", "error_type": "shop.Away"}
    bury(
        attempt_history=(
            FailedAttempt(**first, worker="web-1:4711", release="v4.2", task_id="t-1"),
            FailedAttempt(number=2, at_seconds=1_750_000_002.0, ended=f"buried: {NASTY}", message=NASTY, task_id="t-1"),
        )
    )

    shown = cli("dead", "show", "letter-1").stdout
    document = json.loads(cli("dead", "show", "letter-1", "--json").stdout)

    head = next(place for place, line in enumerate(shown.splitlines()) if line.startswith("ATTEMPT"))
    one, two = shown.splitlines()[head + 1 : head + 3]
    when = "2025-06-15T15:06:40+00:00"
    assert ["1", when, "retried", "in", "2", "s", "web-1:4711", "v4.2", "t-1", "shop.Away"] == one.split()
    assert two.startswith("2")
    assert [each for each in shown if not each.isprintable() and each != "\n"] == []
    assert [1, 1_750_000_000.0, "retried in 2 s"] == document["letter"]["attempt_history"][0][:3]


def test_show_says_nothing_of_what_a_message_does_not_have(cli, bury):
    """ "task []", "None, None" and "15 bytes of None" are read as faults of the command."""
    bury(task="", task_id="", root_id=None, error_message="", lost_starts=1, content_type=None, body=b"x")

    shown = cli("dead", "show", "letter-1").stdout.splitlines()
    listed = cli("dead", "list").stdout.splitlines()
    group = cli("dead", "groups").stdout.splitlines()

    assert "task              (not named) [no id]" in shown
    assert "root, parent      -, -" in shown
    assert "error             builtins.ValueError" in shown
    assert "attempts          0, 1 start without an outcome" in shown
    assert "body              1 byte of unknown type, not decoded: only JSON is read here" in shown
    assert listed[1].endswith("  builtins.ValueError")
    assert "  bug   -     builtins.ValueError" in group[1]


def test_history_without_a_reason_ends_without_a_colon(cli, bury):
    bury()
    cli("dead", "erase", "letter-1", "--by", "eve", "--reason", "ticket 7", "--yes")

    shown = cli("dead", "show", "letter-1").stdout

    assert " discarded by eve\n" in shown
    assert " erased by eve: ticket 7\n" in shown


def test_show_of_a_letter_without_attempts_has_no_table_of_them(cli, bury):
    bury()

    assert "ATTEMPT" not in cli("dead", "show", "letter-1").stdout


def test_show_as_json_holds_the_wire_and_the_outlook(cli, bury):
    """A desk of one's own is built on this document."""
    bury()

    document = json.loads(cli("dead", "show", "letter-1", "--json").stdout)

    assert document["letter"]["wire"]["content_type"] == "application/json"
    assert document["arguments"]["kwargs"]["amount"] == {"__type__": "decimal", "__value__": "10.10"}
    assert document["replay"]["possible"] is True


def test_show_runs_no_pickle(cli, bury):
    """A letter from a stranger must not run code on the desk of whoever reads it."""
    bury(
        body=b"cos\nsystem\n(S'touch /tmp/owned'\ntR.",
        content_type="application/x-python-serialize",
        headers={"argsrepr": "(7,)"},
    )

    shown = cli("dead", "show", "letter-1")

    assert shown.exit_code == 0
    assert "not decoded: only JSON is read here" in shown.stdout
    assert "args as sent      (7,)" in shown.stdout


def test_nothing_of_a_letter_reaches_the_terminal_raw(cli, app, bury):
    """A message clears the screen, renames the window, and shows another error than the one that happened."""
    bury(NASTY, task=NASTY, key=NASTY, error_message=NASTY, reason=NASTY, traceback=NASTY, headers={"group": NASTY})
    Wiring.of(app).letters.add_note(NASTY, NASTY, NASTY, NASTY)

    outputs = [cli("dead", "list").output, cli("dead", "show", NASTY).output, cli("dead", "show", f"{NASTY}2").output]

    for output in outputs:
        assert [each for each in output if not each.isprintable() and each != "\n"] == []
        assert [line for line in output.splitlines() if line.startswith("SECOND LINE")] == []


def test_show_of_no_letter_exits_with_1(cli):
    """A typing error is no empty letter."""
    shown = cli("dead", "show", "none")

    assert (shown.exit_code, shown.stdout, shown.stderr) == (1, "", "there is no letter none\n")


def test_show_names_the_options_that_a_replay_needs(cli, bury):
    """Told only that it is refused, people look for a way around."""
    bury(effect_possible=True)

    document = json.loads(cli("dead", "show", "letter-1", "--json").stdout)

    assert document["replay"]["needs"] == "--did-not-happen or --yes-it-may-run-twice"
