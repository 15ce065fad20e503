"""
`locks list`, `locks show` and `locks release`: an orphan is found and freed, and the lock of a living owner is not.

After deployments locks stayed for hours; their keys were bare hashes that nobody could list (unicef/hope#6393).
"""

import importlib
import json
import logging
import os
import subprocess
import sys
import threading

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_safeguards import EntityLock, Safeguards, SafeTask, hold
from celery_safeguards._names import host_name, pid_space
from celery_safeguards._redis import Keys
from celery_safeguards.cli import safeguards
from celery_safeguards.errors import LockLost
from celery_safeguards.locks.evidence import WorkerAnswer
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.releasing import ask_worker
from celery_safeguards.wiring import Wiring
from tests.integration.cli.odd_text import NASTY
from tests.integration.replay.shop import make_app
from tests.support.sockets import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis
LOCK = EntityLock("order:{order_id}")
WAITS = EntityLock("order:{order_id}", busy="wait", wait_seconds=20)
NEVER = WorkerAnswer(has_task=False, up_seconds=-1)
# The package has a command of this name, too.
locks = importlib.import_module("celery_safeguards.cli.locks")
REASON = ("--reason", "the host burnt down", "--by", "ann")


@pytest.fixture
def held(app):
    """Let somebody hold a lock that nobody renews; returns what the store gave."""

    def take(name="order:7", *, lease_seconds=60, **holder):
        who = {"task": "shop.ship", "task_id": "t-1", "worker": "w1@far", "host": "far", "pid": 4711}
        ask = LockAsk(name=name, owner=f"owner-{len(name)}", lease_seconds=lease_seconds, holder={**who, **holder})
        return Wiring.of(app).locks.acquire(ask).held

    return take


@pytest.fixture
def dead_pid():
    """A pid that no process has: of one that has just ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def owner(app):
    """Read who owns a lock; '' for nobody."""
    return lambda name="order:7": Wiring.of(app).locks.read(name)[0].owner


# --- list and show


def test_list_names_the_entity_and_its_owner(cli, held):
    """A bare hash in Redis tells nobody which order is stuck, nor by whom (unicef/hope#6393)."""
    fence = held().fence

    listed = cli("locks", "list")

    assert listed.exit_code == 0
    for part in ("order:7", "held", "far", "4711", "w1@far", "shop.ship[t-1]", str(fence)):
        assert part in listed.stdout


def test_list_tells_a_task_of_a_worker_from_plain_code(cli, app, held):
    """ "Held by a task that is not running" is what a management command looks like in a list of tasks."""

    @app.task(shared=False, base=SafeTask, name="shop.ship", bind=True, safeguards=Safeguards(lock=LOCK))
    def ship(self, order_id):
        return json.loads(cli("locks", "show", "order:7", "--json").stdout)

    inside = ship.apply(kwargs={"order_id": 7}).get()
    with hold(app, LOCK, order_id=8):
        shown = cli("locks", "show", "order:8")

    assert (inside["task"], inside["state"], inside["pid"]) == ("shop.ship", "held", os.getpid())
    assert f"plain code, process {os.getpid()} on {host_name()}" in shown.stdout


def test_list_is_a_document_for_programs(cli, held):
    """An alarm on locks that are held for hours is built on this."""
    held("order:7")
    held("order:8", task="shop.sync", host="near")

    found = json.loads(cli("locks", "list", "--json").stdout)["locks"]
    chosen = [
        [each["name"] for each in json.loads(cli("locks", "list", *words, "--json").stdout)["locks"]]
        for words in (["--task", "shop.sync"], ["--host", "far"])
    ]

    assert {each["name"]: (each["state"], each["task"]) for each in found} == {
        "order:7": ("held", "shop.ship"),
        "order:8": ("held", "shop.sync"),
    }
    assert all(55 < each["lease_left_seconds"] <= 60 for each in found)
    assert all(0 <= each["age_seconds"] < 5 for each in found)
    assert chosen == [["order:8"], ["order:7"]]


def test_list_leaves_free_locks_out_unless_asked(cli, app):
    """Every order of the day would hide the one that is stuck."""
    with hold(app, LOCK, order_id=7):
        pass

    unasked, asked = cli("locks", "list"), cli("locks", "list", "--all")

    assert (unasked.exit_code, unasked.stdout, unasked.stderr) == (1, "", "no locks\n")
    assert (asked.exit_code, "free" in asked.stdout) == (0, True)


def test_lapsed_lock_is_listed_as_lapsed(cli, held, app):
    """The orphan that is looked for must not be left out because its lease is over."""
    held(lease_seconds=0.001)
    wait_until(lambda: cli("locks", "list").stdout, 5, "it is listed")

    assert json.loads(cli("locks", "list", "--json").stdout)["locks"][0]["state"] == "lapsed"


def test_show_tells_who_waits_and_list_how_many(cli, app):
    """Whether it matters that a lock is stuck is told by who waits for it."""

    def wait():
        with hold(app, WAITS, order_id=7):
            pass

    with hold(app, LOCK, order_id=7):
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: Wiring.of(app).locks.waiting("order:7"), 10, "it waits")
        (listed,) = json.loads(cli("locks", "list", "--json").stdout)["locks"]
        shown = cli("locks", "show", "order:7")
    thread.join(10)

    assert len(listed["waiting"]) == 1
    assert listed["waiting"][0]["pid"] == os.getpid()
    assert [line for line in shown.stdout.splitlines() if line.startswith("waits ")]


