"""
The store is away, loses an answer, or forgets, while the broker works: each test has a proxy between its workers and
the store, and cuts that alone.
"""

import pytest

from tests.acceptance.faults_app import LEASE_SECONDS, Scene
from tests.support.announcements import is_said
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.acceptance


@pytest.fixture
def way_to_store(redis_url):
    """The workers' way to the store; the test itself asks the store directly."""
    with Cutter(redis_url) as cutter:
        yield cutter


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
def worker(scene, way_to_store):
    """A worker with two children."""
    return scene.worker(store_url=way_to_store.url)


def test_keyed_work_waits_for_its_store_and_runs_by_itself_when_it_is_back(
    worker, scene, way_to_store, gateway, announcements
):
    """
    Work that ran without its record could run again unseen; work that was dropped would never be done.

    celery/celery#7792: a refusal in a signal receiver is logged and swallowed, and the task runs all the same.
    """
    way_to_store.refuse()
    task_id = scene.send("charge", "A1")
    scene.wait_ended("deferred", task_id=task_id)
    waited = announcements.heard("waits")
    started = announcements.heard("before_charge")
    way_to_store.allow()

    scene.wait_ended("succeeded", task_id=task_id)
    scene.wait_quiet()
    assert waited
    assert [] == started
    assert 1 == len(gateway.charges("A1"))
    assert worker.is_running()


def test_work_that_chose_to_run_unprotected_runs_and_may_run_twice(worker, scene, way_to_store, gateway):
    """The price of `run_unprotected`: two publications of one order are two charges while the store is away."""
    way_to_store.refuse()

    for task_id in [scene.send("charge_unprotected", "A1") for _ in range(2)]:
        scene.announcements.wait_for(is_said("task_postrun", task_id=task_id, state="SUCCESS"), 10)

    assert 2 == len(gateway.charges("A1"))


def test_task_without_a_key_does_not_need_the_store(worker, scene, way_to_store, gateway, announcements):
    """A store that is away would stop work that never asked for it."""
    way_to_store.refuse()

    task_id = scene.send("charge_default", "A1")

    scene.wait_ended("succeeded", task_id=task_id)
    assert 1 == len(gateway.charges("A1"))
    assert [] == announcements.heard("waits")


def test_outcome_is_written_when_the_store_is_back_within_the_lease(
    worker, scene, way_to_store, gateway, announcements
):
    """A short outage at the end of a body would leave a finished payment in doubt."""
    announcements.hold("after_charge", order_id="A1")
    task_id = scene.send("charge", "A1")
    announcements.wait_for("after_charge", 10)

    way_to_store.refuse()
    announcements.open("after_charge")
    announcements.wait_for("waits", 5, count=2)
    way_to_store.allow()

    scene.wait_ended("succeeded", task_id=task_id)
    scene.wait_quiet()
    assert 1 == len(gateway.charges("A1"))
    assert [] == announcements.heard("verify")


@pytest.mark.parametrize("script", ["admit", "settle"])
def test_answer_of_the_store_that_is_lost_on_the_way_changes_nothing(
    worker, scene, way_to_store, gateway, announcements, script
):
    """The store has done what was asked, and who asked again would be taken for a stranger to its own claim."""
    # The server knows the scripts from then on: what is lost is an answer, not the wish to be sent the script.
    scene.wait_ended("succeeded", task_id=scene.send("charge", "A0"))
    announcements.hold("after_charge")
    if script == "settle":
        task_id = scene.send("charge", "A1")
        announcements.wait_for(is_said("after_charge", order_id="A1"), 10)
    way_to_store.lose_next_answer(containing=b"order:")
    if script == "admit":
        task_id = scene.send("charge", "A1")
    announcements.open("after_charge")

    scene.wait_ended("succeeded", task_id=task_id)
    scene.wait_quiet()
    assert 1 == way_to_store.lost_answers
    assert ["succeeded"] == [outcome for outcome, _reason in scene.ended(task_id=task_id)]
    assert 1 == len(gateway.charges("A1"))
    assert 0 == scene.record("charge", "A1").lost_starts


