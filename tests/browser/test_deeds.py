"""
What ends a dead letter: replayed, given up, or resolved by somebody who has found out.
"""

import json

import pytest

from celery_safeguards.outcome import FailureKind
from tests.browser.pages import LETTERS, RECORDS, content, find, follow, open_letter, press, told


def test_replay_from_the_page_runs_in_a_worker_and_closes_the_letter(log_in, desk, announcements):
    """The whole way: what is replayed by a click runs once, as it came, and is off the list."""
    letter = desk.bury(kwargs={"order_id": "one"})
    page = log_in("ann")
    worker = desk.start_worker(announcements).wait_ready(40)

    open_letter(page, desk, letter)
    press(page, "Replay…")
    press(page, "Replay")

    worker.wait_for(lambda event: event["event"] == "noted" and event["order_id"] == "one", 20)
    assert f"Letter {letter.id}: replayed as task" in told(page)
    worker.wait_for("task_postrun", 10)
    assert worker.stop() == 0
    kept = desk.letter(letter)
    assert kept.state == "closed"
    assert [(entry.what, entry.who) for entry in kept.history][:2] == [("replay begun", "ann"), ("replayed", None)]
    assert ("ann", letter.id, f"Replay: replayed as task {kept.replay_task_id}.") in desk.log()


def test_record_and_letter_lead_to_each_other(log_in, desk, announcements):
    """Whoever holds one end of the story must get to the other."""
    worker = desk.start_worker(announcements).wait_ready(40)
    desk.publish("desk.charge", order_id="bad", amount=-1)
    worker.wait_for("task_failure", 20)
    worker.stop()
    page = log_in("ann")

    rows = find(page, desk, 'payment:"bad"', RECORDS)
    follow(page, rows.get_by_role("link"))
    record, its_page = content(page), page.url.partition("?")[0]
    follow(page, page.locator(".field-letter").get_by_role("link"))
    letter = content(page)
    follow(page, page.locator(".field-key_shown").get_by_role("link"))

    assert "dead" in record
    assert "-1 cannot be charged" in letter
    assert page.url == its_page


def test_work_that_may_run_twice_is_sent_only_with_consent(log_in, desk):
    """A click that doubles an effect must not look like any other click."""
    letter = desk.bury(task="desk.mail", effect_possible=True, kind=FailureKind.DEPENDENCY_TIMEOUT)
    page = log_in("ann")

    open_letter(page, desk, letter)
    press(page, "Replay…")
    press(page, "Replay")
    refused, after_refusal = told(page), desk.queued()
    press(page, "Replay…")
    page.get_by_label("may run twice").check()
    press(page, "Replay")

    assert "refused: it has no key and may have had an effect" in refused
    assert (after_refusal, desk.queued()) == (0, 1)
    assert ("may run twice", "ann") in [(entry.what, entry.who) for entry in desk.letter(letter).history]


def test_discard_asks_for_a_reason(log_in, desk):
    """Given up without a reason, nobody knows a week later whether it was right."""
    letter = desk.bury()
    page = log_in("dora")

    open_letter(page, desk, letter)
    press(page, "Discard…")
    press(page, "Discard")
    page.get_by_text("This field is required.").wait_for()
    unasked = desk.letter(letter).state
    page.get_by_label("Reason").fill("a test order")
    press(page, "Discard")

    last = desk.letter(letter).history[-1]
    assert (unasked, desk.letter(letter).state) == ("open", "discarded")
    assert (last.what, last.who, last.detail) == ("discarded", "dora", "a test order")
    assert ("dora", letter.id, "Discard: discarded. Reason: a test order") in desk.log()


def test_unknown_outcome_that_happened_is_recorded_with_its_result(log_in, desk, announcements):
    """The customer has paid: the order goes on with the charge's id, and nobody is charged again."""
    letter = desk.bury_unknown("paid")
    page = log_in("sol")

    open_letter(page, desk, letter)
    press(page, "It happened…")
    page.get_by_label("Result").fill("ch_77")
    page.get_by_label("Reason").fill("found in the bank's list")
    press(page, "It happened")
    page.get_by_text("This is no JSON").wait_for()
    undone = desk.letter(letter).state
    page.get_by_label("Result").fill('{"id": "ch_77"}')
    press(page, "It happened")
    worker = desk.start_worker(announcements).wait_ready(40)
    worker.wait_for("task_postrun", 20)
    worker.stop()

    kept, record = desk.letter(letter), desk.record(letter)
    assert (undone, kept.state, record.state) == ("open", "closed", "done")
    assert json.loads(record.result) == {"id": "ch_77"}
    assert [] == announcements.heard(lambda event: event["event"] == "charged")
    assert f"as task {kept.replay_task_id}: found in the bank's list" in [entry.detail for entry in kept.history]
    assert ("sol", letter.id) in [(who, which) for who, which, what in desk.log() if "found in the bank's list" in what]


