"""
No command shows a secret: not of a letter, nor of its group, its record, or its retry.
"""

import json
import logging
import stat
from dataclasses import replace

import pytest

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask
from celery_safeguards.deadletter.shown import redaction
from celery_safeguards.errors import KeyRefused
from celery_safeguards.outcome import FailureKind
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import run, take

pytestmark = pytest.mark.redis
CANARY = "hunter2'é"
SURFACES = {
    "list": ("dead", "list"),
    "list as JSON": ("dead", "list", "--json"),
    "search": ("dead", "list", "--find", "ann"),
    "search as JSON": ("dead", "list", "--find", "ann", "--json"),
    "letter": ("dead", "show", "LETTER"),
    "letter as JSON": ("dead", "show", "LETTER", "--json"),
    "groups": ("dead", "groups"),
    "groups as JSON": ("dead", "groups", "--json"),
    "group": ("dead", "group", "GROUP"),
    "group as JSON": ("dead", "group", "GROUP", "--json"),
    "record": ("keys", "show", 'login:"ann"'),
    "record as JSON": ("keys", "show", 'login:"ann"', "--json"),
    "replay": ("dead", "replay", "LETTER", "--by", "bob"),
    "discarding": ("dead", "discard", "LETTER", "--by", "bob", "--reason", "a test"),
}
QUIET = {"search", "search as JSON", "replay", "discarding"}
"""Surfaces that show no error in any case, or only by a text that the terminal cuts."""


def log_in_of(app, attempts):
    """Register a task whose error quotes what it was given."""

    @app.task(
        shared=False,
        base=SafeTask,
        name="shop.log_in",
        safeguards=Safeguards(
            idempotent=Idempotent("login:{user}", on_unknown="rerun"), retry=RetryPolicy(attempts=attempts)
        ),
    )
    def log_in(user, password):
        raise ConnectionRefusedError(f"the directory refuses {user} with {password}, that is {password!r}")

    return log_in


@pytest.fixture(params=["redacted", "shown"])
def is_redacted(request, monkeypatch):
    if request.param == "shown":
        monkeypatch.setattr(redaction, "SECRETS", ("no-such-name",))
    return request.param == "redacted"


@pytest.fixture(autouse=True)
def searchable(app):
    wiring = Wiring.of(app)
    replace(wiring, settings=replace(wiring.settings, searchable_arguments=("user",))).use_for(app)


@pytest.mark.parametrize("is_passed_by", ["place", "name"])
@pytest.mark.parametrize("surface", SURFACES)
def test_no_command_shows_a_secret(cli, app, is_redacted, surface, is_passed_by, caplog):
    """A terminal is shared, recorded and pasted into a chat; a JSON export is mailed."""
    caplog.set_level(logging.DEBUG, "celery_safeguards")
    log_in = log_in_of(app, attempts=1)
    args, kwargs = (["ann", CANARY], {}) if is_passed_by == "place" else ([], {"user": "ann", "password": CANARY})
    log_in.apply_async(args, kwargs, headers={"x-token": CANARY})
    run(app)
    (letter,) = Wiring.of(app).letters.list().letters
    Wiring.of(app).letters.add_note(letter.id, "tried", "bob", f"it says {CANARY}")

    words = [{"LETTER": letter.id, "GROUP": letter.fingerprint}.get(each, each) for each in SURFACES[surface]]
    shown = cli(*words)

    assert shown.exit_code == 0
    if is_redacted:
        assert "hunter2" not in shown.output
        ours = [each.getMessage() for each in caplog.records if each.name.startswith("celery_safeguards")]
        assert "hunter2" not in "\n".join(ours)
    elif surface not in QUIET:
        assert "hunter2" in shown.output
    # What is shown is no part of what is sent.
    assert "hunter2" in Wiring.of(app).letters.get(letter.id).wire.body.decode()


def test_record_of_work_that_is_tried_again_keeps_no_secret(cli, app, is_redacted):
    """There is no letter yet, whose arguments would tell what the error quotes."""
    log_in_of(app, attempts=3).apply_async(["ann", CANARY])
    run(app)

    shown = cli("keys", "show", 'login:"ann"', "--json").output

    assert "the directory refuses ann" in shown
    assert ("hunter2" in shown) is not is_redacted


def test_replayed_message_is_whole(cli, app):
    """A replay with a mark for a password would fail for ever."""
    log_in_of(app, attempts=1).apply_async(["ann", CANARY])
    run(app)
    (letter,) = Wiring.of(app).letters.list().letters

    cli("dead", "replay", letter.id, "--by", "bob")
    run(app)

    assert CANARY in Wiring.of(app).letters.get(letter.id).error_message


