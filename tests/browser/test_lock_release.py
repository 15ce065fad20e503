"""
An orphan's lock, released on its page: by whoever may, of the owner that was shown, and with a reason.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_safeguards._names import host_name, pid_space
from celery_safeguards.locks.store import HeldLock, LockAsk
from django_celery_safeguards.rows import lock_id
from tests.browser.desk_under_test import Desk
from tests.browser.pages import LOCKS, content, press, told
from tests.support import apps, databases
from tests.support.sockets import Cutter

REASON = {"confirmed": "1", "reason": "the host burnt down"}
TASK = {"task": "desk.charge", "task_id": "t-1", "worker": "w1@far", "host": "far", "pid": 4711}
NASTY = "<b>nasty</b>\u202e\x1b[31m\nSECOND LINE"


def path_of(desk, name, page="release"):
    return f"{LOCKS}{lock_id(desk.namespace, name)}/{page}/"


def asked(client, path):
    """Ask for a release; return the page, and what it carries of the owner that it shows."""
    answer = client.post(path)
    return answer.text, answer.text.partition('name="seen" value="')[2].partition('"')[0]


def take(desk, name, owner="first", *, lease_seconds=60, wait=False, **holder):
    ask = LockAsk(name=name, owner=owner, lease_seconds=lease_seconds, holder=holder)
    return desk.store(lambda wiring: wiring.locks.acquire(ask, wait=wait)).held


@contextlib.contextmanager
def waiting(desk, name, owner, **holder):
    """Have somebody ask for a lock, and again before he is forgotten."""
    is_over = threading.Event()

    def ask():
        while not is_over.wait(0.3):
            take(desk, name, owner, wait=True, **holder)

    take(desk, name, owner, wait=True, **holder)
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(ask)
        try:
            yield
        finally:
            is_over.set()
        asking.result()


def owner_of(desk, name):
    return desk.store(lambda wiring: wiring.locks.read(name)[0].owner)


def logged(desk, name):
    return [(who, what) for who, which, what in desk.log() if which == name]


@pytest.fixture
def name():
    return f"stock:{uuid.uuid4().hex[:8]}"


@pytest.fixture
def dead():
    """A holder whose process has ended on this host."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return {"host": host_name(), "pid": process.pid, "pid_space": pid_space()}


@pytest.fixture
def alive():
    """A holder whose process is this one."""
    return {"host": host_name(), "pid": os.getpid(), "pid_space": pid_space()}


def test_lock_of_a_dead_owner_is_released_and_goes_to_who_waits(log_in, desk, name, dead):
    """The whole way: the page, what is known, the reason, what was done, and who did it."""
    fence = take(desk, name, **dead).fence
    page = log_in("looks-and-release_leaselock")
    page.goto(desk.url + path_of(desk, name, "change"))

    with waiting(desk, name, "second", host="web-1", pid=9):
        press(page, "Release…")
        shown, untouched = content(page), owner_of(desk, name)
        page.get_by_label("Reason").fill("the host burnt down")
        press(page, "Release")

    for part in (
        *(name, "held", f"plain code, process {dead['pid']} on {host_name()}", str(fence), "process 9 on web-1"),
        *("Its owner is shown dead", f"dead: process {dead['pid']} does not exist on this host"),
        *("lease left", "its fence is refused", "a release stops no process"),
    ):
        assert part in shown
    assert "Release it all the same" not in shown
    assert untouched == "first"
    assert f"Lock {name} of plain code, process {dead['pid']} on {host_name()} is released." in told(page)
    assert owner_of(desk, name) == "second"
    ((who, what),) = logged(desk, name)
    assert who == "looks-and-release_leaselock"
    for part in ("Release: lock", "its owner shown dead", f"dead: process {dead['pid']}", "the host burnt down"):
        assert part in what
    assert f"lock {name} at fence {fence} released by {who}, in the admin" in desk.server_log()


def test_lock_of_a_living_owner_needs_consent(log_in, desk, name, alive):
    """Two would work on one order, because somebody was in a hurry."""
    take(desk, name, **alive)
    page = log_in("ann")
    page.goto(desk.url + path_of(desk, name, "change"))

    press(page, "Release…")
    press(page, "Release")
    lacking = content(page)
    page.get_by_label("Reason").fill("fenced off")
    press(page, "Release")
    refused, still = content(page), owner_of(desk, name)
    page.get_by_label("Release it all the same").check()
    press(page, "Release")

    for lack in ("This field is required.", "It is not released: its owner is not shown dead."):
        assert lack in lacking
    assert "Its owner is not shown dead" in refused
    assert f"nothing: process {os.getpid()} exists on this host" in refused
    assert "It is not released: its owner is not shown dead." in refused
    assert "This field is required." not in refused
    assert (still, owner_of(desk, name)) == ("first", "")
    ((_, what),) = logged(desk, name)
    assert "OVERRIDE, its owner not shown dead" in what
    assert "fenced off" in what


