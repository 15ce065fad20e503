"""
Finding a letter, a record or a lock by what an alert, a log line or a customer names.
"""

import re
import time

import pytest

from celery_safeguards.locks.store import LockAsk
from celery_safeguards.outcome import FailureKind
from django_celery_safeguards.sql import row_id
from tests.browser.pages import LETTERS, LOCKS, RECORDS, content, find, follow

DAY_SECONDS = 86_400


def named(desk, client, **query):
    """Return which letters the list shows, in its order."""
    answer = client.get(LETTERS, params=query)
    assert answer.status_code == 200
    places = {letter_id: answer.text.find(f">{letter_id}<") for letter_id in desk.buried}
    return [letter_id for letter_id, place in sorted(places.items(), key=lambda each: each[1]) if place >= 0]


@pytest.mark.parametrize("by", ["key", "task id", "letter id", "row id", "task", "task's beginning", "key's beginning"])
def test_letter_is_found_by_each_of_its_names(desk, by):
    """Whatever the alert carries must be enough."""
    task = f"{by.replace(' ', '_')}.find"
    letter = desk.bury(task=task, key=f"{task}:key:7", scope=task, kwargs={"needle": "n"})
    desk.bury()
    term = {
        "key": letter.key,
        "task id": letter.task_id,
        "letter id": letter.id,
        "row id": desk.picked(letter).partition(":")[0],
        "task": task,
        "task's beginning": task[:-1],
        "key's beginning": f"{task}:key*",
    }[by]
    with desk.client("vera") as client:
        found = named(desk, client, q=term)

    assert [letter.id] == found


@pytest.mark.parametrize("by", ["root id", "correlation id", "earlier task id", "argument", "name=value", "sensitive"])
def test_letter_is_found_by_what_its_terms_are(desk, by):
    """What a customer names is an argument; what a log line names may be the task that began it all."""
    number = f"n-{by.replace(' ', '-').replace('=', '-')}"
    kwargs = {"order_id": number, "amount": -1, "customer": {"email": f"{number}@example.com"}}
    letter = desk.bury(task="desk.note", kwargs=kwargs, root_id=f"root-{number}")
    desk.change(letter, earlier_task_ids=(f"earlier-{number}",))
    desk.bury(kwargs={"order_id": "another"})
    term = {
        "root id": letter.root_id,
        "correlation id": letter.wire.properties["correlation_id"],
        "earlier task id": f"earlier-{number}",
        "argument": number,
        "name=value": f"order_id={number}",
        "sensitive": f"customer.email={number.upper()}@Example.com",
    }[by]
    with desk.client("vera") as client:
        found, half = named(desk, client, q=term), named(desk, client, q=term[:-1])

    assert ([letter.id], []) == (found, half)


@pytest.mark.parametrize("person", ["vera", "lena"])
def test_letters_are_found_by_their_queue_and_their_error(desk, person):
    """Neither is payload: who may not see what work was given looks for the letters of an outage, too."""
    error = f"shop.errors.Away{person.title()}"
    queue = f"queue-of-{person}"
    letter = desk.bury(error_type=error, queue=queue)
    desk.bury()
    with desk.client(person) as client:
        found = [named(desk, client, q=words) for words in (f"error:{error}", f"queue:{queue}")]
        narrowed = named(desk, client, q=f"queue:{queue}", state="discarded")

    assert ([[letter.id]] * 2, []) == (found, narrowed)


def test_search_box_says_what_can_be_found(desk):
    with desk.client("vera") as client:
        text = client.get(LETTERS).text

    assert "order_id=value (of order_id, customer.email)" in text
    assert "queue:NAME, error:CLASS" in text


def test_search_does_not_read_the_letters_themselves(desk):
    """A search through every stored message would stop the database that the workers need."""
    desk.bury(kwargs={"needle": "in-the-arguments-alone"})
    with desk.client("vera") as client:
        assert [] == named(desk, client, q="in-the-arguments-alone")


def test_list_counts_nothing_for_its_filters(desk):
    """A count for each choice reads the whole table thirty times: minutes, at a hundred thousand letters."""
    desk.bury()
    with desk.client("vera") as client:
        plain, counted = client.get(LETTERS), client.get(LETTERS, params={"_facets": "True"})

    assert (plain.status_code, "_facets" in plain.text) == (200, False)
    assert "open (" not in counted.text


