"""
`dead erase`: what a person is told and asked, and that nothing of what is erased is said again.
"""

import json
import logging
from dataclasses import replace

import pytest
from kombu.utils.json import dumps

from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import queued

pytestmark = pytest.mark.redis
EMAIL = "ann@example.com"
WHY = ("--by", "eve", "--reason", "ticket 7")


@pytest.fixture(autouse=True)
def of_people(app, cli, bury):
    """Letters of two people, found by their addresses."""
    wiring = Wiring.of(app)
    found_by = {"searchable_arguments": ("email",), "sensitive_arguments": ("email",), "search_secret": "s3cret"}
    replace(wiring, settings=replace(wiring.settings, **found_by)).use_for(app)
    for letter_id, email in (("one", EMAIL), ("two", EMAIL), ("other", "bob@example.com")):
        body = str(dumps([[], {"email": email}, {}])).encode()
        bury(letter_id, body=body, error_message=f"no mailbox {email}", key=f"mail:{email}", scope="shop.mail")
    assert cli("dead", "regroup").exit_code == 0


def is_erased(app, letter_id):
    return Wiring.of(app).letters.get(letter_id).erased


def test_a_person_is_erased_by_an_argument(cli, app, caplog):
    caplog.set_level(logging.DEBUG)

    done = cli("dead", "erase", "--argument", f"email={EMAIL}", *WHY, "--yes")

    assert (done.exit_code, done.stdout.partition(", 0 records")[0]) == (0, "erased: 2 letters")
    assert [is_erased(app, each) for each in ("one", "two", "other")] == [True, True, False]
    assert EMAIL not in done.output + caplog.text
    assert "result backend" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["one"], ["one"]), (["one", "other"], ["one", "other"]), (["--key", f"mail:{EMAIL}"], ["one", "two"])],
)
def test_letters_are_chosen_by_ids_or_a_key(cli, app, words, expected):
    done = cli("dead", "erase", *words, *WHY, "--yes", "--json")
    plain = json.loads(done.stdout)

    assert (done.exit_code, plain["letters"], plain["refused"]) == (0, len(expected), [])
    assert [each for each in ("one", "two", "other") if is_erased(app, each)] == expected
    assert EMAIL not in done.output
    assert any("backups" in each for each in plain["not_covered"])


def test_a_group_is_erased_whole(cli, app):
    fingerprint = Wiring.of(app).letters.get("one").fingerprint

    assert cli("dead", "erase", "--group", fingerprint, *WHY, "--yes").exit_code == 0

    assert is_erased(app, "one")


def test_dry_run_counts_and_changes_nothing(cli, app):
    shown = cli("dead", "erase", "--argument", f"email={EMAIL}", "--dry-run")
    plain = json.loads(cli("dead", "erase", "--argument", f"email={EMAIL}", "--dry-run", "--json").stdout)

    assert (shown.exit_code, plain["letters"], plain["dry_run"]) == (0, 2, True)
    assert "would erase the content of 2 letters" in shown.stdout
    assert EMAIL not in shown.output
    assert not is_erased(app, "one")


@pytest.mark.parametrize("words", [["--json"], []])
def test_dry_run_of_an_unknown_key_says_that_there_is_nothing(cli, words):
    """ "At most 3 keys" of a key with a slip in it was taken for a find."""
    shown = cli("dead", "erase", "--key", "mail:nobody", "--dry-run", *words)

    assert shown.exit_code == 0
    if words:
        assert ({"letters": 0, "keys": 0}) == {name: json.loads(shown.stdout)[name] for name in ("letters", "keys")}
    else:
        assert "would erase nothing: neither a letter nor a record is there" in shown.stdout


@pytest.mark.parametrize(("answer", "is_done"), [("n\n", False), ("", False), ("y\n", True)])
def test_a_person_is_asked_first(cli, app, answer, is_done):
    done = cli("dead", "erase", "one", *WHY, text=answer)

    assert is_erased(app, "one") is is_done
    assert (done.exit_code == 0) is is_done
    assert "cannot be undone" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["one", "--key", "k"], 2),
        (["one"], 2),
        (["--argument", f"email={EMAIL}", "--by", "eve", "--reason", f"asked by {EMAIL}"], 2),
        (["--argument", f"mail={EMAIL}", *WHY], 2),
        (["--argument", "email= ", *WHY], 2),
        (["--argument", EMAIL, *WHY], 2),
        (["none", *WHY], 1),
    ],
)
def test_what_cannot_be_done_erases_nothing(cli, app, words, code):
    done = cli("dead", "erase", *words, "--yes")

    assert done.exit_code == code, done.output
    assert not any(is_erased(app, each) for each in ("one", "two", "other"))


def test_a_second_time_finds_nothing_and_is_no_error(cli):
    words = ("dead", "erase", "--argument", f"email={EMAIL}", *WHY, "--yes", "--json")

    letters = [json.loads(cli(*words).stdout)["letters"] for _ in range(2)]

    assert letters == [2, 0]
    assert cli(*words).exit_code == 0


def test_letter_that_is_refused_is_named_and_makes_the_command_fail(cli, app):
    Wiring.of(app).letters.begin_replay("one", "t-9", "bob", 1.0)

    done = cli("dead", "erase", "--argument", f"email={EMAIL}", *WHY, "--yes")

    assert done.exit_code == 1
    assert "not erased: letter one: it is replaying as task t-9" in done.stderr
    assert is_erased(app, "two")


def test_erased_letter_is_shown_as_such_and_is_never_sent(cli, app):
    cli("dead", "erase", "one", *WHY, "--yes")

    shown, listed = cli("dead", "show", "one"), cli("dead", "list", "--state", "any")
    tried = [
        cli("dead", "replay", "one", "--by", "bob"),
        cli("dead", "resume", "one", "--by", "bob"),
        cli("dead", "edit", "one", "--set", "a=1", "--by", "bob", "--reason", "x"),
    ]
    again = cli("dead", "regroup")

    assert "was erased: nothing is left of its message" in shown.stdout
    assert "erased by eve: ticket 7" in shown.stdout
    assert shown.exit_code == listed.exit_code == again.exit_code == 0
    assert [each.exit_code for each in tried] == [1, 1, 1]
    assert queued(app) == 0
    assert EMAIL not in shown.output
