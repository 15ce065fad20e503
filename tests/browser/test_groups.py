"""
Letters by their causes: how a group is found, what is said of it, and who may say it.
"""

import time
import uuid
from dataclasses import replace

import pytest

from celery_safeguards.jobs.steps import declared
from celery_safeguards.replay.many.choosing import Choice, make_job
from django_celery_safeguards.sql import row_id
from tests.browser.pages import GROUPS, LETTERS, REPLAYS, content, find, follow, open_letter, press, told

SAID = {"status": "resolved", "reason": "by hand", "assignee": "", "note": "", "failures_seen": "9"}


@pytest.fixture
def letters(desk):
    """Three letters of a cause that no other test has; the newest has just failed."""
    task, now = f"desk.{uuid.uuid4().hex}", time.time()
    return [
        desk.bury(
            task=task, error_message=f"order {number} <b>is</b> unknown", last_failed_seconds=now - 3_600 * number
        )
        for number in range(3)
    ]


def open_triage(page, desk, letter):
    page.goto(desk.url + desk.path_of_group(letter))
    follow(page, page.get_by_role("link", name="Triage", exact=True))


def test_from_the_list_of_groups_to_its_letters_and_back(log_in, desk, letters):
    """Whoever is called looks for causes first, then at one letter of it."""
    page = log_in("vera")

    (row,) = find(page, desk, letters[0].task, GROUPS).all()
    listed = row.inner_text()
    chart = row.locator("svg").get_attribute("aria-label")
    follow(page, row.get_by_role("link"))
    shown = content(page)
    follow(page, page.locator(".field-letters_shown").get_by_role("link"))
    of_group = page.locator("#result_list tbody tr").count()
    follow(page, page.locator("#result_list tbody th a").first)
    follow(page, page.locator(".field-group_shown").get_by_role("link"))

    assert "ValueError: order 0 <b>is</b> unknown" in listed
    assert chart == "3 failures in the last 24 hours, 1 in the worst of them"
    assert letters[0].fingerprint in shown
    assert "order 0 <b>is</b> unknown" in shown
    assert of_group == 3
    assert desk.path_of_group(letters[0]) in page.url


def test_one_failure_is_said_as_one(log_in, desk):
    """The chart has no other words for who cannot see it."""
    letter = desk.bury(task=f"desk.{uuid.uuid4().hex}", last_failed_seconds=time.time())
    page = log_in("vera")

    (row,) = find(page, desk, letter.task, GROUPS).all()

    assert "1 failure\n" in f"{row.inner_text()}\n".replace("\t", "\n")
    assert row.locator("svg").get_attribute("aria-label") == "1 failure in the last 24 hours, 1 in the worst of them"


def test_what_is_said_is_kept_shown_and_logged(log_in, desk, letters):
    page = log_in("ann")

    open_triage(page, desk, letters[0])
    page.get_by_label("Status").select_option("acknowledged")
    page.get_by_label("Reason").fill("the bank is away")
    page.get_by_label("Assignee").fill("bob")
    page.get_by_label("Note").fill("see their page\nsince noon")
    press(page, "Save")

    group = desk.group(letters[0])
    assert ("acknowledged", "bob", "see their page\nsince noon") == (group.status, group.assignee, group.note)
    assert {"ann"} == {entry.who for entry in group.history}
    assert "Acknowledged: the bank is away; assigned to bob; note changed." in told(page)
    for part in ("acknowledged", "bob", "since noon", "the bank is away"):
        assert part in content(page)
    (entry,) = [text for who, _, text in desk.log() if who == "ann" and "bank is away" in text]
    assert entry == "Triage: acknowledged: the bank is away; assigned to bob; note changed."


def test_what_the_project_has_written_down_for_a_failure_is_a_link(log_in, desk, letters):
    page = log_in("vera")

    page.goto(desk.url + desk.path_of_group(letters[0]))
    of_group = page.locator(".field-playbook").get_by_role("link")
    found = of_group.get_attribute("href"), of_group.get_attribute("rel")
    open_letter(page, desk, desk.bury(task="desk.charge"))
    of_letter = page.locator(".field-playbook")

    assert found == ("https://wiki.example.com/bugs?a=<b>", "noopener noreferrer")
    assert "javascript:alert(1)" in of_letter.inner_text()
    assert of_letter.get_by_role("link").count() == 0


