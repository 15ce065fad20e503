"""
Edit as new, on its pages: what is changed, what is shown before it is sent, and who may.
"""

import json
from datetime import UTC, datetime
from decimal import Decimal

import httpx
import pytest
from kombu.utils.json import dumps, loads

from celery_safeguards import headers as h
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import discard
from celery_safeguards.replay.erasing import Wanted, erase
from tests.browser.pages import LETTERS, content, follow, open_letter, press, told
from tests.integration.cli.odd_text import NASTY

VALUES = {"amount": Decimal("10.10"), "at": datetime(2025, 3, 1, 12, tzinfo=UTC), "order_id": "one"}
FORM = {"args": "[]", "kwargs": '{"order_id": "two"}', "queue": "", "eta": "", "countdown_seconds": "", "reason": "why"}


def path_of_edit(desk, letter):
    return desk.path_of(letter).replace("/change/", "/edit/")


def waiting(desk):
    """Return the arguments and headers of the one message in the queue."""
    ((text,),) = [desk.redis.lrange(f"{desk.namespace}.{desk.namespace}", 0, -1)]
    message = json.loads(text)
    with desk.app.connection_for_read() as connection:
        body = connection.default_channel.decode_body(message["body"], message["properties"]["body_encoding"])
    args, kwargs, _ = loads(body)
    return args, kwargs, message["headers"]


def open_form(page, desk, letter):
    open_letter(page, desk, letter)
    press(page, "Edit as new…")


def change(page, **arguments):
    """Change keyword arguments as they stand in the form."""
    box = page.get_by_label("Keyword arguments")
    box.fill(json.dumps({**json.loads(box.input_value()), **arguments}))


def marks_of(text):
    """Return the hidden values of a form."""
    return {name: text.partition(f'name="{name}" value="')[2].partition('"')[0] for name in ("look", "checked")}


def check(client, desk, letter, **changes):
    """Check a form as its page would send it; return the answer and what it would send next."""
    path = path_of_edit(desk, letter)
    form = {**FORM, **marks_of(client.get(path).text), **changes}
    answer = client.post(path, data={**form, "check": "Check"})
    return answer, {**form, **marks_of(answer.text), **changes, "send": "Send the copy"}


def test_copy_is_checked_shown_sent_and_runs_with_what_was_changed(log_in, desk, announcements):
    """The whole way: what is mended on the page is what the worker gets."""
    letter = desk.bury(kwargs={"order_id": "one"})
    page = log_in("edie")
    worker = desk.start_worker(announcements).wait_ready(40)

    open_form(page, desk, letter)
    locked = content(page)
    change(page, order_id="mended")
    page.get_by_label("Reason").fill("a typing error")
    press(page, "Check")
    ahead = page.locator("#ahead").inner_text()
    press(page, "Send the copy")

    worker.wait_for(lambda event: event["event"] == "noted" and event["order_id"] == "mended", 20)
    assert worker.stop() == 0
    said = told(page)
    assert f"Letter {letter.id}: a copy is sent as task" in said
    assert "changes kwargs.order_id" in ahead
    assert f"goes to queue {desk.namespace}" in ahead
    for part in ("What cannot be edited", letter.task_id, "other work is published anew"):
        assert part in locked
    kept = desk.letter(letter)
    assert (kept.state, [entry.what for entry in kept.history]) == ("open", ["edit begun", "edited as new"])
    (logged,) = [what for who, which, what in desk.log() if (who, which) == ("edie", letter.id)]
    assert logged.startswith("Edit as new: a copy is sent as task")
    assert logged.endswith("Reason: a typing error")
    assert "mended" not in logged + str(kept.history)


