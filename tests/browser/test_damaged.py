"""
Rows whose JSON can be parsed and holds values of other types: shown as damaged, like those whose text breaks off.
"""

import json
import uuid

import pytest

from celery_safeguards.jobs.job import ReplayJob
from celery_safeguards.jobs.picked import Picked
from celery_safeguards.locks.store import LockAsk, LockUnreadable
from django_celery_safeguards.rows import lock_id
from django_celery_safeguards.sql import row_id
from tests.browser.pages import GROUPS, LETTERS, LOCKS, REPLAYS

DAMAGED = "damaged, or written by a newer version"


def overwrite(desk, table, column, id_, name, value):
    """Put a value of another type into what a row holds."""

    def act(wiring):
        house = wiring.locks.house
        of_rows = getattr(house.tables, table)

        def change(cursor):
            cursor.execute(of_rows.select((column,)), [id_])
            plain = json.loads(cursor.fetchone()[0])
            cursor.execute(of_rows.update((column,)), [json.dumps({**plain, name: value}), id_])

        house.connection.run(change)

    desk.store(act)


@pytest.mark.parametrize(
    ("name", "value"),
    [("history", 3), ("first_seen_seconds", None), ("last_failed_seconds", 1e999), ("error_message", ["no"])],
)
def test_letter_of_other_types_cannot_be_read(desk, name, value):
    """Its own page was an error of the server, in the night in which somebody looks for what went wrong."""
    letter = desk.bury()
    overwrite(desk, "letters", "letter", row_id(desk.namespace, letter.id), name, value)
    with desk.client("ann") as client:
        page, listed = client.get(desk.path_of(letter)), client.get(LETTERS)
        asked = client.do("replay", desk.picked(letter))

    assert [each.status_code for each in (page, listed, asked)] == [200, 200, 200]
    assert "The letter cannot be read" in page.text
    assert "It cannot be read" in asked.text


@pytest.mark.parametrize(
    ("name", "value"),
    [("counts", 5), ("counts", {"open": "1"}), ("history", [["soon", "noted", "ann", ""]]), ("reopened_seconds", "5")],
)
def test_group_of_other_types_cannot_be_read(desk, name, value):
    """Its own page was an error of the server, and nobody could tell why."""
    letter = desk.bury(error_type=f"shop.Away{uuid.uuid4().hex[:8]}")
    overwrite(desk, "groups", "group", row_id(desk.namespace, letter.fingerprint), name, value)
    with desk.client("ann") as client:
        page, listed = client.get(desk.path_of_group(letter)), client.get(GROUPS)

    assert (page.status_code, listed.status_code) == (200, 200)
    assert DAMAGED in page.text


@pytest.mark.parametrize(
    ("name", "value"),
    [("created_seconds", None), ("total", "3"), ("tally", {"sent": "1"}), ("lease_until_seconds", 1e999)],
)
def test_job_of_other_types_cannot_be_read(desk, name, value):
    """Neither its page nor what would stop it may fail for a reason that nobody is told."""
    job = ReplayJob(id=uuid.uuid4().hex, who="ann", chosen="all", total=1, created_seconds=5.0)
    desk.store(lambda wiring: wiring.jobs.create(job, [Picked("l-1", 5.0)]))
    id_ = row_id(desk.namespace, job.id)
    overwrite(desk, "jobs", "job", id_, name, value)
    with desk.client("ann") as client:
        page, listed = client.get(f"{REPLAYS}{id_}/change/"), client.get(REPLAYS)
        asked = client.post(f"{REPLAYS}{id_}/do/pause/")

    assert [each.status_code for each in (page, listed, asked)] == [200, 200, 404]
    assert DAMAGED in page.text


def in_line(desk, name, holder, *, heard_us=None):
    """Have A hold a lock for which B and C wait, and damage B's place."""

    def act(wiring):
        for owner in ("A", "B", "C"):
            ask = LockAsk(name=name, owner=owner, lease_seconds=60, holder={"host": f"host-of-{owner}", "pid": 1})
            wiring.locks.acquire(ask, wait=True)
        house, changed = wiring.locks.house, ("holder",) if heard_us is None else ("holder", "heard_us")
        values = [holder, *([] if heard_us is None else [heard_us]), row_id(house.namespace, name, "B")]
        house.connection.run(lambda cursor: cursor.execute(house.tables.waiters.update(changed), values))

    desk.store(act)


@pytest.mark.parametrize("holder", ["5", "null", "{no"])
def test_damaged_place_in_a_line_hides_no_other(desk, holder):
    """The lock's page was an error of the server while somebody waited under it."""
    name = f"lock-{uuid.uuid4().hex[:8]}"

    in_line(desk, name, holder)
    with desk.client("ann") as client:
        page = client.get(f"{LOCKS}{lock_id(desk.namespace, name)}/change/")

    assert page.status_code == 200
    assert DAMAGED in page.text
    assert "host-of-C" in page.text


def test_damaged_place_bars_no_longer_than_any_other(desk):
    """Who has left the line is forgotten; else nobody had the lock until somebody deletes a row by hand."""
    name = f"lock-{uuid.uuid4().hex[:8]}"

    in_line(desk, name, "5", heard_us=1)

    assert ["C"] == [each.owner for each in desk.store(lambda wiring: wiring.locks.waiting(name))]


@pytest.mark.parametrize("body", ["5", '{"name": "x", "holder": "y"}', '{"name": 5, "holder": {}}', '{"holder": {}}'])
def test_lock_of_other_types_is_read_as_damaged(desk, body):
    """A worker that asks for it puts its work off; any other error would be taken for one of the work."""
    name = f"lock-{uuid.uuid4().hex[:8]}"
    ask = LockAsk(name=name, owner="A", lease_seconds=60)
    desk.store(lambda wiring: wiring.locks.acquire(ask))
    desk.damage_lock(lock_id(desk.namespace, name), body)

    with pytest.raises(LockUnreadable, match="the lock is damaged"):
        desk.store(lambda wiring: wiring.locks.read(name))

    assert ("x" if '"x"' in body else name) in desk.store(lambda wiring: list(wiring.locks.names()))


def test_lock_that_is_held_is_never_said_to_be_nobodys(desk):
    """ "held" beside "nobody" is taken for a lock that may be released: its owner is there, only his name is not."""
    damaged, unnamed = (f"lock-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name in (damaged, unnamed):
        desk.store(
            lambda wiring, name=name: wiring.locks.acquire(LockAsk(name=name, owner="A", lease_seconds=60, holder={}))
        )
    desk.damage_lock(lock_id(desk.namespace, damaged), "{no")
    with desk.client("ann") as client:
        lists = [client.get(LOCKS, params={"q": name}).text for name in (damaged, unnamed)]
    owners = [page.partition('class="field-who">')[2].partition("<")[0] for page in lists]

    assert owners == [f"what is stored is {DAMAGED}", "plain code, in a process that is not named"]
