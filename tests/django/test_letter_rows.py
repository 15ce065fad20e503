"""
What stands in the rows of letters: the same, whether one is changed or several together.
"""

import pytest

from celery_safeguards.deadletter.letter import Letter
from django_celery_safeguards import letters
from django_celery_safeguards.models import DeadLetter, LetterGroup
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

    mine = DeadLetter.objects.using(alias).filter(namespace=under_test.namespace)
    rows = {row["letter_id"]: row for row in mine.values()}
    for name, row in rows.items():
        assert Letter.from_json(row["letter"]) == store.get(name)
        assert row["over_us"] == NOON * 1_000_000
    plain = [{column: value for column, value in row.items() if column not in OF_ONE} for row in rows.values()]
    assert 3 == len(plain)
    assert plain[0] == plain[1] == plain[2]


def test_letter_is_written_though_its_group_cannot_be_read(under_test, alias):
    """While a newer version is deployed an older worker may meet a status of its; no failure is lost for that."""
    store, groups = under_test.letters, LetterGroup.objects.using(alias).filter(namespace=under_test.namespace)
    store.bury(letter("before"))
    readable = groups.get().group
    groups.update(group=readable.replace('"open"', '"snoozed"'))

    store.bury(letter("meanwhile"))
    store.discard("meanwhile", "ana", "a test", NOON)
    state = store.get("meanwhile").state
    removed = store.remove(["meanwhile"], NOON + 1)
    store.bury(letter("later"))
    groups.update(group=readable)
    store.add_note("later", "seen", "ana")

    assert ("discarded", 1) == (state, removed)
    assert {"open": 2} == store.get_group(letter().fingerprint).counts