@pytest.mark.parametrize("reason", ["", " \n"])
def test_reason_is_always_needed(desk, name, dead, reason):
    """Asked a week later, the log must tell why."""
    take(desk, name, **dead)
    with desk.client("ann") as client:
        _, seen = asked(client, path_of(desk, name))
        answer = client.post(path_of(desk, name), data={"confirmed": "1", "seen": seen, "reason": reason})

    assert (answer.status_code, "This field is required." in answer.text) == (200, True)
    assert owner_of(desk, name) == "first"
    assert logged(desk, name) == []


def test_second_of_two_is_told_that_nobody_holds_it_any_more(desk, name, dead):
    """He would believe that it was he who has released it, or release whoever comes next."""
    take(desk, name, **dead)
    with desk.client("ann") as ann, desk.client("bob") as bob:
        seen = [asked(client, path_of(desk, name))[1] for client in (ann, bob)]
        for client in (ann, bob):
            client.post(path_of(desk, name), data={**REASON, "seen": seen[0]})
        said = bob.get(path_of(desk, name, "change")).text

    assert seen[0]
    assert seen[0] == seen[1]
    assert "Nothing was done: nobody holds the lock any more." in said
    assert [(who, "nothing was done" in what) for who, what in logged(desk, name)] == [("ann", False), ("bob", True)]


def test_lock_that_another_owner_has_by_now_is_left_alone(desk, name, dead, alive):
    """Between look and click it has passed on: its new owner has done nothing to lose it, dead or alive."""
    held = take(desk, name, **dead)
    with desk.client("ann") as ann:
        _, seen = asked(ann, path_of(desk, name))
        desk.store(lambda wiring: wiring.locks.release(held))
        take(desk, name, "second", **alive)
        ann.post(path_of(desk, name), data={**REASON, "seen": seen, "override": "on"})
        said = ann.get(path_of(desk, name, "change")).text

    assert (
        f"Nothing was done: not the owner that was shown has the lock by now, but plain code, process {os.getpid()}"
        in said
    )
    assert owner_of(desk, name) == "second"
    ((_, what),) = logged(desk, name)
    assert what.startswith("Release: nothing was done")


def test_same_owner_at_another_fence_is_another_claim(desk, name, dead):
    """A retry takes its lock under the token that it had: it is at work again."""
    held = take(desk, name, **dead)
    with desk.client("ann") as ann:
        _, seen = asked(ann, path_of(desk, name))
        desk.store(lambda wiring: wiring.locks.release(HeldLock(ask=held.ask, fence=held.fence)))
        take(desk, name, **dead)
        ann.post(path_of(desk, name), data={**REASON, "seen": seen})

    assert owner_of(desk, name) == "first"


def test_form_without_the_mark_of_its_page_does_nothing(desk, name, dead):
    """A script that has read no page has looked at no owner."""
    take(desk, name, **dead)
    with desk.client("ann") as ann:
        ann.post(path_of(desk, name), data=REASON)
        ann.post(path_of(desk, name), data={**REASON, "seen": "x"})

    assert owner_of(desk, name) == "first"


def test_owner_that_is_heard_again_after_the_look_is_not_taken_for_dead(desk, name, alive):
    """Its lease was over when the page was made; it has renewed it since."""
    held = take(desk, name, lease_seconds=0.001, **alive)
    time.sleep(0.05)
    with desk.client("ann") as ann:
        page, seen = asked(ann, path_of(desk, name))
        ask = LockAsk(name=name, owner="first", lease_seconds=60, holder=alive)
        renewed = desk.store(lambda wiring: wiring.locks.renew([HeldLock(ask=ask, fence=held.fence)]))
        answer = ann.post(path_of(desk, name), data={**REASON, "seen": seen})

    assert ("Its owner is shown dead" in page, renewed) == (True, [True])
    assert "It is not released: its owner is not shown dead." in answer.text
    assert owner_of(desk, name) == "first"