def test_show_of_no_lock_exits_with_1(cli):
    """A typing error is no free lock."""
    shown = cli("locks", "show", "order:9")

    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr == "nobody has held lock order:9 within a day\n"


@pytest.mark.parametrize("verb", ["show", "release"])
def test_a_name_whose_quotes_the_shell_took_is_told_how_it_is_written(cli, verb):
    """Who is told that nobody holds the lock believes it, and looks for the orphan elsewhere."""
    shown = cli("locks", verb, "stock:A-1")

    assert shown.exit_code == 1
    assert """'stock:"A-1"'""" in shown.stderr


def test_nothing_of_a_holder_reaches_the_terminal_raw(cli, held, app):
    """The name of a lock is made of a task's arguments, which strangers may choose."""
    held(NASTY, task=NASTY, worker=NASTY, host=NASTY)

    outputs = [
        cli("locks", "list").output,
        cli("locks", "show", NASTY).output,
        cli("locks", "release", NASTY).output,
        cli("locks", "release", NASTY, "--override", *REASON).output,
    ]

    for output in outputs:
        assert [each for each in output if not each.isprintable() and each != "\n"] == []
        assert [line for line in output.splitlines() if line.startswith("SECOND LINE")] == []


def test_damaged_lock_hides_no_other_from_the_list(cli, held, redis_client, namespace):
    """One key that was overwritten must not take the list away in the night in which it is needed."""
    held()
    held("order:8")
    key = Keys(namespace).lock("order:8")
    head = redis_client.get(key).partition("\n")[0]
    redis_client.set(key, f"{head}\n5")

    listed, shown = cli("locks", "list"), cli("locks", "show", "order:8")

    assert "order:7" in listed.stdout
    assert "lock order:8 cannot be read: the lock is damaged" in listed.output
    assert "the lock is damaged" in shown.output


# --- release


def test_lock_of_a_process_that_is_gone_is_released(cli, held, owner, dead_pid):
    """Killed with its lease just renewed, it keeps the order from everyone for as long as that is."""
    held(host=host_name(), pid=dead_pid, pid_space=pid_space())

    released = cli("locks", "release", "order:7")

    assert released.exit_code == 0
    assert f"dead: process {dead_pid} does not exist on this host" in released.stderr
    assert owner() == ""


