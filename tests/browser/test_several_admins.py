"""
A project with more than one admin, each of which shows the safeguards.
"""

import re

import pytest

from tests.browser.pages import GROUPS, LETTERS, LOCKS, RECORDS, REPLAYS


@pytest.fixture
def letter(desk):
    """A letter that leads to all that it can lead to."""
    letter = desk.bury_unknown("several")
    desk.claim(letter.scope, letter.key)
    return letter


def test_each_leads_to_its_own_pages(desk, letter):
    """Whoever may enter one of them alone would be asked to log in, or find a page that does not exist there."""
    second = desk.url.replace("/admin/", "/second/")
    asked = {"fingerprint": letter.fingerprint, "look": "1", "at_once": 1, "canary": 0, "reason": "x"}
    shown = [desk.path_of(letter), desk.path_of_group(letter), desk.path_of_record(letter)]
    with desk.client("root") as client:
        answers = [client.get(f"{second}{each}") for each in (LETTERS, GROUPS, RECORDS, REPLAYS, LOCKS, *shown)]
        answers.append(client.post(f"{second}{REPLAYS}start/", data={**asked, "order": "first_seen"}))

    assert letter.id in answers[-1].text
    assert {200} == {answer.status_code for answer in answers}
    assert [] == [each for answer in answers for each in re.findall(r'(?:href|action)="(/admin/[^"]*)"', answer.text)]
