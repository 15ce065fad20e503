"""
What is said of how long letters are kept, and `store purge`, which removes those whose time is over.
"""

import json
import time

import pytest

from celery_safeguards.wiring import Wiring

pytestmark = pytest.mark.redis
DAY = 86_400.0


@pytest.fixture
def letters(app, bury):
    """One that is open, one that is kept for another day, and one whose time is over."""
    for name in ("open", "new", "old"):
        bury(name)
    store, now = Wiring.of(app).letters, time.time()
    store.discard("new", "ann", "a test order", now - 88.5 * DAY + 1_800)
    store.close("old", "it succeeded", now - 91 * DAY)
    return store


def test_letters_say_how_long_they_are_kept(cli, letters):
    shown = {name: cli("dead", "show", name).stdout for name in ("open", "new", "old")}

    assert "kept              for ever: it is open\n" in shown["open"]
    assert "kept              for another 1 d 12 h, until 20" in shown["new"]
    assert "kept              until the next purge: its time was over at 20" in shown["old"]


def test_list_has_a_column_for_it_where_anything_is_over(cli, letters):
    everything = cli("dead", "list", "--state", "any").stdout.splitlines()
    unasked = cli("dead", "list").stdout

    assert "KEPT FOR" in everything[0]
    column = everything[0].index("KEPT FOR")
    said = {line.split()[0]: line[column:].split("  ")[0] for line in everything[1:]}
    assert said == {"open": "for ever", "new": "1 d 12 h", "old": "until the next purge"}
    assert "KEPT FOR" not in unasked


def test_programs_are_told_since_when_and_until_when(cli, letters):
    listed = json.loads(cli("dead", "list", "--state", "any", "--json").stdout)["letters"]
    shown = json.loads(cli("dead", "show", "new", "--json").stdout)

    times = {each["id"]: (each["over_seconds"], each["kept_until_seconds"]) for each in listed}
    assert times["open"] == (None, None)
    assert times["new"] == (shown["over_seconds"], shown["kept_until_seconds"])
    assert [90 * DAY] * 2 == [pytest.approx(until - since) for since, until in (times["new"], times["old"])]


def test_purge_removes_what_has_been_over_for_long_enough(cli, letters):
    first = cli("store", "purge", "--json")
    again = cli("store", "purge")

    assert (0, 1, 0) == (first.exit_code, json.loads(first.stdout)["letters"], json.loads(first.stdout)["groups"])
    assert "0 letters and 0 groups are removed" in again.stderr
    assert {"open", "new"} == {each.id for each in letters.list().letters}


def test_purge_says_that_letters_are_kept_for_ever(cli, app, letters):
    app.conf.safeguards_letter_retention_seconds = 0
    Wiring.from_settings(type(Wiring.of(app).settings).of(app)).use_for(app)

    purged = cli("store", "purge")

    assert (0, True) == (purged.exit_code, "kept for ever, as the settings say" in purged.stderr)
    assert letters.get("old") is not None
