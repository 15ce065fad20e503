"""
The command line, in process for its answers, and by `celery -A` for what a shell and a script see of it.
"""

import json
import os
import subprocess
import sys
import tomllib

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner
from kombu.utils.json import dumps

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from celery_safeguards import headers as h
from celery_safeguards.cli import safeguards
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.outcome import FailureKind
from celery_safeguards.policy import CannotTell
from celery_safeguards.wiring import Wiring
from tests.integration.test_replay import VALUES, make_app
from tests.support.sockets import free_port
from tests.support.workers import ROOT

pytestmark = pytest.mark.redis

NASTY = "\x1b[2J\x1b]0;owned\x07 \x00 \u202egnp.exe \x9b31m \r\nSECOND LINE"


@pytest.fixture
def app(redis_url, namespace):
    """A shop with an idempotent task, a plain one, and a store that is declared new."""
    with make_app(redis_url, redis_url, namespace) as app:
        Wiring.of(app).admission.declare_new()

        @app.task(
            shared=False,
            base=SafeTask,
            name="shop.charge",
            safeguards=Safeguards(
                idempotent=Idempotent("order:{order_id}", on_unknown="quarantine", quiet_seconds=0),
                retry=RetryPolicy(attempts=1),
            ),
        )
        def charge(order_id, is_broken=False):
            if is_broken:
                raise ValueError("no such order")
            return order_id

        @app.task(
            shared=False,
            base=SafeTask,
            name="shop.pay",
            safeguards=Safeguards(
                idempotent=Idempotent("order:{order_id}", scope="payments", on_unknown=Verify(CannotTell))
            ),
        )
        def pay(order_id):
            return order_id

        yield app


@pytest.fixture
def cli(app):
    """Run a command as `cli("dead", "list")`."""

    def run(*words, text=None):
        context = CLIContext(app=app, no_color=True, workdir=None)
        return CliRunner().invoke(safeguards, [*words], obj=context, input=text)

    return run


@pytest.fixture
def bury(app, namespace):
    """Put a letter into the store."""

    def put(letter_id="letter-1", *, headers=None, body=None, content_type="application/json", **changes):
        wire = WireMessage(
            body=body or str(dumps([[], VALUES, {"chain": [{"task": "shop.ship"}]}])).encode(),
            content_type=content_type,
            content_encoding="utf-8",
            headers={"task": "shop.note", "id": "t-1", "root_id": "t-1", **(headers or {})},
            properties={"correlation_id": "t-1"},
            delivery_info={"exchange": "", "routing_key": namespace},
        )
        given = {
            "id": letter_id,
            "task": "shop.note",
            "task_id": "t-1",
            "wire": wire,
            "kind": FailureKind.BUG,
            "effect_possible": False,
            "reason": "attempt 4 of 4",
            "error_type": "builtins.ValueError",
            "error_message": "no such order",
            "first_seen_seconds": 1_750_000_000.0,
            "last_failed_seconds": 1_750_000_060.0,
        }
        letter = Letter(**{**given, **changes})
        Wiring.of(app).letters.bury(letter)
        return letter

    return put


def queued(app):
    with app.connection_for_read() as connection:
        return connection.default_channel.client.llen(app.conf.task_default_queue)


def state_of(app, letter_id):
    return Wiring.of(app).letters.get(letter_id).state


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


# --- dead replay, resume, discard


def test_replay_tells_the_result_of_each_letter(cli, app, bury):
    """ "Done" for a batch of which half was refused is a lie (HangfireIO/Hangfire#4)."""
    bury("one")
    bury("two", effect_possible=True)

    replayed = cli("dead", "replay", "one", "two", "none", "--by", "ann", "--json")
    results = json.loads(replayed.stdout)["results"]

    assert replayed.exit_code == 1
    assert [result["fate"] for result in results] == ["replayed", "refused", "refused"]
    assert (queued(app), state_of(app, "one"), state_of(app, "two")) == (1, "replayed", "open")


def test_replay_of_all_sends_what_the_filters_choose(cli, app, bury):
    """After a fix of one bug only its letters go back."""
    bury("mine", kind=FailureKind.DATA)
    bury("mine-too", kind=FailureKind.DATA)
    bury("other")

    replayed = cli("dead", "replay", "--all", "--kind", "data", "--by", "ann", "--yes", "--per-second", "1000")

    assert (replayed.exit_code, replayed.stderr) == (0, "2 of 2 replayed\n")
    assert (queued(app), state_of(app, "other")) == (2, "open")


def test_replay_of_all_asks_before_it_sends(cli, app, bury):
    """The arrow key and Enter brought the command back from yesterday."""
    bury()

    replayed = cli("dead", "replay", "--all", "--by", "ann", text="n\n")

    assert replayed.exit_code == 1
    assert "Replay 1 letters?" in replayed.stderr
    assert queued(app) == 0


