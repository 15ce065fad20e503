"""
What stands in the rows of letters: the same, whether one is changed or several together.
"""

import pytest

from celery_safeguards.deadletter.letter import Letter
from django_celery_safeguards import letters
from django_celery_safeguards.models import DeadLetter
from tests.conformance.deadletter_contract import NOON, letter

OF_ONE = ("id", "letter_id", "letter", "terms_written")


@pytest.mark.parametrize("most_chars", [10_000_000, 0], ids=["in one statement", "too large for one"])
def test_rows_of_letters_that_change_together_are_those_of_one_that_changes_alone(
    under_test, alias, monkeypatch, most_chars
):
    monkeypatch.setattr(letters, "_MOST_CHARS_TOGETHER", most_chars)
    store, names = under_test.letters, ["alone", "one", "other"]
    for name in names:
        store.bury(letter(name, attempts=3, reason="it is \U0001f4a5", group_id=None))
    store.discard("alone", "ana", "a test", NOON)
    store.archive(["alone"], "ana", "a test", NOON)
    for name in names[1:]:
        store.discard(name, "ana", "a test", NOON)

    store.archive(names[1:], "ana", "a test", NOON)

    rows = {row["letter_id"]: row for row in DeadLetter.objects.using(alias).values() if row["letter_id"] in names}
    for name, row in rows.items():
        assert Letter.from_json(row["letter"]) == store.get(name)
        assert row["over_us"] == NOON * 1_000_000
    plain = [{column: value for column, value in row.items() if column not in OF_ONE} for row in rows.values()]
    assert 3 == len(plain)
    assert plain[0] == plain[1] == plain[2]
