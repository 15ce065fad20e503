"""
`dead groups`, `dead group`, `dead triage`: one line for each cause, and what people say of it.
"""

import json
import time
from dataclasses import replace

import pytest

from celery_safeguards.conf import Settings
from celery_safeguards.deadletter.group import HOUR_SECONDS
from celery_safeguards.outcome import FailureKind
from celery_safeguards.wiring import Wiring
from tests.integration.cli.odd_text import NASTY

pytestmark = pytest.mark.redis


def test_groups_show_one_line_for_each_cause(cli, bury):
    """Ten thousand letters of one outage are one line, and the other cause is the next."""
    for number in range(3):
        bury(f"letter-{number}", error_message=f"no order {number}")
    one = bury("other", task="shop.mail", kind=FailureKind.DATA, last_failed_seconds=1_750_000_100.0)

    listed = cli("dead", "groups")

    assert listed.exit_code == 0
    head, first, second = listed.stdout.splitlines()
    assert head.startswith("GROUP")
    assert [one.fingerprint, "open", "1", "1", "1"] == first.split()[:5]
    assert ["open", "3", "3", "3"] == second.split()[1:5]
    assert "ValueError: no order 2" in second


def test_groups_are_chosen_and_read_page_by_page(cli, bury):
    for number in range(3):
        bury(f"letter-{number}", task=f"shop.t{number}", last_failed_seconds=1_750_000_000.0 + number)

    first = json.loads(cli("dead", "groups", "--limit", "2", "--json").stdout)
    rest = json.loads(cli("dead", "groups", "--before", first["next_cursor"], "--json").stdout)
    chosen = json.loads(cli("dead", "groups", "--task", "shop.t1", "--status", "open", "--json").stdout)

    assert ["shop.t2", "shop.t1", "shop.t0"] == [group["task"] for page in (first, rest) for group in page["groups"]]
    assert ["shop.t1"] == [group["task"] for group in chosen["groups"]]
    assert rest["next_cursor"] is None
    assert cli("dead", "groups", "--status", "muted").exit_code == 1


def test_letters_of_a_group_are_listed(cli, bury):
    mended = bury("mended")
    bury("not-yet", kind=FailureKind.DATA)

    listed = cli("dead", "list", "--group", mended.fingerprint).stdout

    assert "mended" in listed
    assert "not-yet" not in listed
    assert cli("dead", "replay", "mended", "--group", "x").exit_code == 2


def test_what_is_said_of_a_group_is_shown_with_names(cli, bury):
    group = bury().fingerprint

    said = cli(
        *("dead", "triage", group, "--status", "acknowledged", "--reason", "the bank is away", "--by", "ann"),
        *("--assign", "bob", "--note", "their page: bank.example"),
    )
    shown = cli("dead", "group", group).stdout

    assert (said.exit_code, said.stderr) == (0, f"group {group} is acknowledged\n")
    for part in ("acknowledged by ann: the bank is away", "assigned by ann: bob", "their page: bank.example", "1 open"):
        assert part in shown


def test_resolved_group_that_fails_again_says_so(cli, bury):
    group = bury().fingerprint
    cli("dead", "triage", group, "--status", "resolved", "--by", "ann")
    bury("letter-2", last_failed_seconds=1_750_000_900.0)

    assert "reopened" in cli("dead", "groups").stdout
    assert "reopened          2025-06-15T15:21:40" in cli("dead", "group", group).stdout


def test_failure_that_came_after_the_look_is_not_resolved_unseen(cli, bury):
    group = bury().fingerprint
    seen = str(json.loads(cli("dead", "group", group, "--json").stdout)["failures"])
    bury("letter-2")

    said = cli(
        *("dead", "triage", group, "--status", "resolved", "--failures-seen", seen, "--by", "ann", "--note", "mended")
    )

    assert said.exit_code == 1
    assert "has failed 1 time since it was looked at" in said.stderr
    document = json.loads(cli("dead", "group", group, "--json").stdout)
    assert ("open", "") == (document["status"], document["note"])


@pytest.mark.parametrize(
    "words",
    [(), ("--reason", "x"), ("--note", "x", "--failures-seen", "1"), ("--status", "gone"), ("--note", "x" * 4_001)],
)
def test_half_a_word_on_a_group_is_a_usage_error(cli, bury, words):
    group = bury().fingerprint

    assert cli("dead", "triage", group, "--by", "ann", *words).exit_code == 2


@pytest.mark.parametrize("command", [("group",), ("triage", "--status", "muted", "--by", "ann")])
def test_group_that_is_not_there_exits_with_1(cli, command):
    name, *words = command

    said = cli("dead", name, "absent", *words)

    assert (said.exit_code, said.stderr) == (1, "there is no group absent\n")