def test_saving_what_is_there_changes_nothing(log_in, desk, letters):
    """A shell has written the note, with the ends of lines that browsers do not send."""
    desk.store(lambda wiring: wiring.letters.annotate_group(letters[0].fingerprint, "one\ntwo", "cli"))
    before = desk.group(letters[0])
    page = log_in("ann")

    open_triage(page, desk, letters[0])
    press(page, "Save")

    assert "Nothing was changed." in told(page)
    assert before == desk.group(letters[0])


def test_failure_that_comes_between_look_and_click_is_shown_first(log_in, desk, letters):
    page = log_in("ann")
    open_triage(page, desk, letters[0])
    desk.bury(task=letters[0].task, error_message="order 9 <b>is</b> unknown", last_failed_seconds=time.time())

    page.get_by_label("Status").select_option("resolved")
    press(page, "Save")
    refused, status = content(page), desk.group(letters[0]).status
    press(page, "Save")

    assert "has failed 1 time since it was looked at" in refused
    assert "4 failures so far" in refused
    assert status == "open"
    assert desk.group(letters[0]).status == "resolved"


def test_two_people_do_not_take_back_what_the_other_said(log_in, desk, letters):
    """A page shows what was; what its reader left as it was is nothing that he has said."""
    page = log_in("ann")
    open_triage(page, desk, letters[0])
    desk.store(lambda wiring: wiring.letters.declare_group(letters[0].fingerprint, "muted", "bob"))

    page.get_by_label("Note").fill("mine")
    press(page, "Save")

    assert ("muted", "mine") == (desk.group(letters[0]).status, desk.group(letters[0]).note)


def test_resolved_group_that_fails_again_says_so(log_in, desk, letters):
    desk.store(lambda wiring: wiring.letters.declare_group(letters[0].fingerprint, "resolved", "ann"))
    desk.bury(task=letters[0].task, error_message="order 9 <b>is</b> unknown", last_failed_seconds=time.time())
    page = log_in("vera")

    (row,) = find(page, desk, letters[0].task, GROUPS).all()
    listed = row.inner_text()
    follow(page, row.get_by_role("link"))

    assert "reopened" in listed
    assert "reopened by a failure" in content(page)


def test_letters_are_narrowed_to_a_group_that_a_link_names(log_in, desk, letters):
    other = desk.bury(task="desk.other")
    page = log_in("vera")

    page.goto(f"{desk.url}{LETTERS}?fingerprint={letters[0].fingerprint}")
    narrowed = page.locator("#result_list").inner_text()

    assert letters[0].id in narrowed
    assert other.id not in narrowed
    assert letters[0].fingerprint in page.locator("#changelist-filter").inner_text()


@pytest.mark.parametrize("person, may", [("vera", False), ("rex", False), ("blind", False), ("tess", True)])
def test_saying_something_needs_its_permission(desk, letters, person, may):
    """What is hidden is not forbidden: with the address and a token anybody can send the form."""
    path = desk.path_of_group(letters[0], "triage")
    with desk.client(person) as client:
        page = client.get(desk.path_of_group(letters[0]))
        asked = client.get(path, params=SAID)
        status = desk.group(letters[0]).status
        answer = client.post(path, data=SAID)

    assert (may, status) == ("/triage/" in page.text, "open")
    assert ((200, 302) if may else (403, 403)) == (asked.status_code, answer.status_code)
    assert ("resolved" if may else "open") == desk.group(letters[0]).status


def test_form_without_its_token_is_refused(desk, letters):
    with desk.client("tess") as client:
        answer = client.request("POST", desk.path_of_group(letters[0], "triage"), data=SAID)

    assert answer.status_code == 403
    assert desk.group(letters[0]).status == "open"


def test_person_without_the_permission_to_view_sees_no_group(desk, letters):
    with desk.client("blind") as client:
        found = [client.get(path).status_code for path in (GROUPS, desk.path_of_group(letters[0]))]

    assert found == [403, 403]


