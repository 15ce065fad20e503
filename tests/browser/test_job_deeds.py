"""
What can be asked of a job from its page, by whom, and when it is too late; the list of jobs.
"""

import time
from dataclasses import replace

import pytest

from celery_safeguards.jobs.steps import taken
from django_celery_safeguards.sql import row_id
from tests.browser.pages import GROUPS, LETTERS, REPLAYS, content, find, press, told
from tests.browser.replay_jobs import ASKED, START, jobs_of, made, path_of, states


@pytest.mark.parametrize("verb", ["pause", "cancel", "run", "resume"])
def test_a_job_that_is_over_is_not_asked_about(desk, letters, verb):
    """ "Pause this replay? 0 of 12 left": a question whose answer means nothing, and "Run" said that it was done."""
    job = made(desk, letters)
    desk.store(lambda wiring: wiring.jobs.change(job.id, lambda kept: replace(kept, status="done")))
    with desk.client("ann") as client:
        asked = client.post(path_of(desk, job, f"do/{verb}"))
        confirmed = client.post(path_of(desk, job, f"do/{verb}"), data={"confirmed": "1"})
        told_ = client.get(path_of(desk, job)).text

    assert (asked.status_code, confirmed.status_code, desk.queued()) == (302, 302, 0)
    assert "Nothing was done: it is done by now." in told_


def test_a_job_that_somebody_runs_is_not_run_twice(desk, letters):
    job = made(desk, letters)
    desk.store(lambda wiring: wiring.jobs.change(job.id, taken("r", time.time(), 60)))
    with desk.client("ann") as client:
        client.post(path_of(desk, job, "do/run"), data={"confirmed": "1"})
        said = client.get(path_of(desk, job)).text

    assert "Nothing was done: r runs it already." in said
    assert desk.queued() == 0


def test_a_job_is_paused_resumed_and_cancelled_after_a_question(log_in, desk, letters):
    job = made(desk, letters)
    page = log_in("ann")

    def status():
        return jobs_of(desk, letters)[0].status

    page.goto(desk.url + path_of(desk, job))
    press(page, "Pause…")
    asked, before = content(page), status()
    press(page, "Pause")
    paused = status(), told(page)
    press(page, "Resume…")
    press(page, "Resume")
    resumed = status(), desk.queued()
    press(page, "Cancel the replay…")
    page.get_by_label("Reason").fill("the bank is away again")
    press(page, "Cancel the replay")

    assert "12 of 12 letters left" in asked
    assert (before, paused[0], resumed, status()) == ("running", "paused", ("running", 1), "cancelled")
    assert "Pause: 12 of 12 letters left." in paused[1]
    assert set(states(desk, letters)) == {"open"}
    logged = [text for who, _, text in desk.log() if who == "ann" and "12 of 12 letters left" in text]
    assert logged[-3:] == [
        "Pause: 12 of 12 letters left.",
        "Resume: 12 of 12 letters left.",
        "Cancel the replay: 12 of 12 letters left. Reason: the bank is away again",
    ]
    assert page.get_by_role("button", name="Resume…").count() == 0


def test_a_question_that_is_answered_too_late_changes_nothing(log_in, desk, letters):
    """Somebody else has ended the job between the question and its answer."""
    job = made(desk, letters)
    page = log_in("ann")
    page.goto(desk.url + path_of(desk, job))
    press(page, "Pause…")
    with desk.client("bob") as client:
        client.post(path_of(desk, job, "do/cancel"), data={"confirmed": "Cancel"})

    press(page, "Pause")

    assert "Nothing was done: it is cancelled by now." in told(page)
    assert jobs_of(desk, letters)[0].status == "cancelled"


def test_a_job_that_nobody_runs_can_be_given_to_a_worker(log_in, desk, letters):
    """Its worker was killed, and the message went with the broker's memory."""
    job = made(desk, letters)
    page = log_in("ann")
    page.goto(desk.url + path_of(desk, job))
    nobody = content(page)
    press(page, "Run…")
    press(page, "Run")
    queued = desk.queued()
    desk.store(lambda wiring: wiring.jobs.change(job.id, taken("r", time.time(), 60)))
    page.goto(desk.url + path_of(desk, job))

    assert "nobody runs it just now" in nobody
    assert queued == 1
    assert page.get_by_role("button", name="Run…").count() == 0
    assert "r, whose lease ends" in content(page)


@pytest.mark.parametrize("person", ["vera", "dora", "sol", "tess", "blind"])
def test_whoever_may_not_replay_can_do_nothing_with_jobs(desk, letters, person):
    """What is hidden is not forbidden: with the address and a token anybody can send the form."""
    job = made(desk, letters)
    with desk.client(person) as client:
        group = client.get(desk.path_of_group(letters[0])).text
        listed = client.get(LETTERS).text
        asked = [client.get(START), client.post(START, data=ASKED), client.post(START, data={**ASKED, "look": "1"})]
        asked += [
            client.post(path_of(desk, job, f"do/{verb}"), data={"confirmed": verb})
            for verb in ("pause", "resume", "run", "cancel")
        ]

    assert [answer.status_code for answer in asked] == [403] * 7
    assert "start/" not in group + listed
    assert jobs_of(desk, letters) == [job]
    assert desk.queued() == 0


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "cancel"])
def test_nothing_is_done_by_a_link_or_without_a_token(desk, letters, verb):
    job = made(desk, letters)
    with desk.client("ann") as client:
        by_link = client.get(path_of(desk, job, f"do/{verb}"))
        without = client.request("POST", path_of(desk, job, f"do/{verb}"), data={"confirmed": verb})
        started = client.request("POST", START, data=ASKED)

    assert (by_link.status_code, without.status_code, started.status_code) == (405, 403, 403)
    assert jobs_of(desk, letters) == [job]


def test_a_job_that_cannot_be_read_is_said_to_be_so(log_in, desk, letters):
    job = made(desk, letters)

    def damage(wiring):
        table = wiring.jobs._house.tables.jobs
        values = ['{"status": "sleeping"}', row_id(desk.namespace, job.id)]
        wiring.jobs._house.connection.run(lambda cursor: cursor.execute(table.update(("job",)), values))

    desk.store(damage)
    page = log_in("ann")
    page.goto(desk.url + REPLAYS)
    listed = page.locator("#result_list").inner_text()
    page.goto(desk.url + path_of(desk, job))

    assert "by ann" in listed
    assert "damaged, or written by a newer version" in content(page)
    assert page.get_by_role("button", name="Pause…").count() == 0


def test_the_list_is_narrowed_and_searched(log_in, desk, letters):
    job = made(desk, letters)
    page = log_in("vera")

    found = find(page, desk, job.id, REPLAYS).count()
    page.goto(f"{desk.url}{REPLAYS}?status=done&q={job.id}")

    assert (found, page.locator("#result_list tbody tr").count()) == (1, 0)
    assert page.goto(f"{desk.url}{GROUPS}").status == 200
