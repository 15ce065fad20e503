"""
No page of the admin shows a secret, to whomever; what is none is shown.
"""

import pytest

from tests.browser.pages import GROUPS, LETTERS


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
