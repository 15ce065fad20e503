"""
`dead edit`: a copy with other arguments, and what a person sees before it is sent.
"""

import json
import stat
from decimal import Decimal

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from kombu.utils.json import dumps

from celery_safeguards import Safeguards, SafeTask
from celery_safeguards import headers as h
from celery_safeguards.cli import safeguards
from celery_safeguards.wiring import Wiring
from tests.integration.cli.odd_text import NASTY
from tests.integration.replay.shop import VALUES, make_app, queued, take
from tests.support.sockets import free_port

pytestmark = pytest.mark.redis
WHY = ("--by", "ann", "--reason", "a typing error")


@pytest.fixture(autouse=True)
def note(app):
    """The task of most letters."""

    @app.task(shared=False, base=SafeTask, name="shop.note", safeguards=Safeguards(repeatable=True))
    def note(first=None, **values):
        return first, values

    return note


def history_of(app, letter_id="letter-1"):
    return [(entry.what, entry.who) for entry in Wiring.of(app).letters.get(letter_id).history]


def sent_by(app):
    """Return the arguments of the one message that waits, and its headers."""
    message = take(app)
    args, kwargs, _ = message.payload
    return args, kwargs, message.headers


def test_one_argument_is_set_and_all_others_keep_their_types(cli, app, bury):
    """What was typed for a shell must not turn a date into text."""
    bury()

    done = cli("dead", "edit", "letter-1", "--set", 'amount={"__type__": "decimal", "__value__": "9.90"}', *WHY)

    args, kwargs, headers = sent_by(app)
    assert (done.exit_code, done.stderr) == (0, "")
    assert (args, kwargs) == ([], {**VALUES, "amount": Decimal("9.90")})
    assert (headers[h.EDITED_FROM], headers["id"] in done.stdout) == ("letter-1", True)
    assert history_of(app) == [("edit begun", "ann"), ("edited as new", "ann")]


@pytest.mark.parametrize(
    ("body", "words", "expected"),
    [
        ([[1], {"b": 2}], ["--args", "[7]"], ([7], {"b": 2})),
        ([[1], {"b": 2}], ["--kwargs", '{"c": null}'], ([1], {"c": None})),
        ([[1], {"b": 2}], ["--set", "first=9", "--set", 'b="x=y"'], ([9], {"b": "x=y"})),
        ([[], {"b": 2}], ["--set", "first=9"], ([], {"b": 2, "first": 9})),
    ],
)
def test_arguments_are_given_whole_or_by_name(cli, app, bury, body, words, expected):
    """A positional argument that is set by its name is not given twice."""
    bury(body=json.dumps([*body, {}]).encode())

    done = cli("dead", "edit", "letter-1", *words, *WHY, "--json")

    assert done.exit_code == 0, done.stderr
    assert sent_by(app)[:2] == expected
    assert json.loads(done.stdout)["letter_id"] == "letter-1"


def test_queue_and_time_are_set(cli, app, bury, namespace):
    bury()
    app.amqp.queues.add(f"{namespace}-slow")

    cli("dead", "edit", "letter-1", "--queue", f"{namespace}-slow", *WHY)
    cli("dead", "edit", "letter-1", "--eta", "2099-01-01T00:00+00:00", *WHY)
    later = sent_by(app)[2]["eta"]
    cli("dead", "edit", "letter-1", "--countdown", "3600", *WHY)
    counted = sent_by(app)[2]["eta"]

    assert queued(app, f"{namespace}-slow") == 1
    assert later == "2099-01-01T00:00:00+00:00"
    assert counted is not None