def test_bars_show_the_last_day(cli, bury):
    """Whether it has stopped is the first question."""
    now = time.time()
    for number, hours_ago in enumerate([0, 0, 0, 0, 1, 5, 30]):
        bury(f"letter-{number}", last_failed_seconds=now - hours_ago * HOUR_SECONDS)

    (line,) = cli("dead", "groups").stdout.splitlines()[1:]

    bars = line[line.index("[") + 1 : line.index("]")]
    assert 24 == len(bars)
    assert ("█", "▂", "▂") == (bars[-1], bars[-2], bars[-6])
    assert {" "} == set(bars[:-6])


def test_nothing_of_a_group_reaches_the_terminal_raw(cli, bury):
    group = bury(NASTY, task=NASTY, error_message=NASTY, error_type=NASTY).fingerprint
    cli(
        "dead", "triage", group, "--assign", NASTY, "--note", NASTY, "--status", "muted", "--reason", NASTY, "--by", "a"
    )

    for output in (cli("dead", "groups").output, cli("dead", "group", group).output):
        assert [each for each in output if not each.isprintable() and each != "\n"] == []
        assert [line for line in output.splitlines() if line.startswith("SECOND LINE")] == []


def test_letters_of_an_older_version_are_counted_once(cli, app, bury, redis_client, namespace):
    """They were written before there were groups, and would be missing from every number."""
    for number in range(3):
        group = bury(f"letter-{number}").fingerprint
    keys = Wiring.of(app).letters._keys
    for number in range(3):
        redis_client.hdel(keys.letter(f"letter-{number}"), "group")
    redis_client.delete(keys.groups, keys.group(group), keys.group_letters(group))
    assert cli("dead", "groups").exit_code == 1

    said = [json.loads(cli("dead", "regroup", "--json").stdout) for _ in range(2)]

    assert [{"letters": 3, "unreadable": 0}] * 2 == said
    document = json.loads(cli("dead", "group", group, "--json").stdout)
    assert ({"open": 3}, 0) == (document["counts"], document["failures"])
    assert ["3"] == [line.split()[2] for line in cli("dead", "groups").stdout.splitlines()[1:]]


def test_the_playbook_of_the_nearest_name_is_shown(cli, app, bury):
    """At three in the morning nobody remembers which page of the wiki it was."""
    group = bury().fingerprint
    playbooks = {"bug": "any bug", "shop.note": "https://wiki.example.com/notes", group: f"this one {NASTY}"}
    said = []
    for _ in range(3):
        app.conf.safeguards_playbooks = dict(playbooks)
        replace(Wiring.of(app), settings=Settings.of(app)).use_for(app)
        said.append(json.loads(cli("dead", "group", group, "--json").stdout)["playbook"])
        assert json.loads(cli("dead", "show", "letter-1", "--json").stdout)["playbook"] == said[-1]
        playbooks.popitem()
    shown = cli("dead", "group", group).stdout

    assert said == [f"this one {NASTY}", "https://wiki.example.com/notes", "any bug"]
    assert "any bug" in shown


def test_releases_of_a_group_are_told(cli, bury):
    """Roll back, or mend: it depends on which release brought it."""
    for number, release in enumerate(["4.1", "4.1", "4.2"]):
        group = bury(f"letter-{number}", release=release, last_failed_seconds=1_750_000_000.0 + number).fingerprint
    cli("dead", "triage", group, "--status", "resolved", "--by", "ann")
    bury("letter-4", release=f"4.3 {NASTY}", last_failed_seconds=1_750_000_009.0)

    listed, shown = cli("dead", "groups").stdout, cli("dead", "group", group).stdout
    of_letter = cli("dead", "show", "letter-1").stdout
    document = json.loads(cli("dead", "group", group, "--json").stdout)

    assert "RELEASES" in listed
    assert "4.1 to 4.3" in listed
    assert "first failed      2025-06-15T15:06:40+00:00, in release 4.1\n" in shown
    assert "reopened          2025-06-15T15:06:49+00:00, in release 4.3" in shown
    assert "4.1: 2, first 2025-06-15T15:06:40+00:00, last 2025-06-15T15:06:41+00:00\n" in shown
    assert shown.index("in release        4.2: 1") < shown.index("in release        4.1: 2")
    assert "in release        4.1\n" in of_letter
    assert ("4.1", ["4.1", "4.2"]) == (document["first_release"], [e["release"] for e in document["releases"]][:2])
    assert [line for line in (listed + shown).splitlines() if line.startswith("SECOND LINE")] == []


def test_groups_of_no_named_release_have_no_column_for_it(cli, bury):
    group = bury().fingerprint

    assert "RELEASES" not in cli("dead", "groups").stdout
    assert "release" not in cli("dead", "group", group).stdout
    assert "release" not in cli("dead", "show", "letter-1").stdout
