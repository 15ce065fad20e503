"""
The corpus of `tests.support.nasty` at the command line: a terminal obeys none of it, and JSON stays JSON.
"""

import json
import logging

import pytest

from celery_safeguards.wiring import Wiring
from tests.support.nasty import MOST_BYTES, NASTY, traces

pytestmark = pytest.mark.redis


@pytest.mark.parametrize("name", NASTY)
def test_commands_say_it_and_do_nothing_else(cli, app, bury, name, caplog):
    """Whoever is called at night types `dead show` before he thinks of what may be in it."""
    caplog.set_level(logging.DEBUG, "celery_safeguards")
    letter = bury("nasty", **NASTY[name])
    Wiring.of(app).letters.add_note("nasty", letter.reason, letter.reason, letter.reason)
    assert cli("dead", "regroup").exit_code == 0
    fingerprint = Wiring.of(app).letters.get("nasty").fingerprint
    edit = ("dead", "edit", "nasty", "--set", "mended=1", "--by", "eve", "--reason", "x", "--dry-run")
    said = {
        words: cli(*words)
        for each in (
            ("dead", "list"),
            ("dead", "show", "nasty"),
            ("dead", "groups"),
            ("dead", "group", fingerprint),
            ("dead", "replay", "nasty", "--by", "eve", "--dry-run"),
            ("replays", "start", "--group", fingerprint, "--dry-run"),
            edit,
        )
        for words in (each, (*each, "--json"))
    }

    for words, answer in said.items():
        is_refused = answer.exit_code == 2 and "No such option" in answer.output
        assert answer.exception is None or isinstance(answer.exception, SystemExit), (words, answer.exception)
        assert traces(answer.output, lines=True) - {"\r"} == set(), words
        assert "\r" not in answer.output, words
        assert len(answer.output) <= MOST_BYTES * 12, words
        if words[-1] == "--json" and not is_refused and answer.stdout:
            assert isinstance(json.loads(answer.stdout), dict), words
            assert answer.stdout.isascii(), words
    assert said["dead", "list"].exit_code == said["dead", "show", "nasty"].exit_code == 0
    assert traces(caplog.text, lines=True) == set()


@pytest.mark.parametrize("name", ["script", "escapes", "bidi", "nul and surrogates", "template"])
def test_what_is_typed_is_said_clean(cli, bury, name):
    """A name that somebody pasted from a message is as much a stranger's as the message."""
    text = NASTY[name]["key"]
    bury("nasty")
    tried = [
        cli("dead", "list", "--find", text),
        cli("dead", "list", "--task", text),
        cli("dead", "list", "--group", text),
        cli("dead", "list", "--argument", text),
        cli("dead", "list", "--before", text),
        cli("dead", "show", text),
        cli("dead", "group", text),
        cli("dead", "edit", text, "--set", text, "--by", text, "--reason", text),
        cli("dead", "edit", "nasty", "--set", f"{text}={text}", "--by", "eve", "--reason", "x"),
        cli("dead", "discard", text, "--by", "eve", "--reason", text),
        cli("dead", "erase", text, "--by", "eve", "--reason", text, "--yes"),
        cli("dead", "erase", "--key", text, "--by", "eve", "--reason", "x", "--yes"),
        cli("dead", "archive", text, "--by", "eve", "--reason", text),
        cli("replays", "show", text),
        cli("keys", "show", text),
        cli("locks", "show", text),
        cli("dead", "triage", text, "--by", text, "--resolve", "--reason", text),
        cli("dead", "discard", "nasty", "--by", text, "--reason", text),
        cli("dead", "show", "nasty"),
    ]

    for number, answer in enumerate(tried):
        assert answer.exception is None or isinstance(answer.exception, SystemExit), (number, answer.exception)
        assert traces(answer.output, lines=True) == set(), (number, answer.output)