def test_outcome_that_cannot_be_written_within_the_lease_is_asked_for_later(
    worker, scene, way_to_store, gateway, announcements
):
    """A payment that was made, and whose record could not be written, would be made again or given up."""
    announcements.hold("after_charge", order_id="A1")
    task_id = scene.send("charge", "A1")
    announcements.wait_for("after_charge", 10)
    wait_until(lambda: scene.record("charge", "A1").rev > 1, 5, "the claim was renewed")

    way_to_store.refuse()
    announcements.open("after_charge")
    announcements.wait_for(lambda said: said["event"] == "lease_lost" or said.get("outcome") == "fenced", 8)
    kept = sum(scene.messages())
    way_to_store.allow()

    scene.wait_ended("deduplicated", 15, task_id=task_id)
    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert 1 <= kept
    assert 1 == len(charged)
    assert {repr(charged[0]["id"])} == scene.results(task_id)
    assert [True] == [said["happened"] for said in announcements.heard("verify")]


def test_letter_goes_to_the_spool_while_its_store_is_away(scene, way_to_store, announcements, tmp_path):
    """A message that failed for good in an outage would be gone with nothing to tell of it."""
    spool = tmp_path / "spool"
    spool.mkdir()
    scene.worker(store_url=way_to_store.url, safeguards_spool_directory=str(spool))
    announcements.hold("before_refusal")
    task_id = scene.send("refuse", "A1")
    announcements.wait_for("before_refusal", 10)

    way_to_store.refuse()
    announcements.open("before_refusal")
    announcements.wait_for(is_said("letter", task_id=task_id), 10)
    scene.wait_quiet()
    spooled = list(spool.glob("*.letter"))
    way_to_store.allow()

    wait_until(scene.letters, 10, "the letter is in its store")
    wait_until(lambda: not list(spool.iterdir()), 5, "the spool is empty")
    assert 1 == len(spooled)
    assert [task_id] == [letter.task_id for letter in scene.letters()]


def test_message_whose_letter_cannot_be_written_is_kept(worker, scene, way_to_store, announcements):
    """Without a spool, acknowledging it would lose it; it comes back until its letter is written."""
    announcements.hold("before_refusal")
    task_id = scene.send("refuse", "A1")
    announcements.wait_for("before_refusal", 10)

    way_to_store.refuse()
    announcements.open("before_refusal")
    scene.wait_ended("fenced", task_id=task_id)
    kept = scene.messages()
    way_to_store.allow()

    scene.wait_ended("dead_lettered", task_id=task_id)
    scene.wait_quiet()
    assert (0, 1) == kept
    assert [task_id] == [letter.task_id for letter in scene.letters()]


def test_store_that_was_wiped_under_a_body_admits_nobody_beside_it(
    worker, scene, redis_client, namespace, gateway, announcements
):
    """A Redis that forgets would let a second publication charge beside the first, which is still at it."""
    announcements.hold("before_charge")
    first = scene.send("charge", "A1")
    announcements.wait_for("before_charge", 10)
    wait_until(lambda: scene.record("charge", "A1").rev > 1, 5, "the claim was renewed")
    fence = scene.record("charge", "A1").fence

    redis_client.delete(*redis_client.scan_iter(match=f"{{sg:{namespace}:*"))
    # One is stamped with the store's old epoch, as by a web process that has not noticed; one with the new.
    others = [scene.send("charge", "A1"), scene.send("charge", "A1", app=scene.publisher())]
    for each in others:
        scene.wait_ended("deferred", task_id=each)
    wait_until(lambda: scene.record("charge", "A1"), LEASE_SECONDS, "the claim was written back")
    restored = scene.record("charge", "A1").fence
    announcements.open("before_charge")

    scene.wait_ended("succeeded", task_id=first)
    for each in others:
        scene.wait_ended("deduplicated", task_id=each)
    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert 1 == len(charged)
    assert [{repr(charged[0]["id"])}] * 3 == [scene.results(each) for each in (first, *others)]
    assert fence == restored
