"""
`dead archive` and `dead restore`: letters put away and brought back, one or many.
"""

import json

import pytest

from celery_safeguards.wiring import Wiring

pytestmark = pytest.mark.redis


def states(app, *letter_ids):
    return [Wiring.of(app).letters.get(letter_id).state for letter_id in letter_ids]


def archive(cli, *words):
    return cli("dead", "archive", *words, "--by", "ann", "--reason", "of last year")


def test_archived_letters_are_in_no_list_unasked_and_come_back(cli, app, bury):
    bury("one")
    bury("two")

    archived = archive(cli, "one", "two")
    listed = [cli("dead", "list", *words) for words in ([], ["--state", "archived"], ["--find", "two"])]
    shown = cli("dead", "show", "one").stdout
    restored = cli("dead", "restore", "two", "--by", "bob", "--reason", "it is wanted", "--json")

    assert (archived.exit_code, archived.stdout.splitlines()) == (0, ["one  archived", "two  archived"])
    assert [["one" in each.stdout, "two" in each.stdout] for each in listed] == [
        [False, False],
        [True, True],
        [False, True],
    ]
    assert "archived, was open" in shown
    assert "the letter is archived: restore it first" in shown
    assert json.loads(restored.stdout) == {
        "results": [{"letter_id": "two", "state": "open", "refused": None}],
        "done": 1,
        "asked": 1,
    }
    assert states(app, "one", "two") == ["archived", "open"]
    history = Wiring.of(app).letters.get("two").history
    assert [(entry.what, entry.who, entry.detail) for entry in history] == [
        ("archived", "ann", "of last year"),
        ("restored", "bob", "to open: it is wanted"),
    ]


def test_each_letter_that_is_left_as_it_is_is_told(cli, app, bury):
    """ "Done" for a batch of which half was refused is a lie (HangfireIO/Hangfire#4)."""
    bury("one")
    bury("two")
    Wiring.of(app).letters.begin_replay("two", "new-task", "bob", 0.0)

    archived = archive(cli, "one", "two", "none", "--json")
    results = json.loads(archived.stdout)

    assert (archived.exit_code, results["done"], results["asked"]) == (1, 1, 3)
    assert [each["refused"] for each in results["results"]] == [
        None,
        "letter two is replaying, as task new-task",
        "there is no letter none",
    ]
    assert states(app, "one", "two") == ["archived", "replaying"]


def test_group_is_archived_and_comes_back(cli, app, bury):
    """What people put away together must come back together; more than one step's worth of letters."""
    names = [f"letter-{number}" for number in range(203)]
    group = {bury(name).fingerprint for name in names}.pop()
    bury("other", task="shop.charge")
    Wiring.of(app).letters.discard("letter-7", "bob", "a test order")
    names.remove("letter-7")

    archived = archive(cli, "--group", group)
    away = set(states(app, *names))
    again = archive(cli, "--group", group)
    restored = cli("dead", "restore", "--group", group, "--by", "ann", "--reason", "it is back")

    assert (archived.exit_code, archived.stderr.strip(), away) == (0, "202 of 202 letters archived", {"archived"})
    assert (again.exit_code, again.stderr.strip()) == (1, "no letters")
    assert (restored.exit_code, set(states(app, *names))) == (0, {"open"})
    assert states(app, "letter-7", "other") == ["discarded", "open"]


@pytest.mark.parametrize(
    "words",
    [
        ["archive", "--by", "ann", "--reason", "old"],
        ["archive", "one", "--group", "g", "--by", "ann", "--reason", "old"],
        ["archive", "one", "--by", "ann"],
        ["archive", "one", "--by", " ", "--reason", "old"],
        ["archive", "one", "--by", "ann", "--reason", " "],
        ["restore", "--by", "ann"],
        ["restore", "one", "--by", ""],
        ["restore", "one", "--by", "", "--reason", "wanted"],
    ],
)
def test_words_that_make_no_sense_change_nothing(cli, app, bury, words):
    bury("one")

    assert cli("dead", *words).exit_code == 2
    assert states(app, "one") == ["open"]


@pytest.mark.parametrize("words", [["one", "two"], ["one", "two", "--reason", " "], ["--group", "{group}"]])
def test_several_letters_are_restored_for_a_reason_alone(cli, app, bury, words):
    """A hundred letters were back in the night, and nobody knows why; of one its name is enough."""
    group = {bury(name).fingerprint for name in ("one", "two")}.pop()
    archive(cli, "one", "two")

    refused = cli("dead", "restore", *(word.format(group=group) for word in words), "--by", "ann")
    left = states(app, "one", "two")
    single = cli("dead", "restore", "one", "--by", "ann")

    assert (refused.exit_code, left) == (2, ["archived", "archived"])
    assert "give --reason" in refused.output
    assert single.exit_code == 0
    assert Wiring.of(app).letters.get("one").history[-1].detail == "to open"


def test_archived_letter_is_neither_replayed_nor_discarded_nor_edited(cli, app, bury):
    """Who put it away has said that nothing is to be done for now."""
    bury("one")
    archive(cli, "one")

    acts = [
        cli("dead", "replay", "one", "--by", "ann", "--json"),
        cli("dead", "discard", "one", "--by", "ann", "--reason", "why"),
        cli("dead", "edit", "one", "--kwargs", "{}", "--by", "ann", "--reason", "why"),
    ]

    assert [1, 1, 1] == [act.exit_code for act in acts]
    assert all("is archived: restore it first" in act.output for act in acts)
    assert states(app, "one") == ["archived"]