def test_lock_of_a_process_that_lives_is_not_released(cli, app, owner):
    """Two would work on one order, because somebody was in a hurry."""
    with hold(app, LOCK, order_id=7):
        refused = cli("locks", "release", "order:7", "--json")
        assert owner()

    document = json.loads(refused.stdout)
    assert (refused.exit_code, document["released"], document["is_shown_dead"]) == (1, False, False)
    assert f"process {os.getpid()} exists on this host" in refused.stderr
    assert "is not shown dead" in refused.stderr


def test_lock_whose_lease_is_over_is_released(cli, held, owner):
    """What any task would be given needs no override."""
    held(lease_seconds=0.001)

    wait_until(lambda: cli("locks", "release", "order:7").exit_code == 0, 5, "it is released")

    assert owner() == ""


def test_lease_that_ended_while_the_store_was_away_shows_nothing(cli, held, owner, redis_client, namespace):
    """The owner lives, and could not renew: its store was away, and the first who is back is an operator."""
    held(lease_seconds=0.001)
    # No worker was heard for a minute.
    pulse_us = int(redis_client.hget(Keys(namespace).meta, "pulse"))
    redis_client.hset(Keys(namespace).meta, "pulse", pulse_us - 60_000_000)

    refused = cli("locks", "release", "order:7")

    assert refused.exit_code == 1
    assert "the store was away, and its owner may renew it" in refused.stderr
    assert owner()


def test_worker_that_does_not_answer_shows_nothing(cli, held, owner):
    """A worker that is frozen does not answer, and wakes with its task in the middle."""
    held()

    refused = cli("locks", "release", "order:7")

    assert refused.exit_code == 1
    assert "worker w1@far does not answer, which is unknown, not dead" in refused.stderr
    assert owner()


@pytest.fixture
def starting(start_worker, worker_env):
    """A worker that has just been started."""
    return start_worker("tests.acceptance.plain_app:app", worker_env)


def test_worker_is_asked_for_the_task(cli, app, held, producer, starting, announcements):
    """Its own word: the task runs, or it does not; and of a time before it was started it knows nothing."""
    worker = starting
    held("order:6", task_id="of-its-predecessor", worker=worker.name)
    worker.wait_ready()
    announcements.hold("before_effect")
    producer.send_task("plain.effect", (7,), task_id="runs")
    worker.wait_for("before_effect", 20)
    # Up for so long that two clocks do not disagree on what came first.
    wait_until(
        lambda: (ask_worker(app, worker.name, "none") or NEVER).up_seconds >= 4, 20, "it has been up for a while"
    )
    held("order:7", task_id="runs", worker=worker.name)
    held("order:8", task_id="ended", worker=worker.name)
    # A task that was terminated is forgotten at once, and its child may take its time to end.
    held("order:9", task_id="terminated", worker=worker.name, pid=worker.child_pids()[0])

    told = [cli("locks", "release", f"order:{number}") for number in (6, 7, 8, 9)]

    before, runs, ended, terminated = told
    assert [each.exit_code for each in told] == [1, 1, 0, 1], [each.output for each in told]
    assert "in which it may be ending" in terminated.stderr
    assert "was started after the lock was taken: the one before it may still be ending its tasks" in before.stderr
    assert f"alive: worker {worker.name} has task runs" in runs.stderr
    assert f"dead: worker {worker.name} answers, and does not have task ended any more" in ended.stderr
    store = Wiring.of(app).locks
    assert [bool(store.read(f"order:{number}")[0].owner) for number in (6, 7, 8, 9)] == [True, True, False, True]


def test_worker_that_is_frozen_is_not_taken_for_dead(cli, held, owner, starting):
    """Stopped by SIGSTOP it is as silent as a dead one, and goes on where it was."""
    worker = starting.wait_ready()
    held(task_id="runs", worker=worker.name)
    worker.freeze()

    refused = cli("locks", "release", "order:7")

    assert refused.exit_code == 1
    assert f"nothing: worker {worker.name} does not answer, which is unknown, not dead" in refused.stderr
    assert owner()


