"""
How long a held message is renewed, and when it is not.
"""

from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace

import pytest
from celery.worker import state

from celery_safeguards.pipeline.budget import DEFAULT_SECONDS
from celery_safeguards.worker.delivering import _runs_in_loop, _turned_at
from celery_safeguards.worker.renewing import Renewing

TIMEOUT_SECONDS = 60.0


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self):
        self.now = 1_000.0

    def monotonic_seconds(self):
        return self.now


class Lease:
    """Messages in hand, and what was said of them to the broker."""

    timeout_seconds = TIMEOUT_SECONDS
    parked = aside = 0

    def __init__(self):
        self.messages = {}
        self.renewals = []
        self.sweeps = 0
        self.gone = ()
        self.lost = []
        self.error = None

    @property
    def held(self):
        return tuple(self.messages)

    def message_of(self, tag):
        return self.messages.get(tag)

    def renew(self, tags):
        if self.error:
            raise self.error
        self.renewals.append(sorted(tags))
        return self.gone

    def lose(self, tag):
        self.lost.append(tag)

    def sweep(self):
        self.sweeps += 1
        return 0

    def close(self):
        self.is_closed = True


class Worker:
    """A renewing without its thread: it ticks when the test says so."""

    def __init__(self, *, is_in_loop=False):
        self.clock, self.lease, self.turned, self.moved = Clock(), Lease(), None, []
        self.renewing = Renewing(self.clock, lambda: self.turned, self.moved.append, is_in_loop=is_in_loop)
        self.renewing._lease = self.lease

    def take(self, tag, eta=None):
        self.lease.messages[tag] = SimpleNamespace(headers={"eta": eta, "task": "shop.pay"})

    def renewed_after(self, seconds):
        """Return which messages are renewed when so much time has passed."""
        self.clock.now += seconds
        before = len(self.lease.renewals)
        self.renewing.tick()
        return self.lease.renewals[-1] if len(self.lease.renewals) > before else None


@pytest.fixture
def worker():
    return Worker()


def test_messages_are_renewed_every_third_of_the_timeout(worker):
    worker.take("a")

    assert ["a"] == worker.renewed_after(0)
    assert worker.renewed_after(TIMEOUT_SECONDS / 3 - 1) is None
    assert ["a"] == worker.renewed_after(1)
    assert 3 == worker.lease.sweeps


def test_body_is_renewed_within_its_budget(worker):
    """Bogdanp/dramatiq_sqs PR#59: a body that hangs must be redelivered."""
    worker.take("a")
    worker.renewing.begins("a", 100)

    assert ["a"] == worker.renewed_after(99)
    assert [] == worker.renewed_after(TIMEOUT_SECONDS)


def test_message_that_waits_is_renewed_for_an_hour(worker):
    worker.take("a")

    assert ["a"] == worker.renewed_after(0)
    assert ["a"] == worker.renewed_after(DEFAULT_SECONDS - 1)
    assert [] == worker.renewed_after(TIMEOUT_SECONDS)


@pytest.mark.parametrize("zone", [UTC, None])
def test_message_that_waits_for_its_time_is_renewed_beyond_it(worker, zone):
    """Celery writes an ETA with its zone, or in UTC without."""
    due = datetime.now(UTC) + timedelta(days=1)
    worker.take("a", eta=due.replace(tzinfo=zone).isoformat())

    assert ["a"] == worker.renewed_after(0)
    assert ["a"] == worker.renewed_after(86_400 + DEFAULT_SECONDS - 60)
    assert [] == worker.renewed_after(120)


def test_message_that_is_just_being_taken_is_renewed_beyond_its_time_as_well(worker):
    """Its tag is known before its answer is here, and its ETA is not: an hour later another worker had it, too."""
    worker.lease.messages["a"] = None
    assert ["a"] == worker.renewed_after(0)
    worker.take("a", eta=(datetime.now(UTC) + timedelta(days=1)).isoformat())

    assert ["a"] == worker.renewed_after(86_400)


def test_message_that_waited_for_longer_than_it_is_renewed_has_lapsed(worker):
    """A task with a rate limit waits in its worker; another one is given its message meanwhile, and both ran it."""
    received = worker.clock.now
    for tag in ("a", "b"):
        worker.take(tag)
    worker.renewed_after(0)
    worker.renewing.begins("b", 2 * DEFAULT_SECONDS)
    worker.renewed_after(DEFAULT_SECONDS - 1)
    assert not worker.renewing.has_lapsed("a", received)

    assert ["b"] == worker.renewed_after(TIMEOUT_SECONDS)

    assert worker.renewing.has_lapsed("a", received)
    assert not worker.renewing.has_lapsed("b", received)


@pytest.mark.parametrize("at", ["held", "message_of"])
def test_body_that_begins_during_a_renewal_has_its_whole_budget(worker, at, monkeypatch):
    """The loop may have its turn at any point of the thread's."""
    worker.take("a")

    def begin():
        worker.take("b")
        worker.renewing.begins("b", 10 * DEFAULT_SECONDS)
        return ("a",)

    with monkeypatch.context() as patched:
        if at == "held":
            patched.setattr(Lease, "held", property(lambda _: begin()))
        else:
            worker.take("b")
            messages = worker.lease.messages
            patched.setattr(worker.lease, "message_of", lambda tag: (tag == "b" and begin(), messages[tag])[1])
        worker.renewed_after(0)

    assert {"b"} == worker.renewing.begun
    assert ["b"] == worker.renewed_after(9 * DEFAULT_SECONDS)


