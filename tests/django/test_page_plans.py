"""
A page of letters or groups reads as many rows of an index as it shows, whatever the tables hold: what the database says
of its own plan, for each combination of filters, at both ends and in the middle, towards older rows and back.
"""

import itertools
import re
from collections import Counter

import pytest
from django.db import connections

from celery_safeguards.deadletter.changes import to_cursor
from django_celery_safeguards import letter_sources, ranges
from django_celery_safeguards.letter_sources import narrowed, of_tasks, task_names, with_key
from django_celery_safeguards.models import DeadLetter, LetterGroup
from django_celery_safeguards.paging import OLDEST, Direction, Rows, page_of
from tests.conformance.deadletter_contract import NOON, letter
from tests.django.plans import conditions, explained, prefer_indexes, sorts_or_scans

LETTERS = 2_000
MIDDLE_US = int(NOON * 1_000_000) + LETTERS // 6 * 3
PLACE = (MIDDLE_US, f"{500_000:064x}")
CHOICES = {"state": "open", "task": "task-3", "kind": "bug", "fingerprint": "group-4"}
COMBINATIONS = [
    dict(some) for count in range(len(CHOICES) + 1) for some in itertools.combinations(CHOICES.items(), count)
]
DIRECTIONS = {
    "newest": Direction(),
    "older": Direction(PLACE),
    "newer": Direction(PLACE, is_up=True),
    "oldest": Direction(OLDEST, is_up=True),
}


@pytest.fixture
def rows(under_test, alias):
    """Letters of ten groups, five tasks, two kinds and all states, sixty of which share each time."""
    under_test.letters.bury(letter())
    one = DeadLetter.objects.using(alias).get(namespace=under_test.namespace)
    values = {each.attname: getattr(one, each.attname) for each in DeadLetter._meta.fields}
    states = ("open", "open", "replayed", "closed", "discarded", "replaying", "archived")
    letters = [
        DeadLetter(
            **{
                **values,
                "id": f"{(number * 7_919) % 1_000_003:064x}",
                "letter_id": f"l-{number}",
                "last_failed_us": int(NOON * 1_000_000) + number // 60 * 60,
                "key": f"key-{number}",
                "fingerprint": f"group-{number % 10}",
                "task": f"task-{number % 5}",
                "kind": ("bug", "data")[number % 2],
                "state": states[number % 7],
            }
        )
        for number in range(LETTERS)
    ]
    one.delete()
    DeadLetter.objects.using(alias).bulk_create(letters, batch_size=500)
    know_rows(connections[alias], under_test.house.connection.wrapper())
    return DeadLetter.objects.using(alias).filter(namespace=under_test.namespace)


def know_rows(*wrappers):
    """Let a database know what its tables hold: PostgreSQL looks by itself after a while, SQLite when it is told."""
    for wrapper in wrappers:
        with wrapper.cursor() as cursor:
            cursor.execute("ANALYZE")
        prefer_indexes(wrapper)


def entered_by(chosen):
    """Return the columns by which a page that is narrowed so must enter an index."""
    leading = next((name for name in ("fingerprint", "task", "kind") if name in chosen), None)
    return {"namespace"} | ({leading, "state"} if leading else set(chosen))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("times", [{}, {"last_failed_us__gte": MIDDLE_US - 300}], ids=["ever", "since"])
def test_page_of_the_admin_reads_one_range_of_an_index_for_each_state(rows, alias, direction, times):
    """Sorted or scanned, a page of a list that a million letters are in would take as long as they are many."""
    # Most letters may have been put away: a page would read all of them to find fifty others.
    here = {"state": ("open", "replaying", "replayed", "closed", "discarded")}
    for chosen in (*COMBINATIONS, here, {"task": "task-3", **here}):
        page, plans = explained(
            connections[alias],
            lambda chosen=chosen: page_of(
                narrowed(rows, {**chosen, **times}), "last_failed_us", DIRECTIONS[direction], 10
            ),
        )

        for plan in plans:
            assert ([], set()) == (sorts_or_scans(plan), entered_by(chosen) - conditions(plan)), f"{chosen}: {plan}"
        given = {"state__in" if value is here["state"] else name: value for name, value in chosen.items()}
        wanted = sorted(rows.filter(**given, **times).values_list("last_failed_us", "id"), reverse=True)
        assert page.places == expected(wanted, DIRECTIONS[direction])


def expected(wanted, direction):
    if direction.is_up:
        return [each for each in wanted if each > direction.place][-10:]
    return [each for each in wanted if direction.place is None or each < direction.place][:10]


@pytest.mark.parametrize("is_middle", [False, True], ids=["newest", "middle"])
def test_list_of_the_store_reads_one_range_of_an_index_for_each_state(rows, under_test, is_middle):
    before = to_cursor(PLACE[0] / 1_000_000, PLACE[1]) if is_middle else None
    wrapper = under_test.house.connection.wrapper()
    for chosen in COMBINATIONS:
        _, plans = explained(wrapper, lambda chosen=chosen: under_test.letters.list(limit=10, before=before, **chosen))

        *of_places, of_letters = plans if rows.filter(**chosen).exists() else (*plans, "")
        for plan in of_places:
            assert ([], set()) == (sorts_or_scans(plan), entered_by(chosen) - conditions(plan)), f"{chosen}: {plan}"
        assert [] == [word for word in ("Seq Scan", "SCAN ") if word in of_letters]