def test_group_of_another_fleet_is_not_there(desk, letters):
    """Two fleets share a database, and each has people of its own."""
    id_ = desk.bury_elsewhere(letters[0]) and desk.path_of_group(letters[0]).split("/")[-3]
    with desk.client("tess") as client:
        assert client.get(f"{GROUPS}{'0' * len(id_)}/triage/").status_code == 404
        listed = client.get(GROUPS, params={"q": letters[0].fingerprint}).text

    assert 1 == listed.count('name="_selected_action"') or 1 == listed.count("field-status_and_assignee")


def test_letter_of_an_older_version_says_that_it_is_in_no_group(log_in, desk, letters):
    def forget(wiring):
        house = wiring.letters._house
        update = house.tables.letters.update(("fingerprint",), by=("letter_id",))
        house.connection.run(lambda cursor: cursor.execute(update, ["", letters[0].id]))

    desk.store(forget)
    page = log_in("vera")

    open_letter(page, desk, letters[0])
    before = content(page)
    desk.store(lambda wiring: wiring.letters.regroup(letters[0].id))
    open_letter(page, desk, letters[0])

    assert "none yet: it is of an older version" in before
    assert letters[0].fingerprint in content(page)


def test_a_group_says_with_which_release_it_came_and_was_back(log_in, desk):
    """Whoever is on call rolls a release back, or knows that it would not help."""
    task, now = f"desk.{uuid.uuid4().hex}", time.time()
    first = desk.bury(task=task, release="4.1 <b>", last_failed_seconds=now - 7_200)
    desk.bury(task=task, release="4.2", last_failed_seconds=now - 3_600)
    desk.store(lambda wiring: wiring.letters.declare_group(first.fingerprint, "resolved", "ann"))
    desk.bury(task=task, release="4.3", last_failed_seconds=now)
    page = log_in("lena")

    page.goto(desk.url + desk.path_of_group(first))
    shown = content(page)
    rows = [row.locator("td").all_inner_texts()[:2] for row in page.locator(".field-releases tbody tr").all()]
    open_letter(page, desk, first)

    assert "reopened by a failure, in release 4.3" in shown
    assert "in release 4.1 <b>" in page.locator(".field-failures").inner_text().replace("\t", " ")
    assert "ago, in release 4.1 <b>" in shown
    assert [["4.3", "1"], ["4.2", "1"], ["4.1 <b>", "1"]] == rows


def test_a_group_of_no_named_release_says_so(log_in, desk, letters):
    page = log_in("vera")

    page.goto(desk.url + desk.path_of_group(letters[0]))

    assert "not known: safeguards_release was not set" in page.locator(".field-releases").inner_text()


def test_page_says_that_a_replay_is_under_way_and_how_it_goes(desk, letters):
    """Failures that come in the night may be those of somebody's replay, and a second one is refused."""
    group = Choice(fingerprint=letters[0].fingerprint)
    shown = {}
    with desk.client("ann") as ann, desk.client("all-but-view_replayjob") as other:
        shown["before"] = ann.get(desk.path_of_group(letters[0])).text
        job = desk.store(lambda _: make_job(desk.app, group, "bob", reason="mended"))
        tally = replace(job.tally, failed_again=2)
        desk.store(lambda wiring: wiring.jobs.change(job.id, lambda kept: replace(kept, position=2, tally=tally)))
        shown["during"] = ann.get(desk.path_of_group(letters[0])).text
        shown["without"] = other.get(desk.path_of_group(letters[0])).text
        desk.store(lambda wiring: wiring.jobs.change(job.id, declared("cancelled", "bob", time.time())))
        shown["after"] = ann.get(desk.path_of_group(letters[0])).text

    assert "2 of 3 dealt with, 2 failed again" in shown["during"]
    assert f"{REPLAYS}{row_id(desk.namespace, job.id)}/change/" in shown["during"]
    assert "dealt with" not in shown["without"]
    assert all("none is under way" in shown[when] for when in ("before", "after"))