def test_dry_run_tells_what_would_happen_and_sends_nothing(cli, app, bury):
    bury(group_id="g-7", headers={"group": "g-7"})

    shown = cli("dead", "edit", "letter-1", "--set", "amount=1", "--dry-run")
    plain = json.loads(cli("dead", "edit", "letter-1", "--set", "amount=1", "--dry-run", "--json").stdout)
    locked = json.loads(cli("dead", "edit", "letter-1", "--dry-run", "--json").stdout)

    assert (shown.exit_code, queued(app), history_of(app)) == (0, 0, [])
    for part in (
        "the copy          changes kwargs.amount",
        "leaves its group or chord",
        "then, in its chain: shop.ship",
        "locked: task",
    ):
        assert part in shown.stdout
    assert 'args              []\nkwargs            { "' in shown.stdout
    assert (plain["changes"], plain["kwargs"]["amount"]) == (["kwargs.amount"], 1)
    assert plain["kwargs"]["at"]["__type__"] == "datetime"
    assert (locked["changes"], locked["notes"]) == ([], [])
    assert {each["name"] for each in locked["locked"]} >= {"task", "key", "task id", "group or chord"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--set", "amount=1"], 2),
        (["--set", "amount=1", "--by", "ann", "--reason", " "], 2),
        (["--set", "amount", *WHY], 2),
        (["--set", "amount=nine", *WHY], 2),
        (["--args", "{}", *WHY], 2),
        (["--kwargs", "[]", *WHY], 2),
        (["--kwargs", '{"a": 1, "a": 2}', *WHY], 2),
        (["--kwargs", '{"a": {"__type__": "decimal", "__value__": "x"}}', *WHY], 2),
        (["--kwargs", '{"a": {"__type__": "money", "__value__": 1}}', *WHY], 2),
        (["--eta", "tomorrow", *WHY], 2),
        (["--countdown", "-1", *WHY], 2),
        (["--args", "[1, 2]", *WHY], 1),
        (["--queue", "nowhere", *WHY], 1),
        (["--eta", "2099-01-01T00:00", *WHY], 2),
        (["--eta", "2099-01-01T00:00+00:00", "--countdown", "5", *WHY], 2),
        (["--kwargs", "[" * 5000, *WHY], 2),
        (["--args", "[" * 200 + "]" * 200, *WHY], 2),
    ],
)
def test_edit_that_makes_no_sense_sends_nothing(cli, app, bury, words, code):
    bury()

    done = cli("dead", "edit", "letter-1", *words)

    assert (done.exit_code, queued(app), history_of(app)) == (code, 0, []), done.output


def test_doubt_asks_for_consent(cli, app, bury):
    @app.task(shared=False, base=SafeTask, name="shop.mail")
    def mail(**values):
        return values

    bury(task="shop.mail", headers={"task": "shop.mail"}, effect_possible=True)
    words = ("dead", "edit", "letter-1", "--set", "amount=1", *WHY)

    codes = [cli(*words).exit_code, cli(*words, "--yes-it-may-run-twice").exit_code]

    assert (codes, queued(app)) == ([1, 0], 1)


@pytest.mark.parametrize("letter_id", ["none", "pickled"])
def test_letter_that_cannot_be_edited_exits_with_1(cli, app, bury, letter_id):
    bury("pickled", body=b"\x80\x04.", content_type="application/x-python-serialize")

    done = cli("dead", "edit", letter_id, "--set", "a=1", *WHY)

    assert (done.exit_code, queued(app)) == (1, 0)
    assert done.stderr


def test_broker_that_is_away_exits_with_3(bury, redis_url, namespace):
    """The copy may be out: a script must not take it for refused."""
    bury()
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline:

        @offline.task(shared=False, base=SafeTask, name="shop.note", safeguards=Safeguards(repeatable=True))
        def note(**values):
            return values

        context = CLIContext(app=offline, no_color=True, workdir=None)
        done = CliRunner().invoke(safeguards, ["dead", "edit", "letter-1", "--set", "a=1", *WHY], obj=context)

    assert done.exit_code == 3
    assert "not known to be sent" in done.stderr


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Have an editor that runs a line of sed over the file."""

    def choose(expression):
        script = tmp_path / "editor.sh"
        script.write_text(f"#!/bin/sh\nsed -i '{expression}' \"$1\"\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("VISUAL", str(script))
        monkeypatch.setenv("EDITOR", str(script))

    return choose


@pytest.mark.parametrize(
    "case",
    [
        ('s/"10.10"/"99.90"/', 0, Decimal("99.90")),
        ("s/nothing-of-it/x/", 1, None),
        ("s/}//", 2, None),
        ('s/"queue": null/"queue": 3/', 2, None),
        ('s/"queue": null/"colour": 3/', 2, None),
    ],
)
def test_editor_opens_when_nothing_is_given(cli, app, bury, editor, case):
    expression, code, amount = case
    bury()
    editor(expression)

    done = cli("dead", "edit", "letter-1", *WHY)

    assert done.exit_code == code, done.output
    assert queued(app) == (0 if amount is None else 1)
    if amount is not None:
        assert sent_by(app)[1] == {**VALUES, "amount": amount}


def test_text_of_a_stranger_does_nothing_to_the_terminal(cli, bury):
    bury(body=str(dumps([[], {"name": f"{NASTY}\ud800", NASTY: 1}, {}])).encode())

    shown = cli("dead", "edit", "letter-1", "--kwargs", "{}", "--dry-run")

    assert shown.exit_code == 0
    assert not set("\x1b\x07\u202e\x9b\x00") & set(shown.output)


def test_show_tells_what_a_letter_was_edited_from(cli, bury):
    bury("copy", headers={h.EDITED_FROM: "letter-1"})

    shown = cli("dead", "show", "copy").stdout

    assert "edited from       letter-1" in shown
