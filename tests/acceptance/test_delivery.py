"""
A message is given to one worker while that worker lives, and to another one soon after it has died.

Each of these runs on plain Celery, too, where the same message is delivered again; nothing here has a key.
"""

import os
import signal

import pytest
from celery import Celery

from celery_safeguards.conf import Settings
from celery_safeguards.wiring import Wiring
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.acceptance
VISIBILITY_SECONDS = 3
HUNG_BUDGET_SECONDS = 2.0
RENEWALS = 7
"""More than two visibility timeouts of renewals, a third of one apart."""
PATIENCE_SECONDS = 30
APPS = {"plain": "tests.acceptance.plain_app:app", "guarded": "tests.acceptance.delivery_app:app"}


class Scene:
    """Workers of one fleet, what they start, and what the broker holds."""

    def __init__(self, start_worker, announcements, redis_client, redis_url, namespace):
        self._start_worker = start_worker
        self.announcements = announcements
        self.redis = redis_client
        self._namespace = namespace
        self.url = redis_url
        self.env = {
            apps.BROKER_URL: redis_url,
            apps.STORE_URL: redis_url,
            apps.NAMESPACE: namespace,
            apps.TRANSPORT: "hardened",
            apps.VISIBILITY: str(VISIBILITY_SECONDS),
            "DELIVERY_HUNG_BUDGET_SECONDS": str(HUNG_BUDGET_SECONDS),
        }

    def worker(self, kind="guarded", *, env=(), **options):
        """Start a worker and wait until it consumes."""
        return self._start_worker(APPS[kind], {**self.env, **dict(env)}, **options).wait_ready()

    def send(self, order_id, *, kind="guarded", name="effect", **options):
        """Send a task as any program might."""
        with Celery("producer", broker=self.url, set_as_current=False) as producer:
            producer.conf.update(apps.queue_settings(self._namespace))
            task = f"{'plain' if kind == 'plain' else 'delivery'}.{name}"
            return producer.send_task(task, (order_id,), **options).id

    def starts(self, order_id):
        """Return the starts of an order's body that were seen by now."""
        return self.announcements.heard(is_said("before_effect", order_id=order_id))

    def wait_for(self, event, order_id, count=1):
        """Wait until a body has said something this often."""
        return self.announcements.wait_for(is_said(event, order_id=order_id), PATIENCE_SECONDS, count=count)

    def wait_for_renewals(self, count=RENEWALS, held=1):
        """Wait until every message that is held was renewed this often."""
        seen = {}

        def are_renewed():
            for tag, score in self.redis.zrange(f"{self._namespace}.unacked_index", 0, -1, withscores=True):
                seen.setdefault(tag, set()).add(score)
            return held == sum(len(scores) > count for scores in seen.values())

        wait_until(are_renewed, PATIENCE_SECONDS, f"{held} messages were renewed {count} times")
        assert held == len(seen), "a message was taken a second time"

    def push(self, raw):
        """Put bytes into the queue as some other program might."""
        self.redis.lpush(f"{self._namespace}.{self._namespace}", raw)

    def wait_answers(self):
        """Wait until a worker has answered a ping."""
        with Celery("asker", broker=self.url, set_as_current=False) as asker:
            asker.conf.update(apps.queue_settings(self._namespace))
            wait_until(lambda: asker.control.ping(timeout=1), PATIENCE_SECONDS, "a worker answers")

    def letters(self):
        """Return all dead letters."""
        settings = Settings(namespace=self._namespace, store_url=self.url)
        return Wiring.from_settings(settings).letters.list(limit=100).letters

    def wait_empty(self):
        """Wait until the broker has no message, and no trace of one."""
        names = [
            f"{self._namespace}.{each}"
            for each in (self._namespace, "unacked", "unacked_index", "unacked_parked", "unacked_aside")
        ]
        wait_until(lambda: not self.redis.exists(*names), PATIENCE_SECONDS, "the broker is empty")


