"""
`dead list --find`, `dead list --argument`, `dead regroup`: the letter that somebody names.
"""

import json
from dataclasses import replace

import pytest
from kombu.utils.json import dumps

from celery_safeguards.wiring import Wiring
from tests.integration.cli.odd_text import NASTY

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def searchable(app):
    """Say what letters are found by from now on; at first orders and addresses."""

    def say(**settings):
        wiring = Wiring.of(app)
        replace(wiring, settings=replace(wiring.settings, **settings)).use_for(app)

    say(searchable_arguments=("order_id", "email"), sensitive_arguments=("email",), search_secret="s3cret")
    return say


@pytest.fixture
def bury_indexed(cli, bury):
    """Put letters of orders into the store, as workers do."""

    def put(**orders):
        for letter_id, order_id in orders.items():
            kwargs = {"order_id": order_id, "email": f"{letter_id}@example.com"}
            bury(letter_id, body=str(dumps([[], kwargs, {}])).encode(), task_id=f"t-of-{letter_id}")
        assert cli("dead", "regroup").exit_code == 0

    return put


@pytest.mark.parametrize(
    "words, matched",
    [
        (("--find", "4711"), "order_id"),
        (("--find", "order_id=4711"), "order_id"),
        (("--argument", "order_id=4711"), "order_id"),
        (("--argument", "email=OURS@example.com"), "email"),
        (("--find", "ours@example.com"), "email"),
        (("--find", "t-of-ours"), "task_id"),
        (("--find", "ours"), "id"),
    ],
)
def test_search_finds_the_letter_and_says_by_what(cli, bury_indexed, words, matched):
    bury_indexed(ours=4711, other=4712)

    as_json = json.loads(cli("dead", "list", *words, "--json").stdout)
    head, line = cli("dead", "list", *words).stdout.splitlines()

    assert [("ours", [matched])] == [(each["id"], each["matched"]) for each in as_json["letters"]]
    assert ("MATCHED" in head, f" {matched} " in line) == (True, True)


@pytest.mark.parametrize(
    ("option", "value"), [("queue", "payments"), ("error", "shop.Declined"), ("error", "Declined")]
)
def test_list_is_narrowed_by_queue_and_by_error(cli, bury, option, value):
    """A filter, not a search: what has been given up is left out."""
    ours = {"delivery_info": {"exchange": "", "routing_key": "payments"}, "error_type": "shop.Declined"}
    for letter_id, more in (("ours", ours), ("given-up", ours), ("other", {})):
        bury(letter_id, **more)
    cli("dead", "discard", "given-up", "--by", "ann", "--reason", "a test order")

    narrowed = json.loads(cli("dead", "list", f"--{option}", value, "--json").stdout)
    of_any_state = json.loads(cli("dead", "list", f"--{option}", value, "--state", "any", "--json").stdout)
    found = json.loads(cli("dead", "list", "--find", f"{option}:{value}", "--json").stdout)

    assert [each["id"] for each in narrowed["letters"]] == ["ours"]
    assert {each["id"] for each in of_any_state["letters"]} == {"ours", "given-up"}
    assert {each["id"] for each in found["letters"]} == {"ours", "given-up"}


@pytest.mark.parametrize("words", [("--queue", "a", "--error", "b"), ("--queue", "a", "--find", "b"), ("--error", " ")])
def test_one_thing_is_searched_for_at_a_time(cli, words):
    assert cli("dead", "list", *words).exit_code == 2


def test_search_looks_in_every_state_unless_told(cli, bury_indexed):
    """The customer asks about what somebody has given up last week."""
    bury_indexed(ours=4711)
    cli("dead", "discard", "ours", "--by", "ann", "--reason", "a test order")

    assert cli("dead", "list", "--find", "4711").exit_code == 0
    assert cli("dead", "list", "--find", "4711", "--state", "open").exit_code == 1
    assert cli("dead", "list").exit_code == 1


def test_search_goes_on_page_by_page(cli, bury_indexed):
    bury_indexed(**{f"l{number}": 4711 for number in range(5)})

    first = json.loads(cli("dead", "list", "--find", "4711", "--limit", "3", "--json").stdout)
    rest = json.loads(cli("dead", "list", "--find", "4711", "--before", first["next_cursor"], "--json").stdout)

    assert (3, 2, None) == (len(first["letters"]), len(rest["letters"]), rest["next_cursor"])
    assert 5 == len({each["id"] for page in (first, rest) for each in page["letters"]})


def test_nothing_found_exits_with_1(cli, bury_indexed):
    bury_indexed(ours=4711)

    assert (1, "no letters\n") == (
        cli("dead", "list", "--find", "471").exit_code,
        cli("dead", "list", "--find", "471").stderr,
    )


@pytest.mark.parametrize(
    "words, said",
    [
        (("--find", "4711", "--argument", "order_id=4711"), "give one of them"),
        (("--argument", "order_id"), "NAME=VALUE"),
        (("--argument", "order_id= "), "NAME=VALUE"),
        (("--find", " "), "give a text"),
        (
            ("--argument", "order=4711"),
            "'order' cannot be searched for: safeguards_searchable_arguments names order_id",
        ),
    ],
)
def test_half_a_question_is_a_usage_error(cli, words, said):
    asked = cli("dead", "list", *words)

    assert (2, True) == (asked.exit_code, said in asked.stderr)


def test_setting_that_changes_holds_once_letters_are_brought_in_again(cli, bury_indexed, searchable):
    bury_indexed(ours=4711)

    searchable(search_secret="another")
    before = cli("dead", "list", "--find", "ours@example.com").exit_code
    regrouped = json.loads(cli("dead", "regroup", "--json").stdout)
    after = cli("dead", "list", "--find", "ours@example.com").exit_code

    assert (1, {"letters": 1, "unreadable": 0}, 0) == (before, regrouped, after)


def test_letter_tells_what_it_is_not_found_by(cli, bury):
    bury("pickled", body=b"\x80\x04K\x01.", content_type="application/x-python-serialize")
    cli("dead", "regroup")

    assert "not found by      5 bytes of application/x-python-serialize" in cli("dead", "show", "pickled").stdout


def test_nothing_that_is_searched_for_reaches_the_terminal_raw(cli, bury):
    bury(NASTY, key=NASTY)

    for words in (("--find", NASTY), ("--argument", NASTY), ("--argument", f"{NASTY}={NASTY}")):
        output = cli("dead", "list", *words).output
        assert [each for each in output if not each.isprintable() and each != "\n"] == []


def test_index_holds_no_value(cli, bury_indexed, redis_client, namespace):
    """A copy of every customer's address in the keys of the store is one that nobody thinks of."""
    bury_indexed(ours="a-rare-order")

    keys = [key for key in redis_client.scan_iter(f"*{namespace}*") if ":term:" in key]

    assert 5 <= len(keys)
    assert not any("rare" in key or "example" in key for key in keys)
