"""
What each command needs, where the project says who may do what.
"""

from dataclasses import replace

import pytest

from celery_safeguards.cli import safeguards
from celery_safeguards.cli.rights import NEEDS, Right, commands_of
from celery_safeguards.wiring import Wiring

pytestmark = pytest.mark.redis

WHY = ("--reason", "asked")
GIVEN = {
    "dead list": (),
    "dead show": ("l",),
    "dead groups": (),
    "dead group": ("g",),
    "dead triage": ("g", "--status", "muted", *WHY),
    "dead replay": ("l",),
    "dead resume": ("l",),
    "dead discard": ("l", *WHY),
    "dead archive": ("l", *WHY),
    "dead restore": ("l",),
    "dead edit": ("l", "--args", "[1]", *WHY),
    "dead export": (),
    "dead erase": ("l", *WHY),
    "keys show": ("k",),
    "locks list": (),
    "locks show": ("e",),
    "locks release": ("e", *WHY),
    "overdue": (),
    "replays start": ("--all", *WHY),
    "replays run": ("j",),
    "replays pause": ("j",),
    "replays resume": ("j",),
    "replays cancel": ("j",),
    "replays list": (),
    "replays show": ("j",),
}


class Rights:
    """The project's function: what it was asked, and what it allows."""

    def __init__(self):
        self.asked, self.allowed = [], set()

    def __call__(self, name, right):
        self.asked.append((name, right))
        return right in self.allowed


@pytest.fixture
def rights(app):
    """Nobody may do anything."""
    rights = Rights()
    set_function(app, rights)
    return rights


def set_function(app, function):
    wiring = Wiring.of(app)
    replace(wiring, settings=replace(wiring.settings, command_rights=function)).use_for(app)


def test_every_command_is_in_the_table():
    """A new one would be free to all."""
    assert {words for words, _ in commands_of(safeguards)} == set(NEEDS)


def test_every_command_that_needs_a_right_is_tried_here():
    assert {words for words, needs in NEEDS.items() if needs} == set(GIVEN)


@pytest.mark.parametrize("words", GIVEN)
def test_nobody_may_without_its_right(cli, rights, words):
    done = cli(*words.split(), *GIVEN[words])

    assert (1, "", True) == (done.exit_code, done.stdout, "may not: " in done.stderr)


def test_refused_command_changes_nothing_and_an_allowed_one_does(app, cli, bury, rights):
    letter = bury()
    words = ("dead", "discard", letter.id, "--by", "vera", *WHY)

    refused, before = cli(*words), state(app, letter)
    rights.allowed.add("discard")
    done, after = cli(*words), state(app, letter)

    assert (1, "open", 0, "discarded") == (refused.exit_code, before, done.exit_code, after)


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("dead", "replay", "l", "--did-not-happen", *WHY), Right.RESOLVE),
        (("dead", "resume", "l", "--happened", "1"), Right.RESOLVE),
        (("overdue", "--resend"), Right.REPLAY),
        # Whether a guess is an argument's value, is told to those who may see it.
        (("dead", "export", "--argument", "email=ann"), f"{Right.EXPORT}, {Right.VIEW_PAYLOAD}"),
        (("dead", "export", "--find", "ann"), f"{Right.EXPORT}, {Right.VIEW_PAYLOAD}"),
        (("replays", "start", "--all", "--dry-run", "--ask", "1"), f"{Right.REPLAY}, {Right.VIEW_PAYLOAD}"),
    ],
)
def test_what_a_command_needs_depends_on_what_it_is_told(cli, rights, words, right):
    done = cli(*words)

    assert f"needs {right}" in done.stderr


def test_group_is_printed_to_those_alone_who_may_see_what_failed(cli, bury, rights):
    """Its document quotes the newest failure."""
    words = ("dead", "triage", bury(error_message="no mailbox ann").fingerprint, "--status", "muted", *WHY)
    rights.allowed.add("triage")

    refused, done = cli(*words, "--json"), cli(*words)

    assert (1, "", True) == (refused.exit_code, refused.stdout, "needs view, view_payload" in refused.stderr)
    assert (0, False) == (done.exit_code, "ann" in done.output)


def test_name_that_is_asked_about_is_the_one_that_is_given(cli, rights):
    cli("dead", "discard", "l", "--by", "vera", *WHY)

    assert ("vera", "discard") in rights.asked


def test_who_only_reads_is_asked_about_by_the_login_name(cli, rights, monkeypatch):
    monkeypatch.setenv("LOGNAME", "rita")
    done = cli("locks", "list")

    assert ([("rita", "view_locks")], True) == (rights.asked, "rita may not" in done.stderr)


def test_function_that_cannot_be_imported_lets_nobody_in(app, cli):
    set_function(app, "no.such.function")

    done = cli("dead", "list")

    assert (2, True) == (done.exit_code, "cannot be imported" in done.stderr)


def state(app, letter):
    return Wiring.of(app).letters.get(letter.id).state
