"""
No page is a dead end: whatever was asked for, it is said what became of it, and a link leads back.
"""

import pytest

from celery_safeguards.locks.store import LockAsk
from celery_safeguards.replay.many.choosing import make_job, named
from django_celery_safeguards.rows import lock_id
from django_celery_safeguards.sql import row_id
from tests.browser.desk.seed import PASSWORD
from tests.browser.pages import LETTERS, LOCKS, REPLAYS, content, follow, press


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
