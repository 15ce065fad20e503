"""
The exit codes, in process and by `celery -A`, as a shell and a script see them.
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

from celery_safeguards.cli import safeguards
from celery_safeguards.wiring import Wiring
from tests.integration.cli.odd_text import NASTY
from tests.integration.replay.shop import make_app, queued
from tests.support.sockets import free_port
from tests.support.workers import ROOT

pytestmark = pytest.mark.redis


# --- in process


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


def test_of_many_letters_one_is_tried_while_the_broker_is_away(bury, redis_url, namespace):
    """A hundred letters waited ten seconds each for a frozen broker, and each was left in the midst of a replay."""
    bury("one")
    bury("two")
    words = ["dead", "replay", "one", "two", "--by", "ann", "--reason", "mended"]
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline:
        context = CLIContext(app=offline, no_color=True, workdir=None)
        replayed = CliRunner().invoke(safeguards, words, obj=context)
        states = [Wiring.of(offline).letters.get(each).state for each in ("one", "two")]

    assert (replayed.exit_code, states) == (3, ["replaying", "open"])
    assert "0 of 2 replayed" in replayed.stderr
    assert "not tried, since that would not answer for them either: two" in replayed.stderr


def test_app_without_a_store_is_a_usage_error():
    """A missing setting must be named, not traced."""
    with Celery("bare", broker="amqp://", set_as_current=False) as app:
        context = CLIContext(app=app, no_color=True, workdir=None)
        listed = CliRunner().invoke(safeguards, ["dead", "list"], obj=context)

    assert listed.exit_code == 2
    assert "safeguards_store_url" in listed.stderr
    # The help of the outermost command tells nothing of it.
    assert "--help" not in listed.stderr


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
