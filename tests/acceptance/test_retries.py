"""
Retries by real workers against a gateway that is down, slow to answer for good, or asks to be left alone.
"""

import itertools
import threading

import pytest

from celery_safeguards.ledger.record import State
from tests.acceptance.faults_app import ODD, Scene
from tests.support.announcements import is_said

pytestmark = pytest.mark.acceptance


@pytest.fixture
def scene(redis_url, namespace, gateway, announcements, start_worker):
    """Broker and store on the session's server."""
    return Scene(
        broker_url=redis_url,
        namespace=namespace,
        gateway=gateway,
        announcements=announcements,
        start_worker=start_worker,
    )


@pytest.fixture
def worker(scene):
    """A worker with two children."""
    return scene.worker()


def test_gateway_that_refuses_connections_for_a_while_is_paid_once(worker, scene, gateway, announcements):
    """A restart of the gateway would fail payments that were never sent."""
    announcements.hold("begins", attempt=1)
    task_id = scene.send("pay", "A1")
    announcements.wait_for("begins", 10)

    gateway.inject("refuse", seconds=1)
    announcements.open("begins")

    scene.wait_ended("succeeded", task_id=task_id)
    attempts = [said["attempt"] for said in announcements.heard("begins")]
    assert list(range(1, len(attempts) + 1)) == attempts
    assert len(attempts) >= 2
    assert 1 == len(gateway.charges("A1"))


def test_retry_of_a_call_that_was_never_sent_does_not_wait_for_verify(worker, scene):
    """Nothing of a refused connection can land later, so the wait is for nothing: 30 s by default, at each retry."""
    task_id = scene.send("flaky_slowly_verified", "A1")

    scene.wait_ended("retried", task_id=task_id)
    after_it = scene.announcements.wait_for(is_said("ended", task_id=task_id), 10, count=2)

    assert ("succeeded", None) == (after_it["outcome"], after_it["reason"])


def test_answer_that_was_lost_after_the_charge_is_verified_not_repeated(worker, scene, gateway, announcements):
    """The customer would be charged a second time because the first answer did not arrive."""
    gateway.inject("drop", "A1")

    task_id = scene.send("pay", "A1")

    scene.wait_ended("deduplicated", task_id=task_id)
    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert 1 == len(announcements.heard("told"))
    assert 1 == len(charged)
    assert {repr(charged[0]["id"])} == scene.results(task_id)


def test_answer_that_was_lost_after_the_charge_waits_for_a_person_where_nobody_can_be_asked(worker, scene, gateway):
    """A guess either way would charge twice or not at all."""
    gateway.inject("drop", "A1")

    task_id = scene.send("pay_or_ask_a_person", "A1")

    scene.wait_ended("unknown", task_id=task_id)
    scene.wait_quiet()
    assert 1 == len(gateway.charges("A1"))
    assert [(task_id, True)] == [(letter.task_id, letter.effect_possible) for letter in scene.letters()]
    assert State.QUARANTINED == scene.record("pay_or_ask_a_person", "A1").state


def test_answer_that_was_lost_after_the_charge_charges_twice_without_a_key(worker, scene, gateway):
    """The control: a retry of what only seems to have failed."""
    gateway.inject("drop", "A1")

    scene.wait_ended("succeeded", task_id=scene.send("pay_unkeyed", "A1"))

    assert 2 == len(gateway.charges("A1"))


def test_clients_told_to_wait_come_back_spread_and_never_early(worker, scene, gateway, announcements):
    """All come back in the second they were told, and knock the gateway over (CERNDocumentServer/cds-videos#854)."""
    orders = [f"A{number}" for number in range(30)]
    gateway.inject("rate_limit", count=len(orders), retry_after=2.0)

    for order_id in orders:
        scene.send("pay", order_id)
    scene.wait_ended("succeeded", 20, count=len(orders))

    told = {said["order_id"]: said["at"] for said in announcements.heard("told")}
    back = {said["order_id"]: said["at"] for said in announcements.heard(is_said("begins", attempt=2))}
    waits = sorted(back[order_id] - told[order_id] for order_id in orders)
    assert sorted(orders) == sorted(charge["order_id"] for charge in gateway.ledger())
    assert waits[0] >= 2.0
    assert waits[-1] - waits[0] >= 0.5


def test_retry_keeps_route_priority_limits_expiry_and_headers(scene, namespace, announcements):
    """A retry that lost them overtakes the others, or is never bounded (celery/celery#5654, celery/celery#7523)."""
    other = f"{namespace}-other"
    scene.worker(queues=[namespace, other])

    task_id = scene.send(
        "flaky",
        "A1",
        kwargs={"times": 3},
        queue=other,
        priority=6,
        time_limit=50,
        soft_time_limit=40,
        expires=60,
        headers={"x_tenant": "acme"},
    )
    scene.wait_ended("succeeded", task_id=task_id)

    starts = [said["sent"] for said in announcements.heard("begins")]
    assert 4 == len(starts)
    assert starts[0]["expires"]
    assert [starts[0]["expires"]] * 4 == [sent["expires"] for sent in starts]
    assert [[50, 40]] * 4 == [sent["timelimit"] for sent in starts]
    assert ["acme"] * 4 == [sent["headers"]["x_tenant"] for sent in starts]
    assert [(other, 6)] * 4 == [
        (sent["delivery_info"]["routing_key"], sent["delivery_info"]["priority"]) for sent in starts
    ]


