"""
Replay jobs as the tests of their pages begin and find them.
"""

from django_celery_safeguards.sql import row_id
from tests.browser.pages import REPLAYS, follow

START = f"{REPLAYS}start/"
ASKED = {"canary": "0", "at_once": "100", "order": "first_seen", "reason": "by hand", "confirmed": "Start"}


def jobs_of(desk, letters):
    """Return the jobs of the letters' group, the newest first."""
    page = desk.store(lambda wiring: wiring.jobs.list(1000))
    return [job for job in page.jobs if job.fingerprint == letters[0].fingerprint]


def path_of(desk, job, page="change"):
    return f"{REPLAYS}{row_id(desk.namespace, job.id)}/{page}/"


def states(desk, letters):
    return [desk.letter(letter).state for letter in letters]


def open_form(page, desk, letters, **filled):
    """Go from a group's page to the form, and fill it in."""
    page.goto(desk.url + desk.path_of_group(letters[0]))
    follow(page, page.get_by_role("link", name="Replay its open letters"))
    for label, value in {"Reason": "the bank is back", **filled}.items():
        page.get_by_label(label.replace("_", " ")).fill(value)


def made(desk, letters, **options):
    """Begin a job without a page and without a worker."""
    with desk.client("ann") as client:
        client.post(START, data={"fingerprint": letters[0].fingerprint, **ASKED, **options})
    desk.forget_messages()
    return jobs_of(desk, letters)[0]