def test_who_only_looks_has_no_button_and_is_refused(desk, name, dead):
    """What is hidden is not forbidden: the form can be sent by hand."""
    take(desk, name, **dead)
    with desk.client("ann") as ann:
        _, seen = asked(ann, path_of(desk, name))
    with desk.client("vera") as vera:
        page = vera.get(path_of(desk, name, "change")).text
        answers = [vera.post(path_of(desk, name), data=data) for data in ({}, {**REASON, "seen": seen})]

    assert 'value="Release…"' not in page
    assert [answer.status_code for answer in answers] == [403, 403]
    assert owner_of(desk, name) == "first"


def test_get_does_nothing_and_a_free_lock_has_no_button(desk, name, dead):
    """A link in a mail must not release; and what nobody holds cannot be released."""
    held = take(desk, name, **dead)
    with desk.client("ann") as ann:
        with_button = ann.get(path_of(desk, name, "change")).text
        _, seen = asked(ann, path_of(desk, name))
        got = ann.get(path_of(desk, name), params={**REASON, "seen": seen})
        still = owner_of(desk, name)
        desk.store(lambda wiring: wiring.locks.release(held))
        without = ann.get(path_of(desk, name, "change")).text
        nowhere = ann.post(path_of(desk, "no-such-lock"))

    assert (got.status_code, still) == (405, "first")
    assert ['value="Release…"' in page for page in (with_button, without)] == [True, False]
    assert nowhere.status_code == 404


def test_worker_that_does_not_answer_is_unknown_and_broker_does_not_hang_the_page(redis_url, tmp_path, name):
    """A broker that is frozen must not take the web server with it, nor pass for a dead owner."""
    database = databases.sqlite(tmp_path / "store.sqlite3")
    with (
        Cutter(redis_url) as cutter,
        Desk(redis_url, database, tmp_path, server_env={apps.BROKER_URL: cutter.url}) as desk,
        desk.client("ann") as ann,
    ):
        take(desk, name, **TASK)
        silent_worker, _ = asked(ann, path_of(desk, name))
        cutter.stall()
        began = time.monotonic()
        silent_broker, _ = asked(ann, path_of(desk, name))
        took_seconds = time.monotonic() - began
        cutter.refuse()
        no_broker, _ = asked(ann, path_of(desk, name))

    assert "worker w1@far does not answer, which is unknown, not dead" in silent_worker
    for page in (silent_broker, no_broker):
        assert "the broker does not answer, so worker w1@far cannot be asked: it is not known" in page
        assert "Its owner is not shown dead" in page
    assert took_seconds < 10


def test_nothing_of_a_holder_reaches_the_page_raw(log_in, desk):
    """The name of a lock is made of a task's arguments, which strangers may choose."""
    take(desk, NASTY, task=NASTY, task_id=NASTY, worker=NASTY, host=NASTY, pid=1)
    page = log_in("ann")
    page.goto(desk.url + path_of(desk, NASTY, "change"))

    press(page, "Release…")
    shown, bold = content(page), page.locator("#content-main b").count()
    page.get_by_label("Reason").fill(NASTY)
    page.get_by_label("Release it all the same").check()
    press(page, "Release")

    assert bold == 0
    assert r"<b>nasty</b>\u202e\x1b[31m\nSECOND LINE" in shown
    assert owner_of(desk, NASTY) == ""
    assert page.locator(".messagelist b").count() == 0
    said = told(page) + "".join(what for _, _, what in desk.log())
    assert [each for each in ("\u202e", "\x1b") if each in shown + said] == []


@pytest.mark.parametrize(
    "body",
    ["{no", "[" * 100_000, '{"name": "x", "holder": "y"}', '{"name": 5, "holder": {}}'],
    ids=["no JSON", "too deep", "holder", "name"],
)
def test_damaged_lock_hides_no_other_and_is_not_released(desk, body):
    """One row that a disk has eaten must not take the list away in the night in which it is needed."""
    damaged, whole = (f"{what}-{uuid.uuid4().hex[:8]}" for what in ("damaged", "whole"))
    take(desk, damaged)
    take(desk, whole)
    desk.damage_lock(lock_id(desk.namespace, damaged), body)
    with desk.client("ann") as client:
        listed, page = client.get(LOCKS), client.get(path_of(desk, damaged, "change"))
        asked_ = client.post(path_of(desk, damaged))

    assert (listed.status_code, page.status_code, asked_.status_code) == (200, 200, 404)
    assert whole in listed.text
    assert "Release…" not in page.text
