"""The lock of a task in every way its delivery can end before or beside its body."""

import threading

import pytest
from celery import Celery
from celery.app.trace import build_tracer

from celery_safeguards import EntityLock, Idempotent, Safeguards, SafeTask
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.wiring import Wiring

LOCK = EntityLock("order:{number}", lease_seconds=1)
UNKEYED = Safeguards(repeatable=True, lock=LOCK)
KEYED = Safeguards(idempotent=Idempotent("ship:{number}", on_unknown="rerun"), lock=LOCK)


@pytest.fixture
def app():
    app = Celery("locked", set_as_current=False, broker="memory://")
    app.conf.update(safeguards_store_url="memory://", task_ignore_result=True)
    return app


def locked(app, body, safeguards):
    return app.task(body, name="locked.task", bind=True, base=SafeTask, safeguards=safeguards, shared=False, lazy=False)


def owner_of(app):
    return Wiring.of(app).locks.read("order:7")[0].owner


def test_a_message_that_is_buried_before_its_body_runs_leaves_its_lock_free(app):
    """A poison message would bar its order for a lease each time it comes back."""

    def body(self, number):
        raise AssertionError("a poison message is not started")

    task = locked(app, body, UNKEYED)
    for _ in range(3):
        Wiring.of(app).starts.begin("t-1", 3)
    trace = build_tracer(task.name, task, app=app)

    redelivered = {"id": "t-1", "task": task.name, "root_id": "t-1", "delivery_info": {"redelivered": True}}
    trace("t-1", (7,), {}, {**redelivered, "headers": {}, "is_eager": False})

    assert len(Wiring.of(app).letters.list().letters) == 1
    assert owner_of(app) == ""


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_body_that_is_told_to_end_leaves_no_lock_that_its_process_renews(app, end):
    """A shell that goes on after Ctrl-C would hold the order for an hour."""

    def body(self, number):
        raise end

    with pytest.raises(end):
        locked(app, body, UNKEYED).apply((7,))

    assert owner_of(app) == ""


@pytest.mark.parametrize("safeguards", [UNKEYED, KEYED], ids=["unkeyed", "keyed"])
def test_an_eager_body_longer_than_its_lease_keeps_its_lock(app, safeguards):
    """It has no worker that renews for it: somebody else would be let in beside it."""
    locks, renewed = Wiring.of(app).locks, threading.Event()
    ask, renew = LockAsk(name="order:7", owner="B", lease_seconds=1), locks.renew

    def renew_and_tell(held):
        answer = renew(held)
        renewed.set()
        return answer

    locks.renew = renew_and_tell

    def body(self, number):
        for _ in range(4):  # a third of a lease each
            renewed.clear()
            assert renewed.wait(5)
        return locks.acquire(ask).held is None

    assert locked(app, body, safeguards).apply((7,)).get() is True
    assert owner_of(app) == ""