def test_unknown_outcome_that_did_not_happen_runs(log_in, desk, announcements):
    """The bank knows of nothing: only then may the customer be charged."""
    letter = desk.bury_unknown("unpaid")
    page = log_in("sol")

    open_letter(page, desk, letter)
    assert page.get_by_role("button", name="Replay").count() == 0
    press(page, "It did not happen…")
    page.get_by_label("Reason").fill("the bank knows of nothing")
    press(page, "It did not happen")
    worker = desk.start_worker(announcements).wait_ready(40)
    worker.wait_for(lambda event: event["event"] == "charged" and event["order_id"] == "unpaid", 20)
    worker.wait_for("task_postrun", 10)
    worker.stop()

    assert (desk.letter(letter).state, desk.record(letter).state) == ("closed", "done")


def test_replay_that_was_cut_short_can_be_resumed(log_in, desk):
    """A letter that says replaying for ever is work that is lost in plain sight."""
    letter = desk.bury()
    desk.change(letter, state="replaying", replay_task_id="allocated")
    page = log_in("rex")

    open_letter(page, desk, letter)
    press(page, "Resume the replay…")
    press(page, "Resume the replay")

    assert f"Letter {letter.id}: sent again as task allocated." in told(page)
    assert (desk.letter(letter).state, desk.queued()) == ("replayed", 1)


@pytest.mark.parametrize("deed", ["Replay", "Discard"])
def test_many_letters_at_once_with_a_result_for_each(log_in, desk, deed):
    """ "Done" for a batch of which a part was refused is a lie (HangfireIO/Hangfire#4)."""
    task = f"desk.note.{deed.lower()}"
    first, gone, last = (desk.bury(task=task) for _ in range(3))
    page = log_in("ann")

    page.goto(f"{desk.url}{LETTERS}?task={task}")
    page.locator("#action-toggle").check()
    page.locator("select[name=action]").select_option(label=f"{deed} selected letters")
    follow(page, page.locator("button[name=index]"))  # "Go" up to Django 6.0, then "Run"
    asked = content(page)
    desk.change(gone, state="closed")
    page.get_by_label("Reason").fill("test orders")
    back = page.get_by_role("link", name="Do nothing").get_attribute("href")
    press(page, deed)

    said = told(page)
    assert page.url == f"{desk.url}{LETTERS}?task={task}"
    assert page.url.endswith(back)
    wanted = {"Replay": "replayed", "Discard": "discarded"}[deed]
    assert all(letter.id in asked for letter in (first, gone, last))
    assert "3 letters: 3 yes" in asked
    assert [desk.letter(letter).state for letter in (first, gone, last)] == [wanted, "closed", wanted]
    assert said.count(f": {wanted}") == 2
    assert f"letter {gone.id} is closed" in said


@pytest.mark.parametrize(("deed", "became"), [("replay", "replayed"), ("restore", "open")])
def test_several_letters_need_a_reason(desk, deed, became):
    """A hundred messages went out in the night, and nobody knows why (as on the command line)."""
    letters = [desk.bury(), desk.bury()]
    if deed == "restore":
        for letter in letters:
            desk.change(letter, state="archived", archived_from="open")
    before = [desk.letter(letter).state for letter in letters]
    picked = [desk.picked(letter) for letter in letters]
    with desk.client("ann") as client:
        refused = client.do(deed, *picked, confirmed="1")
        undone = [desk.letter(letter).state for letter in letters]
        client.do(deed, *picked, confirmed="1", reason="the bank is back")

    assert "This field is required." in refused.text
    assert undone == before
    assert [desk.letter(letter).state for letter in letters] == [became, became]
    ours = {letter.id for letter in letters}
    assert all(what.endswith("Reason: the bank is back") for _, which, what in desk.log() if which in ours)
    assert all("the bank is back" in str(desk.letter(letter).history) for letter in letters)


def test_page_that_asks_says_no_for_a_reason_and_never_yes_beside_it(desk):
    """ "No: yes" at three in the morning is worse than either."""
    replaying, open_, erroneous = desk.bury(), desk.bury(), desk.bury()
    desk.change(replaying, state="replaying", replay_task_id="allocated")
    asked = {}
    with desk.client("ann") as client:
        for deed, letter in (("replay", replaying), ("resume", open_), ("happened", open_), ("did-not-happen", open_)):
            asked[deed] = client.do(deed, desk.picked(letter)).text
        both = client.do("replay", desk.picked(replaying), desk.picked(erroneous)).text

    assert "resume it on its page" in asked["replay"]
    assert "no replay of it was cut short" in asked["resume"]
    assert "Nobody has to say whether it happened" in asked["happened"]
    assert "Nobody has to say whether it happened" in asked["did-not-happen"]
    assert all("Yes." not in page and 'name="confirmed"' not in page for page in asked.values())
    assert all("None of this can be done." in page for page in asked.values())
    assert "2 letters: 1 yes, 1 no" in both
    assert 'name="confirmed"' in both