@pytest.mark.parametrize("eta", ["tomorrow", 5, None, ""])
def test_eta_that_is_none_counts_as_none(worker, eta):
    worker.take("a", eta=eta)

    assert ["a"] == worker.renewed_after(0)


def test_body_that_begins_late_has_its_whole_budget(worker):
    worker.take("a")
    worker.renewed_after(0)
    worker.clock.now += DEFAULT_SECONDS - 10
    worker.renewing.begins("a", 100)

    assert ["a"] == worker.renewed_after(99)


def test_what_is_set_aside_is_told_of(worker):
    worker.renewed_after(0)
    assert [] == worker.moved
    worker.lease.aside = 2

    worker.renewed_after(1)

    assert [worker.lease] == worker.moved


def test_message_that_has_ended_is_forgotten(worker):
    worker.take("a")
    worker.renewing.begins("a", 100)
    assert {"a"} == worker.renewing.begun
    worker.lease.messages.clear()

    worker.renewed_after(0)

    assert set() == worker.renewing.begun


def test_message_that_another_worker_has_is_given_up(worker):
    for tag in ("taken", "acknowledged just now"):
        worker.take(tag)
    worker.lease.gone = ("taken", "acknowledged just now")
    messages = worker.lease.messages
    worker.lease.message_of = lambda tag: messages["taken"] if tag == "taken" else None

    worker.renewed_after(0)

    assert ["taken"] == worker.lease.lost


def test_loop_that_stands_still_renews_nothing(worker):
    """What it holds would wait for ever."""
    worker.take("a")
    worker.turned = worker.clock.now

    assert ["a"] == worker.renewed_after(TIMEOUT_SECONDS - 1)
    assert worker.renewed_after(TIMEOUT_SECONDS) is None
    worker.turned = worker.clock.now
    assert ["a"] == worker.renewed_after(1)


def test_loop_in_which_a_body_runs_may_stand_still_for_its_budget():
    worker = Worker(is_in_loop=True)
    worker.take("a")
    worker.turned = worker.clock.now
    worker.renewing.begins("a", 300)

    assert ["a"] == worker.renewed_after(200)
    assert worker.renewed_after(200) is None


@pytest.fixture
def consumer():
    """A consumer whose loop has turned once; afterwards the worker is not stopping."""
    cycle = SimpleNamespace(turned_at=5.0)
    yield SimpleNamespace(connection=SimpleNamespace(_transport=SimpleNamespace(cycle=cycle)))
    state.should_stop = None


def test_loop_that_was_left_for_a_warm_shutdown_does_not_stand_still(consumer):
    """celery/celery#3802: a body that took longer than the standstill's bound began a second time elsewhere."""
    assert 5.0 == _turned_at(consumer)

    state.should_stop = 0

    assert _turned_at(consumer) is None


@pytest.mark.parametrize(
    ("pool", "expected"), [("prefork", False), ("thread", False), ("solo", True), ("gevent", True)]
)
def test_loop_may_wait_for_a_body_in_some_pools(pool, expected):
    """A pool of greenlets that is full makes the loop wait for a free one."""
    if pool == "gevent":
        pytest.importorskip("gevent")
    task_pool = import_module(f"celery.concurrency.{pool}").TaskPool

    assert expected is _runs_in_loop(task_pool.__new__(task_pool))


def test_sweep_that_fails_does_not_keep_what_lives_from_being_renewed(worker):
    worker.take("a")
    worker.lease.sweep = lambda: 1 / 0

    with pytest.raises(ZeroDivisionError):
        worker.renewing.tick()

    assert [["a"]] == worker.lease.renewals


def test_long_sweep_keeps_nothing_from_being_renewed(worker):
    """After the death of a whole fleet one worker puts everything back, and it takes longer than its own timeout."""
    worker.take("a")
    left = [100, 100, 7]

    def sweep():
        worker.clock.now += TIMEOUT_SECONDS / 3
        return left.pop(0)

    worker.lease.sweep = sweep
    while worker.renewing.tick():
        pass

    assert [] == left
    assert 3 == len(worker.lease.renewals)


def test_message_has_lapsed_when_nothing_has_confirmed_it_for_a_timeout(worker):
    """A process that stood still must not begin what others may have done."""
    worker.take("a")
    received = worker.clock.now
    worker.renewed_after(0)

    worker.clock.now += TIMEOUT_SECONDS - 1
    assert not worker.renewing.has_lapsed("a", received)
    worker.clock.now += 1
    assert worker.renewing.has_lapsed("a", received)
    assert not worker.renewing.has_lapsed("b", worker.clock.now - 1)


def test_new_connection_is_followed_at_once_and_the_old_one_closed_by_the_thread(worker):
    """It may be in use at that very moment."""
    worker.renewed_after(0)
    before, after = worker.lease, Lease()
    after.messages["a"] = SimpleNamespace(headers={})
    worker.renewing._thread = SimpleNamespace(is_alive=lambda: True)

    worker.renewing.follow(after)
    assert not hasattr(before, "is_closed")
    worker.renewing.tick()

    assert before.is_closed
    assert [["a"]] == after.renewals


def test_renewal_that_was_not_answered_confirms_nothing(worker):
    worker.take("a")
    worker.renewed_after(0)
    worker.lease.error = ConnectionError("away")

    with pytest.raises(ConnectionError):
        worker.renewed_after(TIMEOUT_SECONDS)

    assert worker.renewing.has_lapsed("a", 0.0)