def test_retry_that_expired_is_revoked_and_leaves_its_key_free(worker, scene, gateway, announcements):
    """An order that came too late would block the next order of its key for ever (celery/celery#980)."""
    task_id = scene.send("flaky", "A1", kwargs={"times": 1, "countdown": 1.5}, expires=1)
    announcements.wait_for(is_said("revoked", task_id=task_id, expired=True), 10)

    second = scene.send("flaky", "A1", kwargs={"times": 1, "countdown": 1.5})

    scene.wait_ended("succeeded", task_id=second)
    scene.wait_quiet()
    assert [1, 2] == [said["attempt"] for said in announcements.heard("begins")]
    assert 1 == len(gateway.charges("A1"))


def test_retry_that_waits_in_a_worker_survives_its_kill(scene, gateway, announcements):
    """A retry that lies in the memory of a killed worker would never happen (celery/celery#1810)."""
    killed = scene.worker(concurrency=1)
    task_id = scene.send("flaky", "A1", kwargs={"countdown": 3})
    killed.wait_for(is_said("task_received", task_id=task_id), 10, count=2)

    killed.kill_all()
    scene.worker(concurrency=1)

    scene.wait_ended("succeeded", 15, task_id=task_id)
    scene.wait_quiet()
    assert [1, 2] == [said["attempt"] for said in announcements.heard("begins")]
    assert 1 == len(gateway.charges("A1"))


def test_retry_is_not_blocked_by_its_own_key(worker, scene, gateway, announcements):
    """A task that holds its key while it asks for a retry at once would lock itself out (celery-once PR#37)."""
    task_id = scene.send("flaky", "A1", kwargs={"times": 2, "countdown": 0})

    scene.wait_ended("succeeded", task_id=task_id)
    scene.wait_quiet()
    assert [1, 2, 3] == [said["attempt"] for said in announcements.heard("begins")]
    assert [] == [reason for _outcome, reason in scene.ended(task_id=task_id) if "in progress" in (reason or "")]
    assert 1 == len(gateway.charges("A1"))


def test_twenty_publishers_of_one_order_charge_once(worker, scene, gateway):
    """A double click, or a client that resends, would be several payments (celery-singleton#38)."""
    publishers, sent = 20, []
    together = threading.Barrier(publishers)

    def publish():
        together.wait()
        sent.append(scene.send("charge", "A1"))

    threads = [threading.Thread(target=publish) for _ in range(publishers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    scene.wait_ended("deduplicated", 20, count=publishers - 1)
    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert publishers == len(set(sent))
    assert 1 == len(charged)
    assert {repr(charged[0]["id"])} == set(itertools.chain.from_iterable(map(scene.results, sent)))


@pytest.mark.parametrize("odd", ODD)
def test_exception_that_cannot_leave_its_process_is_retried_and_ends_in_a_letter(worker, scene, odd):
    """It would kill the worker or hang the task (celery/celery#6990), and nobody would learn of the failure."""
    saved = scene.send("fail_oddly", odd, kwargs={"times": 1})
    buried = scene.send("fail_oddly", odd, kwargs={"times": 99})

    scene.wait_ended("succeeded", task_id=saved)
    scene.wait_ended("dead_lettered", task_id=buried)
    scene.wait_quiet()
    letters = scene.letters()
    assert [buried] == [letter.task_id for letter in letters]
    assert odd in letters[0].error_type
    assert worker.is_running()


@pytest.mark.parametrize(
    ("task", "error", "reported"),
    [
        ("flaky", "A1", "DeadLettered"),
        ("fail_oddly", "Unpicklable", "DeadLettered"),
        ("fail_oddly", "ConnectionRefusedError", "ConnectionRefusedError"),
    ],
    ids=["keyed", "unkeyed, cannot leave", "unkeyed"],
)
def test_retries_and_a_burial_are_one_event_in_sentry(scene, announcements, task, error, reported):
    """Three retries would page somebody three times (getsentry/sentry-python#252), or a burial would page nobody."""
    scene.worker(sentry=True)

    task_id = scene.send(task, error, kwargs={"times": 99})
    scene.wait_ended("dead_lettered", task_id=task_id)
    scene.wait_quiet()

    assert 4 == len(announcements.heard("begins"))
    assert 1 == len(announcements.heard("sentry"))
    # An error that names the letter is raised from the cause, so the event shows both.
    assert reported == announcements.heard("sentry")[0]["errors"][-1]


def test_deferrals_and_duplicates_are_no_events_in_sentry(scene, announcements):
    """What the safeguards do in order to keep an order would look like faults."""
    scene.worker(sentry=True)
    announcements.hold("before_charge")
    scene.send("charge", "A1")
    announcements.wait_for("before_charge", 10)

    duplicate = scene.send("charge", "A1")
    scene.wait_ended("deferred", task_id=duplicate)
    announcements.open("before_charge")
    scene.wait_ended("deduplicated", task_id=duplicate)
    scene.wait_quiet()

    assert [] == announcements.heard("sentry")
