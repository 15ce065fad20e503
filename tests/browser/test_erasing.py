"""
One person's data, erased on a page: what is shown before, what is left, and that what was searched for is kept nowhere.
"""

import uuid

import pytest

from tests.browser.pages import LETTERS, content, follow, press
from tests.conformance.deadletter_contract import letter

ERASE = f"{LETTERS}erase/"


@pytest.fixture
def email():
    return f"ann-{uuid.uuid4().hex[:8]}@example.com"


@pytest.fixture
def letters(desk, email):
    """Two letters of a person, who is known by an address, and one of another person."""
    of_ann = [desk.bury(kwargs={"customer": {"email": email}}, error_message=f"no mailbox {email}") for _ in range(2)]
    return [*of_ann, desk.bury(kwargs={"customer": {"email": "bob@example.com"}})]


def erased(desk, letters):
    return [desk.letter(each).erased for each in letters]


def looked(client, **asked):
    """Ask what would be erased; return the answer, and what its page would send next."""
    answer = client.post(ERASE, data={**asked, "look": "1"})
    mark = answer.text.partition('name="shown" value="')[2].partition('"')[0]
    return answer, {**asked, "shown": mark, "confirmed": "1"}


def test_a_person_is_looked_for_shown_erased_and_told(log_in, desk, letters, email):
    """The whole way, and not a word of the person in an address, a log or what is left."""
    page, asked = log_in("ann"), []
    page.on("request", lambda request: asked.append(request.url))

    page.goto(desk.url + LETTERS)
    follow(page, page.get_by_role("link", name="Erase one person's data"))
    page.get_by_label("Argument").fill(f"customer.email={email}")
    press(page, "What would be erased?")
    shown, untouched = content(page), erased(desk, letters)
    page.get_by_label("Reason").fill("ticket 7")
    press(page, "Erase")
    told = content(page)

    assert "It would erase the content of 2 letters. It cannot be undone." in shown
    assert untouched == [False] * 3
    assert "Erased: 2 letters, 0 records" in told
    for text in (shown, told):
        assert "results of Celery's own result backend" in text
    assert erased(desk, letters) == [True, True, False]
    (logged,) = [what for who, which, what in desk.log() if which == "one person's data" and "ticket 7" in what]
    assert logged.startswith("Erased, by an argument: 2 letters, 0 records, ")
    assert email not in " ".join(asked) + str(desk.log()) + desk.server_log()
    assert [entry.what for entry in desk.letter(letters[0]).history] == ["discarded", "erased"]


@pytest.mark.parametrize("way", ["key", "fingerprint", "letter_ids"])
def test_letters_are_chosen_as_the_command_chooses_them(desk, way):
    key = f"mail:{uuid.uuid4().hex}"
    letter = desk.bury(key=key, scope="desk.mail", error_type=f"shop.E{uuid.uuid4().hex[:8]}")
    value = {"key": key, "fingerprint": letter.fingerprint, "letter_ids": f"\n {letter.id} \r\n"}[way]
    with desk.client("ann") as client:
        answer, form = looked(client, **{way: value})
        done = client.post(ERASE, data={**form, "reason": "ticket 8"})

    assert "the content of 1 letter" in answer.text
    assert "Erased: 1 letter," in done.text
    assert erased(desk, [letter]) == [True]
    assert key not in str(desk.log()) + desk.server_log()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reason": ""}, "Say why"),
        ({"reason": "asked by {email}"}, "it names what is to be erased"),
        ({"shown": ""}, "Nothing was erased: this is not what was shown."),
        ({"argument": "customer.email=bob@example.com"}, "Nothing was erased: this is not what was shown."),
        ({"key": "k"}, "Say whose: by one of the fields above, and no more."),
        ({"argument": ""}, "Say whose: by one of the fields above, and no more."),
        ({"argument": "customer.name={email}"}, "cannot be searched for"),
        ({"argument": "{email}"}, "give NAME=VALUE"),
    ],
)
def test_what_was_not_shown_or_not_explained_erases_nothing(desk, letters, email, changes, said):
    """It cannot be undone: a slip of the hand has to be a question."""
    before = len(desk.log())
    with desk.client("ann") as client:
        _, form = looked(client, argument=f"customer.email={email}")
        given = {name: value.format(email=email) for name, value in changes.items()}
        answer = client.post(ERASE, data={"reason": "ticket 9", **form, **given})

    assert answer.status_code == 200
    assert said in answer.text
    assert erased(desk, letters) == [False] * 3
    assert len(desk.log()) == before
    assert email not in desk.server_log()


def test_letter_that_came_meanwhile_is_shown_first(desk, letters, email):
    with desk.client("ann") as client:
        _, form = looked(client, argument=f"customer.email={email}")
        late = desk.bury(kwargs={"customer": {"email": email}})
        answer = client.post(ERASE, data={**form, "reason": "ticket 10"})

    assert "Nothing was erased: this is not what was shown." in answer.text
    assert "the content of 3 letters" in answer.text
    assert erased(desk, [*letters, late]) == [False] * 4


def test_more_letters_than_a_page_erases_are_left_to_the_command_line(desk, email):
    many = [letter(f"many-{number}-{email}", error_type=f"shop.Many{email[4:12]}") for number in range(1_001)]
    desk.store(lambda wiring: [wiring.letters.bury(each) for each in many])
    with desk.client("ann") as client:
        answer, form = looked(client, fingerprint=many[0].fingerprint)
        done = client.post(ERASE, data={**form, "reason": "ticket 12"})

    for text in (answer.text, done.text):
        assert "more than the 1000 letters that a page erases" in text
        assert 'name="confirmed"' not in text
    assert erased(desk, many[:1]) == [False]


def test_letter_that_is_replaying_is_refused_and_named(desk, letters, email):
    desk.change(letters[0], state="replaying", replay_task_id="t-9")
    with desk.client("ann") as client:
        answer, form = looked(client, argument=f"customer.email={email}")
        done = client.post(ERASE, data={**form, "reason": "ticket 11"})

    for text in (answer.text, done.text):
        assert f"letter {letters[0].id}: it is replaying as task t-9" in text
    assert erased(desk, letters) == [False, True, False]


def test_nobody_is_found_by_an_argument_without_the_permission_to_see_it(desk, letters, email):
    """How many letters a guess has is an answer to the guess."""
    with desk.client("noa") as client:
        form = client.get(ERASE).text
        answer, _ = looked(client, argument=f"customer.email={email}")
        by_id, _ = looked(client, letter_ids=letters[0].id)

    assert 'name="argument"' not in form
    assert "Say whose" in answer.text
    assert "the content of 1 letter" in by_id.text
    assert email not in by_id.text


def test_what_a_person_types_of_others_is_in_no_report_of_an_error(desk):
    """A report is mailed to whoever watches: Django leaves out what is named as sensitive."""
    said = desk._run("tests.browser.desk.reported")

    assert "ann@example.com" not in said
    assert said.count("ticket 7") == 3


def test_erasing_that_is_cut_short_is_in_the_log_of_the_admin(desk):
    """What was erased by then is erased, and nobody could tell who did it, and why."""
    said = desk._run("tests.browser.desk.cut_short")

    assert desk.store(lambda wiring: wiring.letters.get("cut-short")).state == "discarded"
    assert "('root', 'Erased in part, by a key: " in said
