"""
No page is a dead end: whatever was asked for, it is said what became of it, and a link leads back.
"""

import contextlib
import sqlite3

import pytest

from celery_safeguards.locks.store import LockAsk
from celery_safeguards.replay.many.choosing import make_job, named
from django_celery_safeguards.rows import lock_id
from django_celery_safeguards.sql import row_id
from tests.browser.desk.seed import PASSWORD
from tests.browser.pages import GROUPS, LETTERS, LOCKS, REPLAYS, content, follow, press


def letter_to_replay(desk, letter):
    return desk.path_of(letter), "Replay", LETTERS


def job_to_pause(desk, letter):
    job = desk.store(lambda _: make_job(desk.app, named([letter.id]), "ann"))
    path = f"{REPLAYS}{row_id(desk.namespace, job.id)}/change/"
    return path, "Pause", path


def lock_to_release(desk, letter):
    ask = LockAsk(name=letter.id, owner="somebody", lease_seconds=300, holder={})
    desk.store(lambda wiring: wiring.locks.acquire(ask))
    path = f"{LOCKS}{lock_id(desk.namespace, letter.id)}/change/"
    return path, "Release", path


@pytest.mark.parametrize("made", [letter_to_replay, job_to_pause, lock_to_release])
def test_who_has_to_log_in_behind_a_button_is_told_that_nothing_was_done(log_in, desk, made):
    """The session of a night ends between two pages: a bare "405" leaves whoever sees it to guess what was sent."""
    path, button, back = made(desk, desk.bury())
    page = log_in("ann")
    page.goto(desk.url + path)
    press(page, f"{button}…")

    page.context.clear_cookies(name="sessionid")
    press(page, button)
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    press(page, "Log in")
    said = content(page)
    follow(page, page.get_by_role("link", name="Go back"))

    assert "what you asked for was not done" in said
    assert page.url == desk.url + back


def test_the_list_stays_narrowed_behind_what_is_done_on_a_page(log_in, desk):
    """Thirty letters of one task, one after the other: nobody narrows the list anew behind each of them."""
    letters = [desk.bury(task="desk.narrowed") for _ in range(2)]
    page = log_in("ann")
    for letter in letters:
        page.goto(f"{desk.url}{LETTERS}?task=desk.narrowed&state=open")
        narrowed = page.url
        follow(page, page.locator("#result_list th a").first)
        opened = page.url

        press(page, "Discard…")
        follow(page, page.get_by_role("link", name="Do nothing"))
        assert page.url == opened
        press(page, "Edit as new…")
        follow(page, page.get_by_role("link", name="Do nothing"))
        assert page.url == opened
        press(page, "Discard…")
        page.get_by_label("Reason").fill(f"as {letter.id}")
        press(page, "Discard")
        follow(page, page.get_by_role("link", name="Back to the list"))

        assert page.url == narrowed
    assert {desk.letter(each).state for each in letters} == {"discarded"}


def test_the_lists_of_groups_and_jobs_stay_narrowed_as_well(log_in, desk):
    letter = desk.bury()
    job_to_pause(desk, letter)
    page = log_in("ann")

    page.goto(f"{desk.url}{GROUPS}?status=open&q={letter.fingerprint}")
    narrowed = [page.url]
    follow(page, page.locator("#result_list th a"))
    follow(page, page.get_by_role("link", name="Triage"))
    page.get_by_label("Assignee").fill("bob")
    press(page, "Save")
    follow(page, page.get_by_role("link", name="Back to the list"))
    came_to = [page.url]
    page.goto(f"{desk.url}{REPLAYS}?status=running&q=ann")
    narrowed.append(page.url)
    follow(page, page.locator("#result_list th a").first)
    for name in ("Pause…", "Pause"):
        press(page, name)
    follow(page, page.get_by_role("link", name="Back to the list"))
    came_to.append(page.url)

    assert came_to == narrowed


def times_in_the_log(desk, letter):
    """Return when each entry was made, in UTC."""
    with contextlib.closing(sqlite3.connect(desk.users_file)) as connection:
        select = "SELECT action_time FROM django_admin_log WHERE object_repr = ? ORDER BY id"
        return [time[:19] for (time,) in connection.execute(select, [letter.id])]


def test_the_log_is_in_the_zone_of_all_other_pages_and_leads_back(log_in, desk):
    """The project's zone is Chicago's: a log that says "10:43" of what the page beside it says was at 16:43 UTC."""
    letter = desk.bury()
    page = log_in("ann")
    page.goto(f"{desk.url}{LETTERS}?q={letter.id}")
    follow(page, page.locator("#result_list th a"))
    opened = page.url

    follow(page, page.get_by_role("link", name="Log of the admin"))
    before = content(page)
    follow(page, page.get_by_role("link", name="Go back"))
    came_to = page.url
    press(page, "Discard…")
    page.get_by_label("Reason").fill("out of date")
    press(page, "Discard")
    follow(page, page.get_by_role("link", name="Log of the admin"))
    rows = page.locator("#content-main tbody tr").all_inner_texts()

    (time,) = times_in_the_log(desk, letter)
    assert "Nobody has done anything to this in the admin" in before
    assert came_to == opened
    assert [row.split("\t") for row in rows] == [[f"{time} UTC", "ann", "Discard: discarded. Reason: out of date"]]
    assert page.title().startswith(f"{letter.id} | Log of the admin")


def test_what_is_said_of_a_letter_leads_to_it(log_in, desk):
    """Behind a replay the letter is on the list of open ones no longer, and its id alone is a search."""
    letters = [desk.bury(task="desk.led") for _ in range(2)]
    page = log_in("ann")
    page.goto(f"{desk.url}{LETTERS}?task=desk.led&state=open")
    narrowed = page.url
    page.locator("#action-toggle").check()
    page.locator("select[name=action]").select_option("discard_selected")
    press(page, "Go")
    page.get_by_label("Reason").fill("<b>mended</b>")
    press(page, "Discard")
    listed = page.locator("#result_list").count()
    follow(page, page.locator(".messagelist").get_by_role("link", name=letters[0].id))
    shown = content(page)
    follow(page, page.get_by_role("link", name="Back to the list"))

    assert listed == 0
    assert letters[0].id in shown
    assert page.url == narrowed