@pytest.fixture
def scene(start_worker, announcements, redis_client, redis_url, namespace):
    return Scene(start_worker, announcements, redis_client, redis_url, namespace)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_body_that_outlives_the_visibility_timeout_runs_once(scene, pool):
    """celery/celery#5306, pretix/pretix#2058: a mail-out that took four hours began four times."""
    if pool == "gevent":
        pytest.importorskip("gevent")
    scene.announcements.hold("before_effect")
    for _ in range(2):
        scene.worker(pool=pool)
    scene.send("A1")

    scene.wait_for("before_effect", "A1")
    scene.wait_for_renewals()
    scene.announcements.open("before_effect")

    scene.wait_for("after_effect", "A1")
    scene.wait_empty()
    assert 1 == len(scene.starts("A1"))


def test_body_that_outlives_the_visibility_timeout_runs_again_on_plain_celery(scene):
    """The control."""
    scene.announcements.hold("before_effect")
    for _ in range(2):
        scene.worker("plain")
    scene.send("A1", kind="plain")

    scene.wait_for("before_effect", "A1", count=2)


def test_body_runs_once_on_the_stock_transport_as_well(scene):
    """Renewal alone does that; what the stock transport cannot do is in `test_delivery_cuts.py`."""
    scene.announcements.hold("before_effect")
    for _ in range(2):
        scene.worker(env={apps.TRANSPORT: "stock"})
    scene.send("A1")

    scene.wait_for("before_effect", "A1")
    scene.wait_for_renewals()
    scene.announcements.open("before_effect")

    scene.wait_empty()
    assert 1 == len(scene.starts("A1"))


def test_message_that_waits_for_its_time_is_received_once(scene):
    """celery/kombu#337, celery/celery#9663: copies of it piled up, one each timeout, and all of them ran."""
    for _ in range(2):
        scene.worker()
    scene.send("A1", countdown=VISIBILITY_SECONDS * 3)

    scene.wait_for("after_effect", "A1")
    scene.wait_empty()
    assert 1 == len(scene.announcements.heard("task_received"))
    assert 1 == len(scene.starts("A1"))


def test_message_that_waits_for_its_time_is_received_again_on_plain_celery(scene):
    """The control."""
    for _ in range(2):
        scene.worker("plain")
    scene.send("A1", kind="plain", countdown=VISIBILITY_SECONDS * 6)

    scene.announcements.wait_for("task_received", PATIENCE_SECONDS, count=2)


@pytest.mark.parametrize("kind", ["guarded", "plain"])
def test_message_that_waits_for_a_slot(scene, kind):
    """alphagov/notifications-api PR#3426: it counts as unacknowledged from receipt; plain Celery receives it twice."""
    scene.announcements.hold("before_effect", order_id="A1")
    scene.worker(kind, extra_args=("--prefetch-multiplier", "2"))
    for order_id in ("A1", "B1"):
        scene.send(order_id, kind=kind)
    scene.announcements.wait_for("task_received", PATIENCE_SECONDS, count=2)
    scene.wait_for("before_effect", "A1")
    scene.worker(kind)

    if kind == "plain":
        scene.announcements.wait_for("task_received", PATIENCE_SECONDS, count=3)
        return
    scene.wait_for_renewals(held=2)
    scene.announcements.open("before_effect")
    scene.wait_empty()
    assert [1, 1] == [len(scene.starts(order_id)) for order_id in ("A1", "B1")]
    assert 2 == len(scene.announcements.heard("task_received"))


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole group", "main process only"])
def test_killed_worker_is_followed_after_the_visibility_timeout(scene, is_whole):
    """celery/celery#4984: with the usual hour people believe their task is lost. A short timeout is safe here."""
    scene.announcements.hold("before_effect")
    worker = scene.worker(concurrency=2)
    scene.send("A1")
    scene.send("A2", countdown=2)
    scene.wait_for("before_effect", "A1")
    scene.announcements.wait_for("task_received", PATIENCE_SECONDS, count=2)
    heir = scene.worker(concurrency=2)

    if is_whole:
        worker.kill_all()
    else:
        worker.kill_main()
    scene.announcements.open("before_effect")

    for order_id in ("A1", "A2"):
        scene.announcements.wait_for(
            is_said("after_effect", order_id=order_id, worker=heir.name), VISIBILITY_SECONDS + PATIENCE_SECONDS
        )
    scene.wait_empty()