def test_what_was_not_touched_keeps_its_type(log_in, desk):
    letter = desk.bury(kwargs=VALUES)
    page = log_in("edie")

    open_form(page, desk, letter)
    change(page, order_id="two")
    page.get_by_label("Reason").fill("why")
    press(page, "Check")
    press(page, "Send the copy")

    args, kwargs, headers = waiting(desk)
    assert (args, kwargs) == ([], {**VALUES, "order_id": "two"})
    assert (headers[h.EDITED_FROM], headers["parent_id"]) == (letter.id, letter.task_id)


def test_form_that_is_changed_after_the_check_is_checked_again(log_in, desk):
    """What is sent is what was shown: the button below must not send what nobody has seen."""
    letter = desk.bury(kwargs={"a": 1})
    page = log_in("edie")

    open_form(page, desk, letter)
    change(page, a=2)
    page.get_by_label("Reason").fill("why")
    press(page, "Check")
    change(page, a=3, b=1)
    press(page, "Send the copy")
    unsent, ahead, said = desk.queued(), page.locator("#ahead").inner_text(), content(page)
    press(page, "Send the copy")

    assert (unsent, desk.queued()) == (0, 1)
    assert "Nothing was sent: this is not what was checked." in said
    assert "changes kwargs.a, kwargs.b" in ahead
    assert waiting(desk)[1] == {"a": 3, "b": 1}


def test_mistakes_are_shown_where_they_were_made(log_in, desk):
    letter = desk.bury(kwargs={"a": 1})
    page = log_in("edie")

    open_form(page, desk, letter)
    page.get_by_label("Keyword arguments").fill('{"a": nine}')
    page.get_by_label("Not before").fill("tomorrow")
    press(page, "Check")
    first = content(page)
    page.get_by_label("Keyword arguments").fill('{"a": {"__type__": "decimal", "__value__": "x"}}')
    page.get_by_label("Not before").fill("2099-01-01T00:00")
    page.get_by_label("Reason").fill("why")
    press(page, "Check")
    second = content(page)

    assert "kwargs: this is no JSON" in first
    assert "This is no time" in first
    assert "This field is required" in first
    assert "no value of type 'decimal'" in second
    assert "Say of which zone" in second
    assert page.get_by_role("button", name="Send the copy").count() == 0


def test_same_key_is_refused_by_the_dead_record_and_sent_once_the_letter_is_discarded(log_in, desk, announcements):
    """A charge with a wrong amount: the order's key is taken by the dead work, until somebody gives it up."""
    worker = desk.start_worker(announcements).wait_ready(40)
    desk.publish("desk.charge", order_id="wrong", amount=-1)
    worker.wait_for("task_failure", 20)
    assert worker.stop() == 0
    letter = desk.store(lambda wiring: wiring.letters.list(task="desk.charge", state="open").letters[0])
    page = log_in("ann")

    open_form(page, desk, letter)
    change(page, amount=5)
    page.get_by_label("Reason").fill("wrong sign")
    press(page, "Check")
    refused = content(page)
    desk.store(lambda _wiring: discard(desk.app, letter.id, "ann", "wrong sign"))
    open_form(page, desk, letter)
    change(page, amount=5)
    page.get_by_label("Reason").fill("wrong sign")
    press(page, "Check")
    ahead = page.locator("#ahead").inner_text()
    press(page, "Send the copy")

    assert "discard this letter first" in refused or "may have had an effect" in refused
    assert "the same as the original's" in ahead
    assert waiting(desk)[1] == {"order_id": "wrong", "amount": 5}


def test_work_that_may_run_twice_is_sent_only_with_consent(log_in, desk):
    letter = desk.bury(task="desk.mail", effect_possible=True, kind=FailureKind.DEPENDENCY_TIMEOUT, kwargs={"to": "a"})
    page = log_in("edie")

    open_form(page, desk, letter)
    change(page, to="b")
    page.get_by_label("Reason").fill("why")
    press(page, "Check")
    press(page, "Send the copy")
    unsent, asked = desk.queued(), content(page)
    page.get_by_label("It may run twice").check()
    press(page, "Send the copy")

    assert (unsent, desk.queued()) == (0, 1)
    assert "It is sent only with consent" in asked
    assert "may run twice" in desk.letter(letter).history[-1].detail