def test_replay_under_the_login_name(cli, app, bury, monkeypatch):
    """Nobody types his name at three in the morning, and the history still needs it."""
    monkeypatch.setenv("LOGNAME", "night-shift")
    bury()

    cli("dead", "replay", "letter-1")

    assert Wiring.of(app).letters.get("letter-1").history[0].who == "night-shift"


def test_verdict_of_happened_travels_with_the_message(cli, app, bury):
    """The person's word must reach admission as he gave it."""
    bury("paid", key="order:1", scope="shop.charge", task="shop.charge", effect_possible=True)

    refused = cli("dead", "replay", "paid", "--by", "ann")
    replayed = cli("dead", "replay", "paid", "--by", "ann", "--happened", '{"id": 7}')

    with app.connection_for_read() as connection:
        message = app.amqp.queues[app.conf.task_default_queue](connection.default_channel).get(no_ack=True)
    assert (refused.exit_code, replayed.exit_code) == (1, 0)
    assert message.headers[h.VERDICT] == {"happened": True, "result": {"id": 7}}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["letter-1", "--all"],
        ["letter-1", "--kind", "data"],
        ["--all", "--did-not-happen", "--yes"],
        ["letter-1", "letter-2", "--happened", "1"],
        ["letter-1", "--happened", "1", "--did-not-happen"],
        ["letter-1", "--happened", "paid"],
        ["letter-1", "--per-second", "0"],
        ["letter-1", "--by", " "],
    ],
)
def test_words_that_make_no_sense_together_change_nothing(cli, app, bury, words):
    """A verdict on everything, or on the wrong letter, doubles or loses an effect."""
    bury()

    replayed = cli("dead", "replay", "--by", "ann", *words)

    assert replayed.exit_code == 2
    assert (queued(app), state_of(app, "letter-1")) == (0, "open")


def test_resume_sends_what_was_cut_short(cli, app, bury):
    """A letter that says replaying for ever is work that is lost in plain sight."""
    bury()
    Wiring.of(app).letters.begin_replay("letter-1", "allocated", "ann", 1.0)

    unasked = cli("dead", "resume", "letter-1", "--by", "bob")
    resumed = cli("dead", "resume", "letter-1", "--by", "bob", "--yes-it-may-run-twice", "--json")

    assert (unasked.exit_code, resumed.exit_code) == (1, 0)
    assert json.loads(resumed.stdout)["task_id"] == "allocated"
    assert (queued(app), state_of(app, "letter-1")) == (1, "replayed")


def test_discard_needs_a_reason(cli, app, bury):
    """Given up without a reason, nobody knows a week later whether it was right."""
    bury()

    codes = [
        cli("dead", "discard", "letter-1", "--by", "ann", *words).exit_code
        for words in ([], ["--reason", "a test order"], ["--reason", "a second try finishes what was cut short"])
    ]

    assert codes == [2, 0, 0]
    assert state_of(app, "letter-1") == "discarded"


def test_discard_refuses_a_letter_that_is_being_replayed(cli, app, bury):
    """The replay would run on while its letter says that the work is given up."""
    bury()
    Wiring.of(app).letters.begin_replay("letter-1", "new-task", "bob", 0.0)

    refused = cli("dead", "discard", "letter-1", "--by", "ann", "--reason", "a test order")

    assert refused.exit_code == 1
    assert state_of(app, "letter-1") == "replaying"


# --- keys show, store init


def test_key_is_shown_with_the_state_of_its_record(cli, app):
    """ "Why does order 7 not run?" is answered by one command."""
    app.tasks["shop.charge"].apply(kwargs={"order_id": 7})

    shown = cli("keys", "show", "order:7", "--json")
    (record,) = json.loads(shown.stdout)["records"]

    assert (record["scope"], record["state"], record["attempts"]) == ("shop.charge", "done", 1)
    assert (record["result_form"], record["lease_left_seconds"]) == ("stored", None)
    assert "result" not in record


def test_key_of_dead_work_names_its_letter(cli, app):
    """From the key to the letter, and from the letter to the replay."""
    app.tasks["shop.charge"].apply(kwargs={"order_id": 7, "is_broken": True})

    shown = cli("keys", "show", "order:7", "--task", "shop.charge")

    (letter,) = Wiring.of(app).letters.list().letters
    assert shown.exit_code == 0
    assert "dead" in shown.stdout
    assert letter.id in shown.stdout


def test_key_is_looked_for_in_every_scope_of_the_app(cli, app):
    """Whoever reads a key in a log does not know its scope."""
    app.tasks["shop.charge"].apply(kwargs={"order_id": 7})
    app.tasks["shop.pay"].apply(kwargs={"order_id": 7})

    found = [
        [record["scope"] for record in json.loads(cli("keys", "show", "order:7", *words, "--json").stdout)["records"]]
        for words in ([], ["--task", "shop.pay"], ["--scope", "shop.charge"])
    ]

    assert found == [["payments", "shop.charge"], ["payments"], ["shop.charge"]]


