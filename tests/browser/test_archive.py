"""
Letters that are put away, and come back.
"""

from tests.browser.pages import LETTERS, content, find, follow, open_letter, press, told


def listed(page):
    """Return the text of the list that is shown."""
    return page.locator("#changelist").inner_text()


def chosen(page, action):
    """Choose all that the list shows, and what is to be done with them."""
    page.locator("#action-toggle").check()
    page.locator("select[name=action]").select_option(label=action)
    follow(page, page.locator("button[name=index]"))  # "Go" up to Django 6.0, then "Run"


def test_letter_is_archived_and_restored(log_in, desk):
    """Put away with a reason, it is off the list; whoever looks for it finds it, and brings it back."""
    letter = desk.bury(task="desk.old")
    page = log_in("archie")

    open_letter(page, desk, letter)
    press(page, "Archive…")
    press(page, "Archive")
    page.get_by_text("This field is required.").wait_for()
    page.get_by_label("Reason").fill("of last year's outage")
    press(page, "Archive")
    said, away = told(page), content(page)
    page.goto(f"{desk.url}{LETTERS}?task=desk.old")
    unasked = listed(page)
    page.goto(f"{desk.url}{LETTERS}?task=desk.old&state=archived")
    asked = listed(page)
    found = find(page, desk, letter.id).count()
    open_letter(page, desk, letter)
    buttons = [button.get_attribute("value") for button in page.locator("#content-main input[type=submit]").all()]
    press(page, "Restore…")
    coming = content(page)
    press(page, "Restore")

    assert f"Letter {letter.id}: archived." in said
    assert "archived was open" in away
    assert "the letter is archived: restore it first" in away
    assert (letter.id in unasked, letter.id in asked, found) == (False, True, 1)
    assert ["Restore…"] == buttons
    assert "back to where it was: open." in coming
    assert f"Letter {letter.id}: restored to open." in told(page)
    assert [entry.what for entry in desk.letter(letter).history] == ["archived", "restored"]
    assert {entry.who for entry in desk.letter(letter).history} == {"archie"}
    assert [what for who, which, what in desk.log() if (who, which) == ("archie", letter.id)] == [
        "Archive: archived. Reason: of last year's outage",
        "Restore: restored to open.",
    ]


def test_many_letters_are_archived_and_restored_with_a_result_for_each(log_in, desk):
    first, busy, last = (desk.bury(task="desk.many") for _ in range(3))
    desk.change(last, state="closed")
    page = log_in("ann")

    page.goto(f"{desk.url}{LETTERS}?task=desk.many")
    chosen(page, "Archive selected letters")
    desk.change(busy, state="replaying", replay_task_id="allocated")
    page.get_by_label("Reason").fill("noise")
    press(page, "Archive")
    said = told(page)
    states = [desk.letter(letter).state for letter in (first, busy, last)]
    page.goto(f"{desk.url}{LETTERS}?task=desk.many&state=archived")
    chosen(page, "Restore selected letters")
    page.get_by_label("Reason").fill("still wanted")
    press(page, "Restore")

    assert states == ["archived", "replaying", "archived"]
    assert f"letter {busy.id} is replaying, as task allocated" in said
    assert [desk.letter(letter).state for letter in (first, busy, last)] == ["open", "replaying", "closed"]


def test_list_says_what_it_leaves_out(log_in, desk):
    """A list that hides something without a word is taken for the whole."""
    away = desk.bury(task="desk.hidden")
    desk.change(away, state="archived", archived_from="open")
    page = log_in("vera")

    page.goto(f"{desk.url}{LETTERS}?task=desk.hidden")
    unasked, named = listed(page), page.get_by_role("link", name="All but archived").count()
    page.goto(f"{desk.url}{LETTERS}?task=desk.hidden&state=any")

    assert (away.id in unasked, named) == (False, 1)
    assert away.id in listed(page)
