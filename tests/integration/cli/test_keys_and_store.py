"""
`keys show` and `store init`: the records, and the store that holds them.
"""

import json

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_safeguards.cli import safeguards
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import make_app

pytestmark = pytest.mark.redis


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


def test_a_key_whose_quotes_the_shell_took_is_told_how_it_is_written(cli):
    """Who is told that there is no record takes the work for undone."""
    shown = cli("keys", "show", "order:A-1")

    assert shown.exit_code == 1
    assert """'order:"A-1"'""" in shown.stderr


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
        again = CliRunner().invoke(safeguards, ["store", "init"], obj=context)
        assert (again.exit_code, "nothing to do" in again.output) == (0, True)