def test_filters_narrow_the_list_and_the_newest_failure_is_first(desk):
    """Of ten thousand letters the ones of this night, of this task, in this state."""
    task, now = "find.filtered", time.time()
    old = desk.bury(task=task, last_failed_seconds=now - 30 * DAY_SECONDS)
    day = desk.bury(task=task, last_failed_seconds=now - 10_000, kind=FailureKind.DATA)
    new = desk.bury(task=task, last_failed_seconds=now - 60)
    desk.change(new, state="closed")
    with desk.client("vera") as client:
        shown = {
            query: named(desk, client, task=task, **dict(query))
            for query in (
                (),
                (("failed", "hour"),),
                (("failed", "day"),),
                (("failed", "older"),),
                (("kind", "data"),),
                (("state", "closed"),),
                (("state", "open"), ("failed", "week")),
            )
        }

    assert list(shown.values()) == [
        [new.id, day.id, old.id],
        [new.id],
        [new.id, day.id],
        [old.id],
        [day.id],
        [new.id],
        [day.id],
    ]


def test_letters_of_another_namespace_are_not_shown(desk):
    """Two fleets in one database: what is replayed here would be sent to the other's queue."""
    letter = desk.bury(task="find.ours")
    row = desk.bury_elsewhere(letter)
    with desk.client("ann") as client:
        listed = client.get(LETTERS, params={"q": "find.ours"}).text
        page = client.get(f"{LETTERS}{row}/change/")
        client.do("discard", f"{row}:{desk.picked(letter).partition(':')[2]}", confirmed="1", reason="not mine")

    assert listed.count(f">{letter.id}<") == 1
    assert row not in listed
    assert page.status_code == 302
    assert desk.state_elsewhere(letter) == "open"


def test_lock_is_found_and_tells_who_has_it_and_who_waits(log_in, desk):
    """A job stands still: somebody holds what it needs, and there is a line."""
    holder = {"task": "desk.charge", "task_id": "t-1", "host": "worker-3", "pid": 4711, "worker": "celery@worker-3"}
    ask = LockAsk(name="stock:A-1", owner="first", lease_seconds=60, holder=holder)
    next_one = LockAsk(name="stock:A-1", owner="second", lease_seconds=60, holder={"host": "web-1", "pid": 9})
    desk.store(lambda wiring: (wiring.locks.acquire(ask), wiring.locks.acquire(next_one, wait=True)))
    page = log_in("vera")

    row = find(page, desk, "stock:A-1", LOCKS)
    listed = row.inner_text()
    follow(page, row.get_by_role("link"))
    text = content(page)

    in_list, on_page = (
        ("held", "desk.charge[t-1], process 4711 on worker-3", "runs for"),
        ("celery@worker-3", "process 9 on web-1"),
    )
    assert [] == [said for said in in_list if said not in listed]
    assert [] == [said for said in on_page if said not in text]


def test_record_tells_its_lease_in_words(log_in, desk):
    """Sixteen digits of microseconds are no time that anybody can read."""
    desk.claim("desk.charge", "payment:held")
    page = log_in("vera")

    row = find(page, desk, "desk.charge#payment:held", RECORDS)
    listed = row.inner_text()
    follow(page, row.get_by_role("link"))
    text = content(page)

    assert [] == [said for said in ("in progress", "runs for") if said not in listed]
    assert [] == [said for said in ("is held", "yes", "lease until", "owner-1") if said not in text]
    assert re.search(r"UTC in [23]\d", text)


@pytest.mark.parametrize("by", ["key", "scope and key", "row id", "scope", "state"])
def test_record_is_found_by_each_of_its_names(desk, by):
    """The log line names a key; whether its work runs, or has run, is one search away."""
    key = f"payment:{by.replace(' ', '-')}"
    desk.claim("desk.charge", key)
    desk.claim(f"elsewhere-{key}", "payment:another")
    row = row_id(desk.namespace, "desk.charge", key)
    query = {
        "key": {"q": key},
        "scope and key": {"q": f"desk.charge#{key}"},
        "row id": {"q": row},
        "scope": {"scope": "desk.charge"},
        "state": {"state": "in_progress", "q": key},
    }[by]
    with desk.client("vera") as client:
        found, absent = client.get(RECORDS, params=query).text, client.get(RECORDS, params={"state": "done"}).text

    assert (row in found, "payment:another" in found, row in absent) == (True, False, False)