@pytest.mark.parametrize("leading", [{"task": "task-3"}, {"fingerprint": "group-4"}], ids=["task", "group"])
def test_what_is_asked_of_each_letter_is_in_the_index(rows, alias, leading):
    """Five thousand letters of each state would be fetched, to find that none of them is of a rare kind."""
    with connections[alias].cursor() as cursor:
        cursor.execute("VACUUM")
    sources = narrowed(rows, {**leading, "kind": "bug"})

    _, plans = explained(connections[alias], lambda: page_of(sources, "last_failed_us", Direction(), 10))

    assert [] == [plan for plan in plans if "Index Only Scan" not in plan and "COVERING INDEX" not in plan]


@pytest.mark.parametrize("most", [2, 500])
def test_names_of_tasks_are_stepped_through_in_an_index(rows, under_test, alias, most):
    """Each list offers them: one question for each, or one that reads all letters, would be asked with every page."""
    found, (plan,) = explained(connections[alias], lambda: task_names(alias, under_test.namespace, most))

    assert [f"task-{number}" for number in range(5)][:most] == found
    assert [] == re.findall(r"Seq Scan on \w*deadletter|SCAN \w*deadletter", plan), plan
    assert {"namespace", "task"} == {"namespace", "task"} & conditions(plan), plan


def test_no_letters_are_of_no_tasks(under_test, alias):
    assert [] == task_names(alias, under_test.namespace, 500)


@pytest.mark.parametrize("most", [4, 3], ids=["each by its ranges", "asked of each letter"])
def test_letters_of_several_tasks_are_walked_once(rows, alias, monkeypatch, most):
    """The words that a hundred tasks begin with would be looked for in hundreds of ranges."""
    monkeypatch.setattr(letter_sources, "MOST_TASKS_EACH", most)
    monkeypatch.setattr(ranges, "MOST_LOOKED_AT", 700)
    names, chosen = [f"task-{number}" for number in range(4)], {"kind": "bug", "state": "open"}
    sources, seen, direction = of_tasks(rows, chosen, names), [], Direction()
    assert (4 if most == 4 else 1) == len(sources)

    def page():
        return page_of(sources, "last_failed_us", direction, 200)

    while direction is not None:
        found, plans = explained(connections[alias], page)
        assert [[]] * len(plans) == [sorts_or_scans(plan) for plan in plans]
        seen += found.places
        direction = None if found.older is None else Direction(found.older)

    wanted = rows.filter(task__in=names, **chosen).order_by("-last_failed_us", "-id")
    assert list(wanted.values_list("last_failed_us", "id")) == seen


def test_letters_are_found_by_the_beginning_of_their_key_in_an_index(rows, alias):
    found, (plan,) = explained(connections[alias], lambda: with_key(rows, "key-19", 1_000))

    assert ([], {"key"} - conditions(plan)) == ([word for word in ("Seq Scan", "SCAN ") if word in plan], set()), plan
    assert {"key-19", *(f"key-19{n}" for n in range(10)), *(f"key-19{n:02}" for n in range(100))} == set(
        rows.filter(pk__in=found).values_list("key", flat=True)
    )


@pytest.mark.parametrize("beginning", ["key_", "key%", "KEY-1", "key-1*"])
def test_beginning_of_a_key_is_no_pattern(rows, beginning):
    assert [] == with_key(rows, beginning, 1_000)


@pytest.mark.parametrize("status", [{}, {"status": "open"}], ids=["all", "open"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_page_of_groups_reads_a_range_of_an_index(under_test, alias, status, direction):
    under_test.letters.bury(letter())
    one = LetterGroup.objects.using(alias).get(namespace=under_test.namespace)
    values = {each.attname: getattr(one, each.attname) for each in LetterGroup._meta.fields}
    ours = [
        {"id": f"{number:064x}", "last_failed_us": MIDDLE_US - 500 + number, "status": ("open", "muted")[number % 2]}
        for number in range(1_000)
    ]
    LetterGroup.objects.using(alias).bulk_create(LetterGroup(**{**values, **each}) for each in ours)
    know_rows(connections[alias])
    rows = LetterGroup.objects.using(alias).filter(namespace=under_test.namespace, **status)

    page, (plan,) = explained(
        connections[alias], lambda: page_of([Rows(rows)], "last_failed_us", DIRECTIONS[direction], 10)
    )

    assert ([], set()) == (sorts_or_scans(plan), {"namespace", *status} - conditions(plan)), plan
    assert 10 == len(page.places)


@pytest.mark.parametrize("is_up", [False, True], ids=["down", "up"])
def test_what_no_index_tells_is_asked_of_so_many_rows_at_a_time(rows, alias, monkeypatch, is_up):
    """Every thousandth letter of a million, by several filters: pages come short, and a walk finds all of them once."""
    monkeypatch.setattr(ranges, "MOST_LOOKED_AT", 10)
    of_group = list(rows.filter(fingerprint="group-4").order_by("last_failed_us", "id").values_list("pk", flat=True))
    rows.filter(pk__in=[of_group[number] for number in (0, 1, 2, 90, 91, 199)]).update(task="rare")
    chosen = {"fingerprint": "group-4", "task": "rare"}
    seen, looks, direction = Counter(), 0, Direction(OLDEST, is_up=True) if is_up else Direction()
    while True:
        page = page_of(narrowed(rows, chosen), "last_failed_us", direction, 2)
        seen.update(page.places)
        looks += 1
        onwards = page.newer if is_up else page.older
        assert page.is_cut or onwards is None or len(page.places) == 2
        if onwards is None:
            break
        direction = Direction(onwards, is_up=is_up)

    assert set(rows.filter(**chosen).values_list("last_failed_us", "pk")) == set(seen)
    assert {1} == set(seen.values())
    assert looks > 4
