"""
`dead replay`, `dead resume` and `dead discard`: what a command does, and what it does not do unasked.
"""

import json

import pytest

from celery_safeguards import headers as h
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import queued

pytestmark = pytest.mark.redis


def state_of(app, letter_id):
    return Wiring.of(app).letters.get(letter_id).state


def test_replay_tells_the_result_of_each_letter(cli, app, bury):
    """ "Done" for a batch of which half was refused is a lie (HangfireIO/Hangfire#4)."""
    bury("one")
    bury("two", effect_possible=True)

    replayed = cli("dead", "replay", "one", "two", "none", "--by", "ann", "--reason", "mended", "--json")
    results = json.loads(replayed.stdout)["results"]

    assert replayed.exit_code == 1
    assert [result["fate"] for result in results] == ["replayed", "refused", "refused"]
    assert (queued(app), state_of(app, "one"), state_of(app, "two")) == (1, "replayed", "open")


def test_replay_under_the_login_name(cli, app, bury, monkeypatch):
    """Nobody types his name at three in the morning, and the history still needs it."""
    monkeypatch.setenv("LOGNAME", "night-shift")
    bury()

    cli("dead", "replay", "letter-1")

    assert Wiring.of(app).letters.get("letter-1").history[0].who == "night-shift"


def test_whoever_has_no_name_is_asked_for_one(cli, app, bury, monkeypatch):
    """A process of a container may have none, and a history of nobody is none."""

    def nobody():
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    bury()

    for words in (["dead", "replay", "letter-1"], ["replays", "start", "--all", "--reason", "mended"]):
        refused = cli(*words)
        assert (refused.exit_code, "--by" in refused.stderr) == (2, True)
    assert state_of(app, "letter-1") == "open"


def test_a_reason_is_in_the_history_of_each_letter(cli, app, bury):
    bury("one")
    bury("two")

    cli("dead", "replay", "one", "two", "--by", "ann", "--reason", "the bank is back")

    for letter_id in ("one", "two"):
        said = next(each for each in Wiring.of(app).letters.get(letter_id).history if each.what == "replay asked")
        assert (said.who, said.detail.partition(": ")[2]) == ("ann", "the bank is back")


def test_verdict_of_happened_travels_with_the_message(cli, app, bury):
    """The person's word must reach admission as he gave it."""
    bury("paid", key="order:1", scope="shop.charge", task="shop.charge", effect_possible=True)

    refused = cli("dead", "replay", "paid", "--by", "ann")
    replayed = cli("dead", "replay", "paid", "--by", "ann", "--happened", '{"id": 7}')

    with app.connection_for_read() as connection:
        message = app.amqp.queues[app.conf.task_default_queue](connection.default_channel).get(no_ack=True)
    assert (refused.exit_code, replayed.exit_code) == (1, 0)
    assert refused.stderr == "give --happened RESULT or --did-not-happen\n0 of 1 replayed\n"
    assert message.headers[h.VERDICT] == {"happened": True, "result": {"id": 7}}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["letter-1", "letter-2", "--happened", "1", "--reason", "seen"],
        ["letter-1", "letter-2"],
        ["letter-1", "letter-2", "--reason", " "],
        ["letter-1", "--happened", "1", "--did-not-happen"],
        ["letter-1", "--happened", "paid"],
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