def test_body_that_hangs_is_given_to_another_worker_after_its_budget(scene):
    """Bogdanp/dramatiq_sqs PR#59: renewed for ever, it would be lost for as long as its worker lives."""
    scene.announcements.hold("hung")
    for _ in range(2):
        scene.worker()
    scene.send("A1", name="hung")

    first, second = (scene.wait_for("hung", "A1", count=count) for count in (1, 2))
    scene.announcements.open("hung")

    assert first["worker"] != second["worker"]
    assert HUNG_BUDGET_SECONDS <= second["at"] - first["at"]
    scene.wait_empty()


def test_worker_that_stood_still_does_not_begin_what_others_have_done(scene):
    """A main process that is stopped renews nothing: others do what it holds, and it learns so when it wakes."""
    stopped = scene.worker()
    scene.send("A1", countdown=VISIBILITY_SECONDS)
    scene.announcements.wait_for("task_received", PATIENCE_SECONDS)

    os.kill(stopped.pid, signal.SIGSTOP)
    heir = scene.worker()
    scene.announcements.wait_for(is_said("after_effect", order_id="A1", worker=heir.name), PATIENCE_SECONDS)
    os.kill(stopped.pid, signal.SIGCONT)

    wait_until(lambda: "is not started: another worker may have" in stopped.log(), PATIENCE_SECONDS, "it learns of it")
    scene.wait_empty()
    assert 1 == len(scene.starts("A1"))


def test_worker_whose_clock_is_wrong_takes_nothing_from_others(scene):
    """celery/celery#1112: ages are compared by the server's clock, here."""
    scene.announcements.hold("before_effect")
    scene.worker()
    scene.send("A1")
    scene.wait_for("before_effect", "A1")

    scene.worker(env={apps.CLOCK_AHEAD: "3600"})
    scene.wait_for_renewals()
    scene.announcements.open("before_effect")

    scene.wait_empty()
    assert 1 == len(scene.starts("A1"))


def test_worker_whose_clock_is_wrong_takes_everything_from_others_on_plain_celery(scene):
    """The control: one host's clock decides for all."""
    scene.announcements.hold("before_effect")
    hour = {apps.VISIBILITY: "3000"}
    scene.worker("plain", env=hour)
    scene.send("A1", kind="plain")
    scene.wait_for("before_effect", "A1")

    scene.worker("plain", env={**hour, apps.CLOCK_AHEAD: "3600"})

    scene.wait_for("before_effect", "A1", count=2)


def test_what_is_no_message_becomes_a_letter_and_its_worker_goes_on(scene):
    """celery/celery#4308: it ended every worker that took it."""
    worker = scene.worker()
    for raw in (b"rubbish \xff", b'{"body": "x"}'):
        scene.push(raw)
    scene.send("A1")

    scene.wait_for("after_effect", "A1")
    letters = wait_until(lambda: len(found := scene.letters()) == 2 and found, PATIENCE_SECONDS, "two letters")
    scene.wait_empty()
    assert {b"rubbish \xff", b'{"body": "x"}'} == {letter.wire.body for letter in letters}
    assert {"undecodable"} == {letter.kind for letter in letters}
    assert worker.is_running()


@pytest.mark.parametrize("name", ["die", "die_keyed"])
def test_message_that_kills_its_child_each_time_is_buried_after_three_starts(scene, name):
    """celery/celery#9082: requeued for ever, it takes one child after the other."""
    worker = scene.worker()
    scene.send("A1", name=name)

    (letter,) = wait_until(scene.letters, PATIENCE_SECONDS, "a letter")
    scene.wait_empty()
    scene.send("B1")
    scene.wait_for("after_effect", "B1")

    assert 3 == len(scene.announcements.heard(is_said("started", order_id="A1")))
    assert ("worker_lost", f"delivery.{name}") == (letter.kind, letter.task)
    assert worker.is_running()