def test_letter_that_somebody_else_has_edited_is_shown_first(log_in, desk):
    """Two people mend the same order: the second is told of the first, and decides anew."""
    letter = desk.bury(kwargs={"a": 1})
    page = log_in("ann")
    open_form(page, desk, letter)
    with desk.client("bob") as bob:
        _, form = check(bob, desk, letter, kwargs='{"a": 2}')
        sent = bob.post(path_of_edit(desk, letter), data=form)

    change(page, a=3)
    page.get_by_label("Reason").fill("why")
    press(page, "Check")
    refused = content(page)
    press(page, "Check")
    ahead = page.locator("#ahead").inner_text()
    press(page, "Send the copy")

    assert (sent.status_code, desk.queued()) == (302, 2)
    assert "has changed since it was looked at, last: edited as new by bob" in refused
    assert "an edited copy is out, as task" in ahead


def test_form_that_is_sent_twice_sends_one_copy(desk):
    """The back button and a double click are how one payment becomes two."""
    letter = desk.bury(kwargs={"a": 1})
    with desk.client("edie") as client:
        _, form = check(client, desk, letter)
        answers = [client.post(path_of_edit(desk, letter), data=form).status_code for _ in range(2)]

    assert (answers, desk.queued()) == ([302, 200], 1)


def test_copy_that_died_leads_back_to_its_original(log_in, desk):
    letter = desk.bury()
    copy = desk.bury(headers={h.EDITED_FROM: letter.id})
    page = log_in("vera")

    open_letter(page, desk, copy)
    follow(page, page.locator(".field-ids").get_by_role("link", name=letter.id))

    assert desk.path_of(letter) in page.url


@pytest.mark.parametrize(("person", "may"), [("vera", False), ("rex", False), ("blind", False), ("edie", True)])
def test_request_made_by_hand_needs_the_permission(desk, person, may):
    """What is hidden is not forbidden: with the address and a token anybody can send the form."""
    letter = desk.bury()
    path = path_of_edit(desk, letter)
    with desk.client("ann") as ann:
        _, form = check(ann, desk, letter)
    with desk.client(person) as client:
        shown = client.get(desk.path_of(letter)).text
        codes = [client.get(path).status_code, client.post(path, data=FORM).status_code]
        codes.append(client.post(path, data=form).status_code)

    assert codes == ([200, 200, 302] if may else [403, 403, 403])
    assert ("Edit as new…" in shown) == may
    assert desk.queued() == int(may)


def test_nothing_is_sent_by_a_link_or_without_a_token(desk):
    letter = desk.bury()
    path = path_of_edit(desk, letter)
    with desk.client("ann") as client:
        _, form = check(client, desk, letter)
        read = client.get(path, params=form)
        forged = httpx.Client.post(client, path, data=form)
        other = client.request("PUT", path, headers={"X-CSRFToken": client.cookies["csrftoken"]})
        unchecked = client.post(path, data={**form, "checked": ""})

    assert (read.status_code, forged.status_code, other.status_code, unchecked.status_code) == (200, 403, 405, 200)
    assert (desk.queued(), desk.letter(letter).history) == (0, ())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"body": b"\x80\x04.", "content_type": "application/x-python-serialize"}, "only JSON is opened"),
        ({"body": b"\xff"}, "no task message"),
        ({"body": b"[" * 5000}, "no task message"),
        ({"body": b'[[], {"a": ' + b"[" * 200 + b"]" * 200 + b"}, {}]"}, "nested deeper"),
        ({"kwargs": {"a": "x" * 1_000_001}}, "fit into a page"),
    ],
)
def test_letter_that_cannot_be_edited_says_why(desk, changes, why):
    letter = desk.bury(**changes)
    with desk.client("edie") as client:
        answer = client.get(path_of_edit(desk, letter))
        forced = client.post(path_of_edit(desk, letter), data={**FORM, "send": "1"})

    assert (answer.status_code, forced.status_code, desk.queued()) == (200, 200, 0)
    assert why in answer.text
    assert "Send the copy" not in forced.text


