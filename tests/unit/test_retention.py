"""
How long letters are kept: when their work came to its end, and what is said of it.
"""

from dataclasses import replace

import pytest

from celery_safeguards.deadletter import archiving, changes
from celery_safeguards.deadletter.history import MAX_HISTORY
from celery_safeguards.deadletter.retention import kept_in_words, kept_until, left_in_words, over_since
from tests.conformance.deadletter_contract import NOON, letter, second_burial

DAY = 86_400.0
CLOSED = changes.closing("it succeeded", NOON + 100)(letter())
DISCARDED = changes.discarding("ana", "old", NOON + 100)(letter())


def test_an_end_that_was_pushed_out_of_the_history_is_not_earlier_than_what_is_left_of_it():
    noted = CLOSED
    for number in range(MAX_HISTORY):
        noted = changes.noting("seen", "ana", "", NOON + 200 + number)(noted)

    assert [NOON + 100, NOON + 200] == [over_since(CLOSED), over_since(noted)]


@pytest.mark.parametrize(
    "found",
    [
        letter(),
        replace(letter(), state="closed"),
        changes.reburial(second_burial())(CLOSED),
        archiving.archiving("ana", "old", NOON)(letter()),
    ],
    ids=["open", "no history", "died again", "archived from open"],
)
def test_what_is_not_known_to_be_over_is_kept_for_ever(found):
    assert (None, None) == (over_since(found), kept_until(found, DAY))
    assert "for ever" == left_in_words(found, DAY, NOON + 1_000 * DAY)


@pytest.mark.parametrize("found", [CLOSED, DISCARDED, archiving.archiving("ana", "old", NOON + 500)(CLOSED)])
def test_what_is_over_is_kept_from_then_on(found):
    assert NOON + 100 + DAY == kept_until(found, DAY)
    assert "2 h" == left_in_words(found, DAY, NOON + 100 + DAY - 7_200)
    assert "until the next purge" == left_in_words(found, DAY, NOON + 100 + DAY)
    assert (None, "for ever") == (kept_until(found, 0), left_in_words(found, 0, NOON + 1_000 * DAY))


def test_the_last_end_counts():
    again = changes.closing("it succeeded", NOON + 900)(changes.reburial(second_burial())(CLOSED))

    assert NOON + 900 == over_since(again)


@pytest.mark.parametrize(
    ("found", "retention", "said"),
    [
        (letter(), DAY, "for ever: it is open"),
        (CLOSED, 0, "for ever: as the settings say"),
        (replace(letter(), state="closed"), DAY, "for ever: nobody knows since when it is over"),
        (CLOSED, DAY, "for another 23 h 58 min, until 2023-11-15T22:15:00+00:00"),
        (CLOSED, 100, "until the next purge: its time was over at 2023-11-14T22:16:40+00:00"),
    ],
)
def test_it_is_said_how_long_and_why(found, retention, said):
    assert said == kept_in_words(found, retention, NOON + 200)