def test_broker_that_is_away_shows_nothing_either(redis_url, namespace, held, owner):
    """The operator's own network is no evidence of the owner's death."""
    held()
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline:
        context = CLIContext(app=offline, no_color=True, workdir=None)
        refused = CliRunner().invoke(safeguards, ["locks", "release", "order:7"], obj=context)

    assert refused.exit_code == 1
    assert "nothing: the broker does not answer, so worker w1@far cannot be asked: it is not known" in refused.stderr
    assert owner()


def test_override_needs_a_reason_and_is_logged(cli, held, owner, caplog):
    """Who let two work at once, when, why, and what was known: asked a week later, the log must tell."""
    fence = held().fence

    override = ("locks", "release", "order:7", "--override")
    unreasoned = [cli(*override, *words).exit_code for words in ([], ["--reason", " "])]
    assert owner()
    with caplog.at_level(logging.WARNING, logger="celery_safeguards"):
        released = cli(*override, *REASON)

    assert (unreasoned, released.exit_code, owner()) == ([2, 2], 0, "")
    (record,) = [each for each in caplog.records if each.name == "celery_safeguards"]
    assert record.levelno == logging.WARNING
    for part in (
        *("order:7", str(fence), f"ann@{host_name()}", "the host burnt down", "OVERRIDE", "shop.ship[t-1]"),
        *("process 4711 on far", "does not answer"),
    ):
        assert part in record.message


def test_owner_that_was_overridden_is_told(cli, app):
    """It lives after all: its next checkpoint must stop it, and its end must not pass for a success."""
    short = EntityLock("order:{order_id}", lease_seconds=1)

    def work():
        with hold(app, short, order_id=7) as lock:
            assert cli("locks", "release", "order:7", "--override", *REASON).exit_code == 0
            with hold(app, LOCK, order_id=7), pytest.raises(LockLost):
                wait_until(lock.checkpoint, 5, "the checkpoint raises")

    with pytest.raises(LockLost):
        work()


def test_release_leaves_the_lock_of_whoever_has_it_by_now(cli, held, owner, monkeypatch):
    """Between looking and releasing the lock has passed on: its new owner has done nothing to lose it."""
    held(lease_seconds=0.001)
    wait_until(lambda: "lapsed" in cli("locks", "list").stdout, 5, "it has lapsed")
    look = locks.look_at

    def look_and_be_late(app, name):
        seen = look(app, name)
        ask = LockAsk(name=name, owner="next-one", lease_seconds=60)
        assert Wiring.of(app).locks.acquire(ask).held
        return seen

    monkeypatch.setattr(locks, "look_at", look_and_be_late)
    refused = cli("locks", "release", "order:7")

    assert refused.exit_code == 1
    assert "order:7: lost at fence" in refused.stderr
    assert owner() == "next-one"


def test_released_lock_goes_to_who_waits(cli, app, held, dead_pid):
    """Freed and still not worked on, because those who wait sleep on: half a release."""
    held(host=host_name(), pid=dead_pid, pid_space=pid_space())
    got = threading.Event()

    def wait():
        with hold(app, WAITS, order_id=7):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: Wiring.of(app).locks.waiting("order:7"), 10, "it waits")
    cli("locks", "release", "order:7")

    assert got.wait(5)
    thread.join(10)


def test_release_of_what_nobody_holds_exits_with_1(cli, app):
    """Released twice is no success: the second time there was nothing to release."""
    with hold(app, LOCK, order_id=7):
        pass

    codes = [cli("locks", "release", name, "--override", *REASON).exit_code for name in ("order:7", "order:9")]

    assert codes == [1, 1]


def test_store_that_is_away_exits_with_3(redis_url, namespace):
    """ "No locks" and "nobody answered" must not look alike."""
    with make_app(redis_url, f"redis://127.0.0.1:{free_port()}/0", namespace) as app:
        context = CLIContext(app=app, no_color=True, workdir=None)
        codes = [
            CliRunner().invoke(safeguards, ["locks", *words], obj=context).exit_code
            for words in (["list"], ["show", "order:7"], ["release", "order:7"])
        ]

    assert codes == [3, 3, 3]
