"""
Text that a stranger can put into a message, on every page that shows it: it is read, and does nothing.
"""

import pytest

from celery_safeguards.replay import discard
from tests.browser.pages import LETTERS, RECORDS, content, open_letter
from tests.integration.cli.odd_text import NASTY

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"
MARK = "\u202egnp.exe"


def with_alerts(log_in):
    """Return a page of somebody who is logged in, and the dialogues that anything on it opens."""
    page, opened = log_in("ann"), []
    page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
    return page, opened


def test_text_of_a_stranger_runs_nothing_and_reads_as_it_is_written(log_in, desk):
    """A task's argument comes from a form on the internet, and would like to have the administrator's session."""
    page, opened = with_alerts(log_in)
    text = f"{SCRIPT}{NASTY}{MARK}\ud800"
    letter = desk.bury(
        task=text,
        kwargs={"name": text},
        headers={"origin": text},
        key=text,
        scope=text,
        reason=text,
        error_type=text,
        error_message=text,
        traceback=text,
        host=text,
    )
    desk.store(lambda wiring: wiring.letters.add_note(letter.id, text, text, text))

    pages = []
    open_letter(page, desk, letter)
    pages.append(content(page))
    page.get_by_role("button", name="Discard…").click()
    page.get_by_role("heading", name="Give this work up?").wait_for()
    pages.append(content(page))
    page.goto(f"{desk.url}{LETTERS}?q={letter.id}")
    pages.append(content(page))

    assert [] == opened
    assert all("<script>alert(1)</script>" in text for text in pages)
    assert not any(set("\x1b\x07\u202e\x9b") & set(text) for text in pages)
    assert "\\u202egnp.exe" in pages[0]


def test_person_of_another_tool_and_his_reason_run_nothing(log_in, desk):
    """A name and a reason come from whoever can call the package, and are shown to whoever reads the log."""
    page, opened = with_alerts(log_in)
    letter = desk.bury(letter_id=f"<script>alert(3)</script>{MARK}")
    desk.store(lambda _wiring: discard(desk.app, letter.id, SCRIPT, SCRIPT))
    with desk.client("ann") as client:
        client.do("replay", desk.picked(letter), confirmed="1")

    open_letter(page, desk, letter)
    text = content(page)
    page.goto(f"{desk.url}{desk.path_of(letter)[: -len('change/')]}history/")
    log = content(page)
    page.goto(desk.url + LETTERS)

    assert [] == opened
    assert SCRIPT in text
    assert "not open" in log
    assert "\\u202egnp.exe" in content(page)


@pytest.mark.parametrize(
    ("body", "content_type", "said"),
    [
        (b"{not json", None, "the body is no task message"),
        (b"\x80\x04\x95", "application/x-python-serialize", "3 bytes of application/x-python-serialize, not decoded"),
        (b"\xff\x00\xfe", "application/json", "the body is no task message"),
        (b"[[], {}]", None, "the body is no task message"),
        (b"", None, "the body is no task message"),
        (b"[" * 100_000, None, "the body is no task message"),
        (b'[[NaN], {"a": {"__type__": "none", "__value__": 1}}, {}]', None, "'__type__': 'none'"),
    ],
)
def test_body_that_is_no_message_is_told_as_such(desk, body, content_type, said):
    """The letter whose arguments nobody can decode is the one that has to be looked at."""
    letter = desk.bury(body=body, content_type=content_type)
    with desk.client("ann") as client:
        answer = client.get(desk.path_of(letter))

    assert answer.status_code == 200
    assert said in answer.text.replace("&#x27;", "'")


def test_letter_of_a_megabyte_makes_a_page_that_can_be_read(desk):
    """A browser that hangs on one letter hides all others."""
    letter = desk.bury(kwargs={"blob": "x" * 1_000_000}, traceback="line\n" * 100_000, error_message="y" * 100_000)
    with desk.client("ann") as client:
        answer = client.get(desk.path_of(letter))

    assert answer.status_code == 200
    assert f"{len(letter.wire.body)} bytes of application/json" in answer.text
    assert len(answer.text) < 200_000


def test_message_that_is_not_whole_can_only_be_put_away_or_given_up(log_in, desk):
    """A replay of a part of a message would be another message."""
    whole = desk.bury(kwargs={"blob": "x" * 50_000})
    desk.change(whole, wire=whole.wire.without_body())
    page = log_in("ann")

    open_letter(page, desk, whole)

    assert "its message was larger than safeguards_max_letter_bytes" in content(page)
    assert page.locator(".sg-buttons input[type=submit]").evaluate_all("all => all.map(each => each.value)") == [
        "Archive…",
        "Discard…",
    ]


@pytest.mark.parametrize("stored", ['{"v": 99}', "no json", "{}", "[]", '{"html": "<b>bold</b>"}'])
def test_letter_that_cannot_be_read_shows_as_such(desk, stored):
    """Written by a newer version, or damaged: it must not take the list, or its own page, with it."""
    letter = desk.bury()
    desk.overwrite(letter, stored)
    with desk.client("ann") as client:
        page = client.get(desk.path_of(letter))
        listed = client.get(LETTERS)
        asked = client.do("replay", desk.picked(letter))
        done = client.do("replay", desk.picked(letter), confirmed="1")
        told = client.get(LETTERS).text

    assert (page.status_code, listed.status_code, asked.status_code, done.status_code) == (200, 200, 200, 302)
    assert "The letter cannot be read" in page.text
    assert "<b>" not in page.text
    assert letter.id in listed.text
    assert "It cannot be read" in asked.text
    assert f"{letter.id}</a>: refused" in told


@pytest.mark.parametrize("damaged", ["no json", "[]", '{"steps": 7', "null"])
def test_letter_of_a_damaged_record_shows_that_nobody_knows(desk, damaged):
    """One row that a disk has eaten must not take with it the page of what it belongs to, nor the list of all."""
    order = f"order-{damaged[:2].strip()}-{len(damaged)}"
    letter = desk.bury_unknown(order)
    record = desk.damage_record(letter, damaged)
    with desk.client("ann") as client:
        page = client.get(desk.path_of(letter))
        asked = client.do("replay", desk.picked(letter))
        done = client.do("happened", desk.picked(letter), confirmed="1", reason="by hand", result="1")
        row, rows = client.get(f"{RECORDS}{record}/change/"), client.get(RECORDS)

    assert [each.status_code for each in (page, asked, done, row, rows)] == [200, 200, 302, 200, 200]
    assert "the record is damaged" in page.text
    assert "the record is damaged" in asked.text
    assert desk.letter(letter).state == "open"
