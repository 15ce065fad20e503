"""
The page of a job that somebody watches: what it changes by itself, and what it says of how the job goes.
"""

import re
import time
from dataclasses import replace

from celery_safeguards.jobs.steps import taken
from celery_safeguards.jobs.tempo import Tempo
from tests.browser.pages import press
from tests.browser.replay_jobs import jobs_of, made, path_of


def test_a_page_that_is_watched_changes_only_what_has_changed(log_in, desk, letters):
    """A job's id cannot be copied out of a page that is made anew every other second; and its buttons must be true."""
    job = made(desk, letters)
    page = log_in("ann")
    page.goto(desk.url + path_of(desk, job))
    page.evaluate("window.isTheSamePage = true")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.field-job_id .readonly'))")
    group = page.get_by_role("link", name="the group")
    group.focus()

    desk.store(lambda wiring: wiring.jobs.change(job.id, taken("r", time.time(), 60)))
    page.get_by_text("r, whose lease ends").wait_for()
    page.get_by_role("button", name="Run…").wait_for(state="detached")

    assert page.evaluate("getSelection().toString()").strip() == job.id
    assert group.evaluate("element => element === document.activeElement")
    assert page.evaluate("window.isTheSamePage") is True
    assert page.get_by_role("button", name="Pause…").count() == 1


def test_a_page_that_is_watched_outlives_a_server_that_is_away(log_in, desk, letters):
    """A deployment in the midst of a replay must not leave whoever watches it with an error page."""
    job = made(desk, letters)
    page = log_in("ann")
    path = desk.url + path_of(desk, job)
    page.goto(path)
    page.evaluate("window.isTheSamePage = true")

    page.route(path, lambda route: route.fulfill(status=502, body="Bad Gateway"))
    page.locator("#sg-live.sg-stale").wait_for()
    page.unroute(path)
    desk.store(lambda wiring: wiring.jobs.change(job.id, taken("r", time.time(), 60)))
    page.get_by_text("r, whose lease ends").wait_for()

    assert page.evaluate("window.isTheSamePage") is True
    assert page.locator("#sg-live.sg-stale").count() == 0


def test_a_page_that_is_watched_says_in_words_what_happens(log_in, desk, letters):
    """Pale numbers say nothing of how old they are, and who cannot see the bar hears how far the job has come."""
    job = made(desk, letters)
    page = log_in("ann")
    path = desk.url + path_of(desk, job)
    page.goto(path)
    said = page.get_by_role("status")
    at_first = said.inner_text()

    desk.store(lambda wiring: wiring.jobs.change(job.id, lambda kept: replace(kept, position=6)))
    said.get_by_text("6 of 12 letters dealt with", exact=True).wait_for(state="attached")
    page.route(path, lambda route: route.fulfill(status=502, body="Bad Gateway"))
    away = said.get_by_text(re.compile(r"^The server does not answer: .* known at \d\d:\d\d:\d\d UTC\.$"))
    away.wait_for()
    faded = page.locator("#sg-live").evaluate("element => getComputedStyle(element).opacity")
    page.unroute(path)
    said.get_by_text("The server answers again", exact=True).wait_for(state="attached")

    assert (at_first, faded) == ("", "1")
    assert away.count() == 0


def test_without_scripts_the_page_loads_itself(log_in, desk, letters):
    job = made(desk, letters)
    page = log_in("ann", java_script_enabled=False)

    page.goto(desk.url + path_of(desk, job))
    refresh = page.locator('meta[http-equiv="refresh"]').get_attribute("content")
    press(page, "Cancel the replay…")
    press(page, "Cancel the replay")

    assert refresh == "5"
    assert page.locator('meta[http-equiv="refresh"]').count() == 0
    assert jobs_of(desk, letters)[0].status == "cancelled"


def test_a_page_says_how_slow_its_job_goes_and_why(log_in, desk, letters):
    """Whoever watches would take it for stuck."""
    job = made(desk, letters, per_second="20")
    tempo = Tempo(share=0.125, failing=0.7, answers=20.0)
    desk.store(lambda wiring: wiring.jobs.change(job.id, lambda kept: replace(kept, tempo=tempo)))
    page = log_in("vera")

    page.goto(desk.url + path_of(desk, job))

    said = page.locator("#sg-live").inner_text()
    assert "20 a second, at most 100 on their way" in said
    assert "slowed to 12.5% of it: 70% of the latest 20 failed again; just now 2.5 a second, at most 12" in said