def test_message_of_an_unknown_task_becomes_a_letter(scene):
    """celery/celery#5504: plain Celery discards it."""
    scene.worker()
    scene.send("A1", name="of_tomorrow")

    (letter,) = wait_until(scene.letters, PATIENCE_SECONDS, "a letter")
    scene.wait_empty()

    assert ("unknown_task", "delivery.of_tomorrow") == (letter.kind, letter.task)
    assert b"A1" in letter.wire.body


def test_warm_shutdown_waits_for_a_long_body_and_nobody_else_begins_it(scene):
    """celery/celery#3802: the consumer has stopped, the message is renewed all the same."""
    scene.announcements.hold("before_effect")
    worker = scene.worker()
    scene.send("A1")
    scene.wait_for("before_effect", "A1")
    scene.worker()

    worker.terminate()
    scene.wait_for_renewals()
    scene.announcements.open("before_effect")

    assert 0 == worker.wait_exited()
    scene.wait_empty()
    assert 1 == len(scene.starts("A1"))


# --- a connection that is cut


@pytest.fixture
def cutter(redis_url):
    with Cutter(redis_url) as cutter:
        yield cutter


@pytest.mark.parametrize("pool", [pytest.param("prefork", marks=pytest.mark.smoke), "threads", "gevent"])
@pytest.mark.parametrize("load", ["half idle", "saturated"])
def test_body_whose_connection_is_cut_runs_once(scene, cutter, pool, load):
    """celery/celery#7185: the same worker began a second body a tenth of a second later."""
    if pool == "gevent":
        pytest.importorskip("gevent")
    scene.announcements.hold("before_effect")
    worker = scene.worker(pool=pool, concurrency=2, env={apps.BROKER_URL: cutter.url, apps.STORE_URL: scene.url})
    orders = ["A1"] if load == "half idle" else [f"A{number}" for number in range(6)]
    for order_id in orders:
        scene.send(order_id)
    begun = scene.announcements.wait_for("before_effect", PATIENCE_SECONDS, count=1 if load == "half idle" else 2)

    cutter.cut()
    if load == "half idle":
        scene.send("B1")
        scene.wait_for("before_effect", "B1")
    scene.announcements.open("before_effect")

    everything = [*orders, *(["B1"] if load == "half idle" else [])]
    for order_id in everything:
        scene.wait_for("after_effect", order_id)
    scene.wait_empty()
    assert begun
    assert worker.is_running()
    assert [1] * len(everything) == [len(scene.starts(order_id)) for order_id in everything]


@pytest.mark.parametrize(("kind", "starts"), [pytest.param("guarded", 1, marks=pytest.mark.smoke), ("plain", 2)])
def test_body_runs_once_that_a_child_had_not_begun_when_the_connection_was_cut(scene, cutter, kind, starts):
    """A child that is slow to read its pipe runs what is in it, when nobody listens any more; plain is the control."""
    worker = scene.worker(kind, env={apps.BROKER_URL: cutter.url, apps.STORE_URL: scene.url})
    scene.send("A0", kind=kind)
    scene.wait_for("after_effect", "A0")
    scene.wait_empty()
    worker.kill_child(sig=signal.SIGSTOP)
    scene.send("A1", kind=kind)
    received = is_said("task_received")
    scene.announcements.wait_for(received, PATIENCE_SECONDS, count=2)
    # It answers from the loop that writes to its children, so the job is written by then.
    scene.wait_answers()

    cutter.cut()
    wait_until(lambda: worker.log().count("Connected to") == 2, PATIENCE_SECONDS, "the worker is connected again")
    worker.kill_child(sig=signal.SIGCONT)

    scene.wait_for("after_effect", "A1", count=starts)
    scene.wait_empty()
    assert starts == len(scene.starts("A1"))


def test_body_whose_connection_is_cut_runs_twice_on_plain_celery(scene, cutter):
    """The control."""
    scene.announcements.hold("before_effect")
    scene.worker("plain", concurrency=2, env={apps.BROKER_URL: cutter.url})
    scene.send("A1", kind="plain")
    scene.wait_for("before_effect", "A1")

    cutter.cut()

    scene.wait_for("before_effect", "A1", count=2)