def test_letter_that_is_under_way_cannot_be_edited(desk):
    letter = desk.bury()
    desk.change(letter, state="replaying", replay_task_id="allocated")
    with desk.client("edie") as client:
        shown, form = client.get(desk.path_of(letter)).text, client.get(path_of_edit(desk, letter)).text

    assert "Edit as new…" not in shown
    assert "the letter is replaying" in form


def test_large_form_comes_back_whole(desk):
    """A text that grows threefold on its way is refused by Django, without a word."""
    many = {f"key {number} ü\"'": number for number in range(10_000)}
    letter = desk.bury(kwargs=many)
    with desk.client("edie") as client:
        path = path_of_edit(desk, letter)
        marks = marks_of(client.get(path).text)
        form = {**FORM, **marks, "kwargs": json.dumps({**many, "one more": 1}, indent=2, ensure_ascii=False)}
        form["csrfmiddlewaretoken"] = client.cookies["csrftoken"]
        answer = client.request("POST", path, files={name: (None, text) for name, text in form.items()})

    assert answer.status_code == 200
    assert "changes kwargs.one more" in answer.text


def test_text_of_a_stranger_is_edited_as_text_and_does_nothing(log_in, desk):
    """A closing tag in an argument would end the box that it stands in."""
    script = "</textarea><script>alert(1)</script>"
    text = f"{script}{NASTY}\u202egnp.exe\ud800"
    letter = desk.bury(args=[text], kwargs={text: text}, task="desk.note", headers={"group": script}, group_id=script)
    page, opened = log_in("edie"), []
    page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))

    open_form(page, desk, letter)
    shown = page.get_by_label("Keyword arguments").input_value()
    page.get_by_label("Positional arguments").fill("[]")
    page.get_by_label("Reason").fill(script)
    press(page, "Check")
    press(page, "Send the copy")

    assert opened == []
    assert json.loads(shown) == {text: text}
    assert not set("\x1b\x07\u202e\x9b\x00") & set(shown)
    assert str(dumps(waiting(desk)[1])) == str(dumps({text: text}))


def test_form_is_filled_and_sent_by_the_keyboard(log_in, desk):
    """A hand that is in plaster, or a screen reader: every step without a mouse, and in its order."""
    letter = desk.bury(kwargs={"a": 1})
    page = log_in("edie")
    open_form(page, desk, letter)

    page.get_by_label("Positional arguments").focus()
    reached = []
    for _ in range(7):
        reached.append(page.evaluate("document.activeElement.name"))
        page.keyboard.press("Tab")

    assert reached == ["args", "kwargs", "queue", "eta", "countdown_seconds", "reason", "check"]


def test_list_of_letters_offers_no_edit(desk):
    """One form is one letter."""
    desk.bury()
    with desk.client("edie") as client:
        assert "edit" not in client.get(LETTERS).text.partition('name="action"')[2].partition("</select>")[0]


def test_erased_letter_is_shown_as_such_and_cannot_be_edited(desk):
    """Nothing of what it held is left to be mended."""
    letter = desk.bury(kwargs={"a": "the-canary"}, key="payment:the-canary", scope="desk.note")
    desk.store(lambda _wiring: erase(desk.app, Wanted(letter_ids=(letter.id,)), "eve", "ticket 7"))
    with desk.client("ann") as client:
        shown, form = client.get(desk.path_of(letter)).text, client.get(path_of_edit(desk, letter)).text

    assert "the-canary" not in shown + form
    assert "ticket 7" in shown
    assert "Edit as new…" not in shown
    assert "was erased" in form
