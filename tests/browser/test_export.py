"""
Letters as a file: who may have one, what is in it, and what the log of the admin says of it.
"""

import csv
import io
import json
import uuid

import httpx
import pytest

from tests.browser.pages import LETTERS, content, follow, press
from tests.browser.test_archive import chosen
from tests.support.waiting import wait_until

EXPORT = f"{LETTERS}export/"
GIVEN = {"confirmed": "1", "form": "csv", "reason": "for the auditors"}


def rows(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def new_task():
    """Return the name of a task that no other test has letters of."""
    return f"desk.export-{uuid.uuid4().hex[:8]}"


def log_of(desk, task):
    return [(who, what) for who, which, what in desk.log() if which == "dead letters" and task in what]


def test_list_is_exported_as_it_is_narrowed(log_in, desk):
    """From the link above the list to the file: all of its pages, and nothing that it leaves out."""
    task = new_task()
    letters = [desk.bury(task=task, last_failed_seconds=1_750_000_000.0 + number) for number in range(3)]
    desk.change(letters[0], state="archived", archived_from="open")
    other = desk.bury()
    page = log_in("exa")

    page.goto(f"{desk.url}{LETTERS}?task={task}")
    follow(page, page.get_by_role("link", name="Export all of these"))
    asked = content(page)
    press(page, "Export")
    page.get_by_text("This field is required.").wait_for()
    page.get_by_label("Reason").fill("for the auditors")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    found = rows(download.value.path().read_bytes().decode())

    assert "2 letters" in asked
    assert download.value.suggested_filename.endswith(".csv")
    assert [letters[2].id, letters[1].id] == [row["id"] for row in found]
    assert other.id not in str(found)
    assert "no such order" not in str(found)
    assert [
        ("exa", f"Export: 2 letters, as CSV, without payload: task={task}, all but archived. Reason: for the auditors")
    ] == log_of(desk, task)


def test_selection_is_exported(log_in, desk):
    task = new_task()
    letters = {desk.bury(task=task, kwargs={"order_id": 7}).id for _ in range(2)}
    page = log_in("exa")

    page.goto(f"{desk.url}{LETTERS}?task={task}")
    chosen(page, "Export selected letters")
    page.get_by_label("Reason").fill(f"of {task}")
    page.get_by_label("Format").select_option("json")
    page.get_by_label("With arguments").check()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    found = [json.loads(line) for line in download.value.path().read_text().splitlines()]

    assert letters == {each["id"] for each in found}
    assert [{"order_id": 7}] * 2 == [each["arguments"]["kwargs"] for each in found]
    said = f"Export: 2 letters, as JSON, with payload: chosen from the list. Reason: of {task}"
    assert [("exa", said)] == log_of(desk, task)


def test_file_is_streamed_over_many_pages(desk):
    task = new_task()
    for number in range(230):
        desk.bury(f"{task}-{number}", task=task, last_failed_seconds=1_750_000_000.0 + number // 60)
    with (
        desk.client("exa") as client,
        client.stream(
            "POST", EXPORT, params={"task": task}, data={**GIVEN, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        ) as answer,
    ):
        parts = list(answer.iter_raw())

    found = rows(b"".join(parts).decode())
    assert {f"{task}-{number}" for number in range(230)} == {row["id"] for row in found}
    assert (230, True) == (len(found), len(parts) > 1)
    assert "Content-Length" not in answer.headers
    assert "no-store" in answer.headers["Cache-Control"]
    assert "nosniff" == answer.headers["X-Content-Type-Options"]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_payload_is_for_those_who_may_see_it(desk, form):
    """The form hides the choice; a request made by hand must not have it either."""
    task = new_task()
    desk.bury(task=task, kwargs={"order_id": 4711}, error_message="refused: 4711", traceback="in 4711")
    answers = {}
    for person, asked in (("exa", {}), ("exa", {"with_payload": "on"}), ("noa", {"with_payload": "on"})):
        with desk.client(person) as client:
            page = client.get(EXPORT, params={"task": task})
            given = {**GIVEN, "form": form, **asked}
            answer = client.post(EXPORT, params={"task": task}, data=given)
            answers[person, bool(asked)] = ("with_payload" in page.text, "4711" in answer.text, answer.status_code)

    assert answers == {
        ("exa", False): (True, False, 200),
        ("exa", True): (True, True, 200),
        ("noa", True): (False, False, 200),
    }
    assert ["with", "without", "without"] == sorted(
        what.partition("as ")[2].split()[1] for _, what in log_of(desk, task)
    )


def test_file_holds_no_secret_and_no_formula(desk):
    """What is masked on every page is masked in what leaves the house."""
    task = new_task()
    formula = "=cmd|' /C calc'!A0"
    desk.bury(
        task=task,
        kwargs={"password": "hunter2", "note": "@SUM(1)"},
        error_message=f"{formula} hunter2",
        headers={"x-token": "hunter2"},
        key=formula,
    )
    with desk.client("ann") as client:
        (row,) = rows(client.post(EXPORT, params={"task": task}, data={**GIVEN, "with_payload": "on"}).text)

    assert "hunter2" not in str(row)
    assert "[redacted]" in row["arguments"]
    assert (f"'{formula}", True) == (row["key"], row["error_message"].startswith("'=cmd"))
    assert [] == [cell for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]


def test_letter_that_cannot_be_read_is_in_the_file(desk):
    task = new_task()
    letter = desk.bury(task=task)
    desk.overwrite(letter, "{")
    with desk.client("ann") as client:
        (row,) = rows(client.post(EXPORT, params={"task": task}, data={**GIVEN, "with_payload": "on"}).text)

    assert (letter.id, True) == (row["id"], "cannot be read" in row["problem"])


def test_search_is_exported_and_its_words_are_not_kept(desk):
    """They may be a customer's address: the log outlives what is erased of him."""
    letter = desk.bury(task="desk.note", kwargs={"order_id": 990_123})
    with desk.client("exa") as client:
        (row,) = rows(client.post(EXPORT, params={"q": "order_id=990123"}, data=GIVEN).text)

    assert letter.id == row["id"]
    assert log_of(desk, "found by a search")
    assert log_of(desk, "990123") == []


@pytest.mark.parametrize("person", ["vera", "blind", "rex"])
def test_request_made_by_hand_needs_the_permission(desk, person):
    """Whoever may look at letters one by one may not carry all of them away."""
    task = new_task()
    letter = desk.bury(task=task)
    row = desk.picked(letter).split(":")[0]
    with desk.client(person) as client:
        answers = [
            client.get(EXPORT, params={"task": task}),
            client.post(EXPORT, params={"task": task}, data=GIVEN),
            client.post(EXPORT, data={**GIVEN, "letter": row}),
        ]
        listed = client.post(LETTERS, data={"action": "export_selected", "_selected_action": row})
        link = client.get(LETTERS)

    assert [403] * 3 == [answer.status_code for answer in answers]
    assert "Export these letters?" not in listed.text
    assert "Export all of these" not in link.text
    assert [] == log_of(desk, task)


def test_file_is_sent_by_post_alone_with_a_token_and_a_reason(desk):
    """A link in a mail must not write an entry that somebody has exported everything."""
    task = new_task()
    desk.bury(task=task)
    with desk.client("exa") as client:
        read = client.get(EXPORT, params={"task": task})
        linked = client.get(EXPORT, params={"task": task, **GIVEN})
        forged = httpx.Client.post(client, EXPORT, params={"task": task}, data=GIVEN)
        unreasoned = client.post(EXPORT, params={"task": task}, data={**GIVEN, "reason": " "})
        odd = client.post(EXPORT, params={"task": task}, data={**GIVEN, "form": "xlsx"})
        other = client.put(EXPORT)

    assert [200, 400, 403, 200, 200] == [each.status_code for each in (read, linked, forged, unreasoned, odd)]
    assert other.status_code in {403, 405}
    assert [True, True, True] == ["Export these letters?" in each.text for each in (read, unreasoned, odd)]
    assert [] == log_of(desk, task)


@pytest.mark.parametrize("query", [{"letter__contains": "a"}, {"older": "odd"}])
def test_address_that_makes_no_sense_exports_nothing(desk, query):
    """What narrows nothing would export everything."""
    with desk.client("exa") as client:
        answer = client.post(EXPORT, params=query, data=GIVEN)

    assert answer.status_code in {302, 400}


def test_id_that_no_letter_can_have_exports_nothing(desk):
    """A NUL is no error of the server's, and no selection is not all letters."""
    desk.bury()
    with desk.client("exa") as client:
        answer = client.post(EXPORT, data={**GIVEN, "letter": "\x00"})

    assert (200, True) == (answer.status_code, "There is nothing to export." in answer.text)


def test_export_that_was_cut_short_is_told_as_that(desk):
    """The log must not say that everything went out, nor that nothing did."""
    task = new_task()
    for number in range(250):
        desk.bury(f"{task}-{number}", task=task, traceback="x" * 200_000)
    with (
        desk.client("exa") as client,
        client.stream(
            "POST",
            EXPORT,
            params={"task": task},
            data={**GIVEN, "with_payload": "on", "csrfmiddlewaretoken": client.cookies["csrftoken"]},
        ) as answer,
    ):
        next(answer.iter_raw())
        begun = log_of(desk, task)

    wait_until(lambda: "cut short" in log_of(desk, task)[0][1], 20, "the log says that it was cut short")
    assert ("exa", True) == (begun[0][0], begun[0][1].startswith("Export: begun, as CSV, with payload: "))
    assert log_of(desk, task)[0][1].startswith("Export: cut short behind ")


def test_nothing_to_export_is_said_and_no_form_shown(desk):
    with desk.client("exa") as client:
        page = client.get(EXPORT, params={"task": new_task()}).text

    assert "There is nothing to export." in page
    assert "Reason" not in page


def test_more_letters_than_a_page_can_send_are_refused(desk):
    """A file that ends where the server lost its patience would be taken for all of them."""
    task = new_task()
    letter = desk.bury(task=task)

    def many(wiring):
        table, connection = wiring.letters._house.tables.letters, wiring.letters._house.connection
        columns = table.list(column for column in table._quoted if column not in {"id", "letter_id"})
        numbers = "generate_series(%s::int, %s::int) n"
        insert = (
            f"INSERT INTO {table.name} (id, letter_id, {columns}) "
            f"SELECT md5(n || %s), n, {columns} FROM {table.name}, {numbers} WHERE letter_id = %s"
        )
        for first in range(0, 20_000, 1_000):
            given = [task, first, first + 999, letter.id]
            connection.run(lambda cursor, given=given: cursor.execute(insert, given))

    desk.store(many)
    with desk.client("exa") as client:
        page = client.get(EXPORT, params={"task": task})
        done = client.post(EXPORT, params={"task": task}, data=GIVEN)

    assert "More than 20000 letters" in page.text
    assert 'name="confirmed"' not in page.text
    assert ("text/html", []) == (done.headers["Content-Type"].split(";")[0], log_of(desk, task))
