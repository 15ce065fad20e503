"""
Who may do what: on the button, on the page that asks, and on a request that somebody makes by hand.
"""

import httpx
import pytest

from tests.browser.pages import LETTERS, LOCKS, RECORDS, open_letter

DEEDS = {
    "replay": {"confirmed": "1"},
    "resume": {"confirmed": "1"},
    "discard": {"confirmed": "1", "reason": "by hand"},
    "happened": {"confirmed": "1", "reason": "by hand", "result": "1"},
    "did-not-happen": {"confirmed": "1", "reason": "by hand"},
    "archive": {"confirmed": "1", "reason": "by hand"},
    "restore": {"confirmed": "1"},
}
MAY = {
    "vera": set(),
    "rex": {"replay", "resume"},
    "dora": {"discard"},
    "sol": {"happened", "did-not-happen"},
    "archie": {"archive", "restore"},
    "blind": set(),
}


def test_view_only_person_sees_no_button_and_no_action(log_in, desk):
    """A button that ends in 403 teaches people to ask for more permissions than they need."""
    letter = desk.bury_unknown("view-only")
    page = log_in("vera")

    open_letter(page, desk, letter)
    buttons = page.locator("#content-main input[type=submit]").count()
    page.goto(desk.url + LETTERS)

    assert buttons == 0
    assert page.locator("select[name=action]").count() == 0


@pytest.mark.parametrize("person", MAY)
@pytest.mark.parametrize("deed", DEEDS)
def test_request_made_by_hand_needs_the_permission_of_its_deed(desk, person, deed):
    """What is hidden is not forbidden: with the address and a token anybody can send the form."""
    letter = desk.bury_unknown(f"{person}-{deed}") if "happen" in deed else desk.bury()
    if deed == "resume":
        desk.change(letter, state="replaying", replay_task_id="allocated")
    if deed == "restore":
        desk.change(letter, state="archived", archived_from="open")
    before = desk.letter(letter).state
    with desk.client(person) as client:
        asked = client.do(deed, desk.picked(letter))
        done = client.do(deed, desk.picked(letter), **DEEDS[deed])

    is_allowed = deed in MAY[person]
    assert (asked.status_code, done.status_code) == ((200, 302) if is_allowed else (403, 403))
    assert (desk.letter(letter).state != before) == is_allowed
    assert any(which == letter.id for _, which, _ in desk.log()) == is_allowed


@pytest.mark.parametrize(
    "action", ["replay_selected", "discard_selected", "archive_selected", "restore_selected", "delete_selected"]
)
def test_action_of_the_list_sent_by_hand_does_nothing(desk, action):
    """The list's own form is a second way to every action."""
    letter = desk.bury()
    with desk.client("vera") as client:
        answer = client.post(LETTERS, data={"action": action, "_selected_action": desk.picked(letter).split(":")[0]})

    # Django answers an action that it does not offer with the list itself.
    assert "Send this work again?" not in answer.text
    assert "Give this work up?" not in answer.text
    assert "Put this work away?" not in answer.text
    assert "Bring this work back?" not in answer.text
    assert (desk.letter(letter).state, desk.queued()) == ("open", 0)


@pytest.mark.parametrize("deed", DEEDS)
def test_deed_is_done_by_post_alone_and_with_a_token(desk, deed):
    """A link in a mail, or a form on another site, must not replay anything for somebody who is logged in."""
    letter = desk.bury()
    url = f"{LETTERS}do/{deed}/"
    data = {"letter": desk.picked(letter), **DEEDS[deed]}
    with desk.client("ann") as client:
        read = client.get(url, params=data)
        forged = httpx.Client.post(client, url, data=data)

    assert (read.status_code, forged.status_code) == (405, 403)
    assert (desk.letter(letter).state, desk.queued()) == ("open", 0)


def test_stranger_is_asked_to_log_in(desk):
    """The address alone must show nothing."""
    letter = desk.bury()
    with httpx.Client(base_url=desk.url) as client:
        answers = [client.get(url) for url in (LETTERS, RECORDS, LOCKS, desk.path_of(letter))]

    assert [302] * 4 == [answer.status_code for answer in answers]
    assert all("/login/" in answer.headers["Location"] for answer in answers)


@pytest.mark.parametrize("where", [LETTERS, RECORDS, LOCKS])
def test_nobody_adds_changes_or_deletes_a_row(desk, where):
    """A row written by hand is a row that no rule has seen: rows are the stores' alone."""
    letter = desk.bury_unknown(f"rows-{where.split('/')[1]}")
    row = desk.path_of(letter).removesuffix("change/").removeprefix(LETTERS)
    with desk.client("ann") as client:
        added = client.post(f"{where}add/", data={})
        changed = client.post(f"{where}{row}change/", data={"state": "closed"})
        deleted = client.post(f"{where}{row}delete/", data={"post": "yes"})

    assert added.status_code == 403
    assert changed.status_code in {302, 403}  # 302: there is no such row
    assert deleted.status_code in {302, 403}
    assert desk.letter(letter).state == "open"
