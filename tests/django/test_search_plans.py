"""
A search reads a range of an index from its end, whatever the tables hold: what the database says of its own plan.
"""

import functools

import pytest
from django.db import connections

from celery_safeguards.clock import to_us
from celery_safeguards.deadletter.terms import name_term
from django_celery_safeguards import ranges
from django_celery_safeguards.letter_sources import with_terms
from django_celery_safeguards.models import DeadLetter, LetterTerm
from django_celery_safeguards.paging import OLDEST, Direction, page_of
from tests.conformance.deadletter_contract import NOON, letter
from tests.django import plans

LETTERS = 60


@pytest.fixture
def explained(under_test):
    """Bury letters; return a function that gives the plan of each query that a call makes of the store."""
    for number in range(LETTERS):
        under_test.letters.bury(letter(f"l-{number}", last_failed_seconds=NOON + number, root_id=f"r-{number % 3}"))
    wrapper = under_test.house.connection.wrapper()
    plans.prefer_indexes(wrapper)
    return functools.partial(plans.explained, wrapper)


@pytest.mark.parametrize("given", [{}, {"state": "open"}, {"task": "shop.charge", "state": "open"}], ids=str)
@pytest.mark.parametrize("page", [0, 1])
def test_search_reads_the_index_in_its_order(explained, under_test, given, page):
    """Sorted or scanned, the search of a term that a million letters have would take as long as they are many."""
    options = {"terms": [name_term("r-1")], "limit": 5, **given}
    before = under_test.letters.list(**options).next_cursor if page else None

    found, (*of_terms, of_letters) = explained(lambda: under_test.letters.list(before=before, **options))

    assert [f"l-{number}" for number in (58, 55, 52, 49, 46)] == [each.id for each in found.letters] or page
    # A page begins where the last one ended, and looks at nothing before that.
    for plan in of_terms:
        conditions = [line for line in plan.splitlines() if "Index Cond" in line or "sg_term_failed (" in line]
        assert any("last_failed_us<" in line.replace(" ", "") for line in conditions) is bool(page)
    # Of those that a filter is asked of, so many are looked at.
    assert 1 + bool(given) == len(of_terms)
    for plan in (*of_terms, of_letters):
        assert [] == [word for word in ("Sort", "Seq Scan", "TEMP B-TREE", "SCAN ") if word in plan], plan


def test_each_term_is_one_range_of_the_index(explained, under_test):
    _, of_terms = explained(lambda: under_test.letters.list(terms=[name_term("r-1"), name_term("t-1")], limit=5))

    assert 3 == len(of_terms)
    assert all("sg_term_failed" in plan for plan in of_terms[:2])


@pytest.mark.parametrize("chosen", [{}, {"state": "open"}, {"task": "shop.charge", "last_failed_us__gte": 1}], ids=str)
@pytest.mark.parametrize("is_up", [False, True], ids=["older", "newer"])
def test_the_admins_search_walks_the_index_in_its_order(explained, under_test, alias, monkeypatch, chosen, is_up):
    """Of a million letters of a customer a page is read, and whoever goes on reads the next one."""
    monkeypatch.setattr(ranges, "MOST_LOOKED_AT", 8)
    plans.prefer_indexes(connections[alias])
    rows = DeadLetter.objects.using(alias).filter(namespace=under_test.namespace)
    terms = LetterTerm.objects.using(alias).filter(namespace=under_test.namespace)
    sources = with_terms(rows, terms, chosen, [name_term("r-1")])
    seen, direction = [], Direction(OLDEST, is_up=True) if is_up else Direction()

    def page():
        return page_of(sources, "last_failed_us", direction, 5)

    while direction is not None:
        found, asked = plans.explained(connections[alias], page)
        for plan in asked:
            assert "sg_term_failed" in plan
            assert [] == [word for word in ("Sort", "Seq Scan", "Join", "TEMP B-TREE", "SCAN ") if word in plan], plan
        seen += found.places[::-1] if is_up else found.places
        onwards = found.newer if is_up else found.older
        direction = None if onwards is None else Direction(onwards, is_up=is_up)

    wanted = [letter(f"l-{number}", last_failed_seconds=NOON + number) for number in range(1, LETTERS, 3)]
    assert [to_us(each.last_failed_seconds) for each in (wanted if is_up else wanted[::-1])] == [us for us, _ in seen]
    assert set(rows.filter(pk__in=[id_ for _, id_ in seen]).values_list("letter_id", flat=True)) == {
        each.id for each in wanted
    }


def test_change_that_leaves_the_terms_alone_costs_no_statement(under_test, statements):
    """A note on one of ten thousand letters would write its index anew."""
    under_test.letters.bury(letter())
    statements.clear()

    under_test.letters.add_note("l-1", "seen", "ana")

    # The letter is read and written; its group is left alone.
    assert 2 == len(statements.work)


def test_a_replay_that_begins_writes_one_row_more_into_the_index(under_test, alias):
    """Written anew, the other rows of ten thousand letters would be deleted and inserted as well."""
    rows = LetterTerm.objects.using(alias).filter(namespace=under_test.namespace).values_list("pk", "term")
    under_test.letters.bury(letter())
    before = set(rows.all())

    under_test.letters.begin_replays({"l-1": "replay-1"}, "ana", NOON + 60)

    assert {name_term("replay-1")} == {term for _, term in set(rows.all()) - before}
    assert before < set(rows.all())


def test_row_of_a_letter_that_somebody_has_deleted_hides_no_other(under_test):
    for number in range(4):
        under_test.letters.bury(letter(f"l-{number}", last_failed_seconds=NOON + number))
    table = under_test.house.tables.letters
    under_test.house.connection.run(
        lambda cursor: cursor.execute(table.delete(by=("letter_id",)), ["l-2"]), is_large=True
    )

    first = under_test.letters.list(terms=[name_term("t-1")], limit=2)
    rest = under_test.letters.list(terms=[name_term("t-1")], limit=2, before=first.next_cursor)

    assert (["l-3"], ["l-1", "l-0"]) == ([each.id for each in first.letters], [each.id for each in rest.letters])


def test_letter_of_an_older_version_is_found_after_its_next_change(under_test):
    """Workers of the version before write letters and no terms, while the new one is deployed."""
    under_test.letters.bury(letter())
    house = under_test.house

    def as_before(cursor):
        cursor.execute(house.tables.terms.delete(by=("namespace",)), [house.namespace])
        cursor.execute(house.tables.letters.update(("terms_written",), by=("namespace",)), ["", house.namespace])

    house.connection.run(as_before)
    assert () == under_test.letters.list(terms=[name_term("t-1")]).letters

    under_test.letters.add_note("l-1", "seen", "ana")

    assert ["l-1"] == [each.id for each in under_test.letters.list(terms=[name_term("t-1")]).letters]