def test_key_without_a_record_exits_with_1_and_names_where_it_looked(cli):
    """Not found in the wrong scope is not "never started"."""
    shown = cli("keys", "show", "order:8")

    assert shown.exit_code == 1
    # Other apps of this process may have given their shared tasks to this one.
    assert shown.stderr.startswith("no record of order:8 in ")
    assert {"payments", "shop.charge"} <= set(shown.stderr.strip().partition(" in ")[2].split(", "))


def test_store_is_declared_new_only_when_it_is_confirmed(redis_url, namespace):
    """Lifted under running workers, the pause lets a second body start beside the first."""
    with make_app(redis_url, redis_url, namespace) as app:
        context = CLIContext(app=app, no_color=True, workdir=None)
        refused = CliRunner().invoke(safeguards, ["store", "init"], obj=context, input="n\n")
        paused = Wiring.of(app).admission.view().admit_from_us
        declared = CliRunner().invoke(safeguards, ["store", "init", "--yes"], obj=context)

        assert (refused.exit_code, declared.exit_code) == (1, 0)
        assert paused > 0
        assert Wiring.of(app).admission.view().admit_from_us == 0


# --- exit codes


def test_store_that_is_away_exits_with_3(redis_url, namespace):
    """A script must tell "nothing is dead" from "nobody answered"."""
    away = f"redis://127.0.0.1:{free_port()}/0"
    with make_app(redis_url, away, namespace) as app:
        context = CLIContext(app=app, no_color=True, workdir=None)
        codes = [
            CliRunner().invoke(safeguards, words, obj=context).exit_code
            for words in (["dead", "list"], ["dead", "replay", "x", "--by", "ann"], ["keys", "show", "k"])
        ]

    assert codes == [3, 3, 3]


def test_broker_that_is_away_exits_with_3(bury, redis_url, namespace):
    """The letter is replaying, and the batch must not read as refused."""
    bury()
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline:
        context = CLIContext(app=offline, no_color=True, workdir=None)
        replayed = CliRunner().invoke(safeguards, ["dead", "replay", "letter-1", "--by", "ann"], obj=context)

    assert replayed.exit_code == 3
    assert "not published: letter letter-1 is replaying as task" in replayed.stdout


def test_app_without_a_store_is_a_usage_error():
    """A missing setting must be named, not traced."""
    with Celery("bare", broker="amqp://", set_as_current=False) as app:
        context = CLIContext(app=app, no_color=True, workdir=None)
        listed = CliRunner().invoke(safeguards, ["dead", "list"], obj=context)

    assert listed.exit_code == 2
    assert "safeguards_store_url" in listed.stderr


# --- through the shell

APP_MODULE = """
import os
from celery import Celery

app = Celery("shop", broker=os.environ["SHOP_URL"])
app.conf.update(
    task_default_queue=os.environ["SHOP_NAMESPACE"],
    safeguards_namespace=os.environ["SHOP_NAMESPACE"],
    broker_transport_options={"global_keyprefix": os.environ["SHOP_NAMESPACE"] + "."},
)
"""


@pytest.fixture
def shell(tmp_path, redis_url, namespace):
    """
    Run `celery -A shop_for_cli ...`.

    The entry points are those of pyproject.toml, whatever the installed metadata says.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / "celery_safeguards-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-safeguards\nVersion: 0\n")
    points = "\n".join(f"{name} = {target}" for name, target in project["entry-points"]["celery.commands"].items())
    (metadata / "entry_points.txt").write_text(f"[celery.commands]\n{points}\n")
    (tmp_path / "shop_for_cli.py").write_text(APP_MODULE)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "SHOP_URL": redis_url}

    def run(*words):
        command = [sys.executable, "-m", "celery", "-A", "shop_for_cli:app", *words]
        given = {**env, "SHOP_NAMESPACE": namespace}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_celery_command_lists_replays_and_exits_as_documented(shell, app, bury):
    """The entry point is what every operator and every script goes through."""
    bury(NASTY)

    listed = shell("safeguards", "dead", "list", "--json")
    replayed = shell("safeguards", "dead", "replay", NASTY.replace("\x00", "\ufffd"), "--by", "ann", "--json")
    bury("second")
    again = shell("safeguards", "dead", "replay", "second", "--by", "ann")
    gone = shell("safeguards", "dead", "show", "none")
    misused = shell("safeguards", "dead", "replay")

    assert [each.returncode for each in (listed, replayed, again, gone, misused)] == [0, 1, 0, 1, 2], replayed.stderr
    assert [letter["id"] for letter in json.loads(listed.stdout)["letters"]] == [NASTY]
    assert listed.stdout.isascii()
    assert json.loads(replayed.stdout)["replayed"] == 0
    assert queued(app) == 1
