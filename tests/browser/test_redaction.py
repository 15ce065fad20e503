"""
No page of the admin shows a secret, to whomever; what is none is shown.
"""

import uuid

import pytest

from tests.browser.pages import GROUPS, LETTERS, content, press
from tests.browser.test_editing import check, open_form, path_of_edit, waiting


@pytest.mark.parametrize("argument", ["password", "user"])
@pytest.mark.parametrize("page", ["letters", "search", "letter", "groups", "group", "record", "confirmation"])
def test_no_page_shows_a_secret(desk, page, argument):
    """What a password was is on no screen, and in no page that a proxy keeps; a name, passed the same way, is."""
    canary = f"hunter2-{argument}-{page}"
    user, password = (canary, "p") if argument == "user" else (f"ann-{page}", canary)

    def fail(wiring):
        desk.app.tasks["desk.log_in"].apply(args=[user, password], headers={"x-token": password})
        newest = wiring.letters.list(task="desk.log_in", limit=1).letters[0]
        return wiring.letters.add_note(newest.id, "tried", "bob", f"with {password}, as {user}")

    letter = desk.store(fail)
    with desk.client("ann") as client:
        if page == "confirmation":
            text = client.do("discard", desk.picked(letter)).text
        else:
            path, query = {
                "letters": (LETTERS, {}),
                "search": (LETTERS, {"q": letter.id}),
                "letter": (desk.path_of(letter), {}),
                "groups": (GROUPS, {}),
                "group": (desk.path_of_group(letter), {}),
                "record": (desk.path_of_record(letter), {}),
            }[page]
            text = client.get(path, params=query).text

    assert "log_in" in text.replace("<wbr>", "")
    assert (canary in text) is (argument == "user")
    assert canary.encode() in letter.wire.body


def log_in_that_died(desk, canary):
    """Return the letter of a log-in that quotes its password, each of a user of its own."""
    user = f"ann-{uuid.uuid4().hex[:8]}"
    desk.store(lambda _: desk.app.tasks["desk.log_in"].apply(args=[user, canary], headers={"x-token": canary}))
    newest = desk.store(lambda wiring: wiring.letters.list(task="desk.log_in", limit=1).letters[0])
    return desk.store(lambda wiring: wiring.letters.add_note(newest.id, "tried", "bob", f"with {canary}"))


def test_form_shows_no_secret_and_sends_it_as_it_was(log_in, desk):
    """Whoever mends the name neither reads the password nor breaks it."""
    letter = log_in_that_died(desk, "hunter2-form")
    page = log_in("edie")

    open_form(page, desk, letter)
    box = page.get_by_label("Positional arguments")
    seen = [box.input_value(), page.content()]
    box.fill(box.input_value().replace("ann-", "bob-"))
    page.get_by_label("Reason").fill("wrong user")
    press(page, "Check")
    seen.append(page.content())
    press(page, "Send the copy")
    seen.append(page.content())

    assert "[redacted 1]" in seen[0]
    assert "hunter2" not in "".join(seen) + str(desk.log())
    user, password = waiting(desk)[0]
    assert (user.startswith("bob-"), password) == (True, "hunter2-form")


def test_value_that_is_hidden_is_replaced_by_a_new_one(log_in, desk):
    letter = log_in_that_died(desk, "hunter2-old")
    page = log_in("edie")

    open_form(page, desk, letter)
    page.get_by_label("Positional arguments").fill('["another", "the right one"]')
    page.get_by_label("Reason").fill("wrong password")
    press(page, "Check")
    press(page, "Send the copy")

    assert waiting(desk)[0] == ["another", "the right one"]
    assert "the right one" not in str(desk.log()) + str(desk.letter(letter).history)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ('["[redacted 1]", "x"]', "stands for a hidden value of password"),
        ('["else", "[redacted]"]', "is not sent"),
        ('["else", "[redacted 1"]', "is not sent"),
    ],
)
def test_mark_that_is_moved_or_broken_is_refused_where_it_stands(log_in, desk, args, why):
    letter = log_in_that_died(desk, "hunter2-moved")
    page = log_in("edie")

    open_form(page, desk, letter)
    page.get_by_label("Positional arguments").fill(args)
    page.get_by_label("Reason").fill("x")
    press(page, "Check")

    assert why in content(page)
    assert "hunter2" not in page.content()
    assert page.get_by_role("button", name="Send the copy").count() == 0


def test_page_carries_no_digest_of_a_secret(desk):
    """A digest tells a PIN to whoever tries all ten thousand."""
    one, other = (
        desk.bury(task="desk.note", kwargs={"password": pin, "a": 1}, headers={"id": "t", "root_id": "t"}, task_id="t")
        for pin in (4711, 4712)
    )
    with desk.client("edie") as client:
        marks = [
            check(client, desk, letter, kwargs='{"password": "[redacted 0]", "a": 2}')[1]["checked"]
            for letter in (one, other)
        ]
        forms = [client.get(path_of_edit(desk, letter)).text for letter in (one, other)]

    assert marks[0] == marks[1] != ""
    assert "4711" not in forms[0]
