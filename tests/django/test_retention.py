"""
Letters that are over, in a database: found by one range of an index for each state, and removed with all their rows.
"""

import pytest
from django.db import connections

from celery_safeguards.deadletter.changes import to_cursor
from django_celery_safeguards.models import DeadLetter, LetterTerm
from tests.conformance.deadletter_contract import NOON, letter, second_burial
from tests.conformance.retention_contract import LATER, end, over
from tests.django.plans import conditions, explained, sorts_or_scans
from tests.django.test_page_plans import know_rows

LETTERS = 2_000


@pytest.fixture
def rows(under_test, alias):
    """Letters of all states; of those that are over thirty share each time."""
    end(under_test.letters)
    one = DeadLetter.objects.using(alias).get(namespace=under_test.namespace)
    values = {each.attname: getattr(one, each.attname) for each in DeadLetter._meta.fields}
    states = ("open", "closed", "replayed", "discarded", "replaying", "archived", "closed")
    letters = [
        DeadLetter(
            **{
                **values,
                "id": f"{(number * 7_919) % 1_000_003:064x}",
                "letter_id": f"l-{number}",
                "last_failed_us": number,
                "state": states[number % 7],
                "over_us": int(NOON * 1_000_000) + number // 60 if number % 7 in {1, 3, 6} else None,
            }
        )
        for number in range(LETTERS)
    ]
    one.delete()
    DeadLetter.objects.using(alias).bulk_create(letters, batch_size=500)
    know_rows(connections[alias], under_test.house.connection.wrapper())
    return DeadLetter.objects.using(alias).filter(namespace=under_test.namespace)


@pytest.mark.parametrize("is_middle", [False, True], ids=["first", "middle"])
def test_purge_reads_the_index_in_its_order(rows, under_test, is_middle):
    """Looked for among all letters, ten that are over would take as long as a million that are not."""
    place = to_cursor(NOON + 10 / 1_000_000, f"{500_000:064x}") if is_middle else None

    _, plans = explained(
        under_test.house.connection.wrapper(), lambda: under_test.letters.over(LATER, limit=10, before=place)
    )

    *of_places, of_letters = plans
    assert 3 == len(of_places)
    for plan in of_places:
        assert ([], set()) == (sorts_or_scans(plan), {"namespace", "state", "over_us"} - conditions(plan)), plan
        assert "sg_letter_over" in plan
    assert [] == [word for word in ("Seq Scan", "SCAN ") if word in of_letters]


def test_step_removes_its_letters_by_as_many_statements_as_one(under_test, statements):
    """A purge holds the rows of a step: it must not hold them for a round trip for each letter."""
    for number in range(20):
        end(under_test.letters, f"l-{number}")
    statements.clear()
    under_test.letters.remove(["l-0"], LATER)
    of_one = len(statements.all)
    statements.clear()

    assert 19 == under_test.letters.remove([f"l-{number}" for number in range(20)], LATER)

    assert of_one == len(statements.all)
    assert not LetterTerm.objects.using(under_test.alias).filter(namespace=under_test.namespace).exists()


def test_letter_that_an_older_version_has_closed_is_kept_until_it_is_regrouped(rows, under_test, alias):
    """Its row says nothing of its end; its history does."""
    rows.all().delete()
    end(under_test.letters)
    rows.update(over_us=None)
    before = over(under_test.letters)

    under_test.letters.regroup("l-1")

    assert ([], ["l-1"]) == (before, over(under_test.letters))
    assert int((NOON + 100) * 1_000_000) == rows.get().over_us


def test_letter_that_an_older_version_has_opened_again_stays(rows, under_test):
    """It does not know the column, and leaves in it what it finds."""
    rows.all().delete()
    end(under_test.letters)
    under_test.letters.bury(second_burial())
    rows.update(over_us=1)

    assert ([], 0) == (over(under_test.letters), under_test.letters.remove(["l-1"], LATER))
    # Closed again by the older version, its row still has the end of the first time.
    under_test.letters.close("l-1", "it succeeded", LATER)
    rows.update(over_us=1)
    assert (["l-1"], 0) == (over(under_test.letters), under_test.letters.remove(["l-1"], LATER))


def test_letter_of_a_newer_version_is_neither_removed_nor_in_the_way_of_others(rows, under_test):
    """What cannot be read may be anything, also work that waits."""
    rows.all().delete()
    end(under_test.letters)
    end(under_test.letters, "l-2")
    rows.filter(letter_id="l-2").update(letter='{"v": 99}')

    page = under_test.letters.over(LATER)

    assert (["l-1"], ("l-2",)) == ([each.id for each in page.letters], page.unreadable)
    assert 1 == under_test.letters.remove(["l-1", "l-2"], LATER)
    assert ["l-2"] == [each.letter_id for each in rows]


def test_letters_of_another_namespace_stay(under_test):
    """One environment keeps what another one has thrown away."""
    end(under_test.letters)
    other = under_test.connect()
    other.house.namespace = "other"
    letters = type(under_test.letters)(other.house)

    assert ([], 0, False) == (
        over(letters),
        letters.remove(["l-1"], LATER),
        letters.remove_group(letter().fingerprint, LATER),
    )
    assert under_test.letters.get("l-1") is not None
    other.house.connection.close()
