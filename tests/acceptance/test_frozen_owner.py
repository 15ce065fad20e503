"""
A whole worker is frozen for longer than its lease and wakes up in the middle of its body, as after a pause of its
virtual machine; meanwhile another worker has taken the work over.

    t0 A's body, before its charge   t1 A is frozen   t2 A's lease and the visibility timeout end
    t3 B asks the gateway: nothing was charged   t4 B charges   t5 A wakes

The safeguard against a second charge at t5 is the checkpoint directly before the call.
"""

import pytest

from tests.acceptance.faults_app import Scene
from tests.support.announcements import is_said
from tests.support.waiting import wait_until

pytestmark = pytest.mark.acceptance
TAKEN_OVER_SECONDS = 15


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
def freeze_in(scene, announcements):
    """Freeze the only worker when it has come to a gate of order A1; returns it, the message's id and a second one."""

    def freeze(point, task):
        frozen = scene.worker(concurrency=1)
        announcements.hold(point, worker=frozen.name)
        task_id = scene.send(task, "A1")
        announcements.wait_for(is_said(point, order_id="A1"), 10)
        frozen.freeze()
        return frozen, task_id, scene.worker(concurrency=1)

    return freeze


def test_frozen_owner_that_wakes_before_its_charge_stops_at_the_checkpoint(scene, freeze_in, gateway, announcements):
    """Two charges, and the acknowledgement of the one would take the other's message off the broker."""
    announcements.hold("after_charge")
    frozen, task_id, other = freeze_in("before_charge", "charge")
    other.wait_for(is_said("after_charge", order_id="A1"), TAKEN_OVER_SECONDS)
    owner = scene.record("charge", "A1").owner

    frozen.thaw_children()
    announcements.open("before_charge")
    frozen.wait_for(is_said("ended", task_id=task_id, outcome="fenced"), 10)
    frozen.thaw()
    kept, holder = scene.messages(), scene.record("charge", "A1").owner
    announcements.open("after_charge")

    other.wait_for(is_said("ended", task_id=task_id, outcome="succeeded"), 10)
    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert frozen.wait_for(is_said("lease_lost", task_id=task_id), 1)
    assert sum(kept) >= 1, "the other's message was acknowledged"
    assert owner == holder
    assert 1 == len(charged)
    assert {repr(charged[0]["id"])} == scene.results(task_id)


def test_frozen_owner_that_wakes_after_its_charge_is_refused(scene, freeze_in, gateway, announcements):
    """What it settles would overwrite what another worker has found out since; the customer is charged once."""
    frozen, task_id, other = freeze_in("after_charge", "charge")
    other.wait_for(is_said("ended", task_id=task_id, outcome="deduplicated"), TAKEN_OVER_SECONDS)
    before = scene.record("charge", "A1")

    frozen.thaw_children()
    announcements.open("after_charge")
    frozen.wait_for(is_said("ended", task_id=task_id, outcome="fenced"), 10)
    frozen.thaw()

    scene.wait_quiet()
    charged = gateway.charges("A1")
    assert [True] == [said["happened"] for said in announcements.heard("verify")]
    assert 1 == len(charged)
    assert {repr(charged[0]["id"])} == scene.results(task_id)
    assert before == scene.record("charge", "A1")


def test_frozen_owner_without_a_checkpoint_that_wakes_before_its_charge_charges_twice(
    scene, freeze_in, gateway, announcements
):
    """
    The limit: nothing stands between a body that wakes and its call but a checkpoint of its own.

    Who wakes first is chance: here it is the child. What its body returns is refused, so that the record holds the
    charge that the second owner made.
    """
    frozen, task_id, other = freeze_in("before_charge", "charge_unchecked")
    other.wait_for(is_said("ended", task_id=task_id, outcome="succeeded"), TAKEN_OVER_SECONDS)
    kept = gateway.charges("A1")[0]["id"]

    frozen.thaw_children()
    announcements.open("before_charge")
    frozen.wait_for(is_said("ended", task_id=task_id, outcome="fenced"), 10)
    frozen.thaw()

    assert 2 == len(gateway.charges("A1"))
    assert {repr(kept)} == scene.results(task_id)


def test_main_process_that_wakes_first_ends_the_child_whose_claim_is_anothers(scene, freeze_in, gateway, announcements):
    """A body without a checkpoint would charge as soon as it runs again."""
    frozen, task_id, other = freeze_in("before_charge", "charge_unchecked")
    other.wait_for(is_said("ended", task_id=task_id, outcome="succeeded"), TAKEN_OVER_SECONDS)
    child = announcements.heard(is_said("before_charge", order_id="A1"))[0]["pid"]

    frozen.thaw_main()
    wait_until(lambda: child not in frozen.group_pids(), 10, "the child has ended")
    frozen.thaw()
    announcements.open("before_charge")

    scene.wait_quiet()
    assert 1 == len(gateway.charges("A1"))


def test_frozen_worker_charges_twice_without_safeguards(scene, freeze_in, gateway, announcements):
    """The control: a redelivery charges, and so does the worker that wakes."""
    frozen, _task_id, _other = freeze_in("before_charge", "charge_plain")
    gateway.wait_for_charges("A1", TAKEN_OVER_SECONDS)

    frozen.thaw()
    announcements.open("before_charge")

    assert 2 == len(gateway.wait_for_charges("A1", 10, count=2))