def test_projects_function_has_the_last_word(cli, app, bury):
    wiring = Wiring.of(app)

    def redact(context, value):
        return f"<{context.what}>" if context.what in {"error", "reason"} else value

    replace(wiring, settings=replace(wiring.settings, redact=redact)).use_for(app)
    group = bury(kind=FailureKind.DATA).fingerprint

    for words in (("list",), ("show", "letter-1"), ("groups",), ("group", group)):
        output = cli("dead", *words).output
        assert ("no such order" in output, "<error>" in output) == (False, True), words


@pytest.mark.parametrize("redact", ["no.such.function", lambda *_: 1 / 0], ids=["absent", "raises"])
def test_function_that_fails_shows_marks_and_lets_letters_be_found(cli, app, bury, redact):
    """A mistake in the function must not hide the desk from whoever is on call."""
    wiring = Wiring.of(app)
    replace(wiring, settings=replace(wiring.settings, redact=redact)).use_for(app)
    bury()

    shown = cli("dead", "show", "letter-1")

    assert (shown.exit_code, "no such order" in shown.output) == (0, False)
    assert "[redaction failed]" in shown.stdout
    assert "letter-1" in cli("dead", "list").stdout


EDITS = {
    "dry run": ("--dry-run",),
    "dry run as JSON": ("--dry-run", "--json"),
    "change ahead": ("--set", 'user="bob"', "--dry-run"),
    "change ahead as JSON": ("--set", 'user="bob"', "--dry-run", "--json"),
    "sent": ("--set", 'user="bob"'),
    "sent as JSON": ("--set", 'user="bob"', "--json"),
    "in an editor": (),
    "refused": ("--set", "user=null"),
    "moved": ("--set", 'comment="[redacted 1]"'),
}


@pytest.mark.parametrize("edit", EDITS)
def test_no_edit_shows_a_secret(cli, app, edit, tmp_path, monkeypatch, is_redacted):
    """An editor writes its file to a disk, and keeps copies of it."""
    log_in_of(app, attempts=1).apply_async(["ann", CANARY])
    run(app)
    (letter,) = Wiring.of(app).letters.list().letters
    kept, script = tmp_path / "kept.json", tmp_path / "editor.sh"
    script.write_text(f'#!/bin/sh\ncp "$1" {kept}\nsed -i s/ann/bob/ "$1"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.setenv(name, str(script))

    done = cli("dead", "edit", letter.id, *EDITS[edit], "--by", "eve", "--reason", "wrong user")

    shown = done.output + (kept.read_text() if kept.exists() else "")
    assert kept.exists() is (edit == "in an editor")
    assert "hunter2" not in shown or not is_redacted
    if edit in {"dry run", "dry run as JSON", "in an editor"}:
        assert ("hunter2" in shown) is not is_redacted
    message = take(app)
    if edit.startswith("sent") or edit == "in an editor":
        assert (done.exit_code, message.payload[0]) == (0, ["bob", CANARY])
    else:
        assert message is None
    said = [entry.detail for entry in Wiring.of(app).letters.get(letter.id).history]
    assert "hunter2" not in str(said)


@pytest.mark.parametrize("text", ["[redacted]", "[redacted 9]", "[redaction failed]"])
def test_no_edit_sends_what_is_shown_for_a_secret(cli, app, text):
    log_in_of(app, attempts=1).apply_async(["ann", CANARY])
    run(app)
    (letter,) = Wiring.of(app).letters.list().letters

    done = cli("dead", "edit", letter.id, "--set", f"password={json.dumps(text)}", "--by", "eve", "--reason", "x")

    assert (done.exit_code, take(app)) == (1, None)
    assert "stands for a hidden value" in done.stderr


@pytest.mark.parametrize("is_broken_at", ["key", "publish"])
def test_error_of_an_edit_that_quotes_a_new_secret_is_masked(cli, app, bury, is_broken_at):
    """What cannot be published tends to be quoted by what could not publish it, into a history that is kept."""

    class LogIn(SafeTask):
        def apply_async(self, args=None, kwargs=None, *more, **options):
            raise RuntimeError(f"the gate does not know {kwargs}")

        def key_headers(self, args, kwargs):
            if is_broken_at == "key":
                raise KeyRefused(f"no key of {kwargs}")
            return {}

    @app.task(shared=False, base=LogIn, name="shop.note", safeguards=Safeguards(repeatable=True))
    def note(**values):
        return values

    bury(body=json.dumps([[], {"password": CANARY}, {}]).encode())

    done = cli("dead", "edit", "letter-1", "--set", 'password="a-new-one"', "--by", "eve", "--reason", "x")

    assert done.exit_code in {1, 3}
    said = done.output + str(Wiring.of(app).letters.get("letter-1").history)
    assert ("no key of" if is_broken_at == "key" else "the gate does not know") in said
    assert "a-new-one" not in said
    assert "hunter2" not in said
