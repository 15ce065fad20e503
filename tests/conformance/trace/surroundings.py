"""
Steps of broker, store, outside and time: what happens to everybody at once.
"""

from celery_safeguards.ledger.record import State
from tests.conformance.stores import LEASE_SECONDS
from tests.conformance.trace.runs import AFTER_SECONDS, RETRY_SECONDS
from tests.conformance.trace.sentences import sentence


def time_out_visibility(world, tid):
    """Restore a message that nobody renews."""
    lost = [message for message in world.broker.messages if message.tid == int(tid) and world.is_unrenewed(message)]
    world.require(lost)
    world.broker.restore(lost[0], world.runs)


def lapse(world):
    """Let the lease of the claim run out."""
    record = world.record()
    world.require(record is not None and record.state is State.IN_PROGRESS)
    if record.is_live(world.store.view().now_us):
        world.pass_time(LEASE_SECONDS + 1)
    record = world.record()
    return record is None or not record.is_live(world.store.view().now_us)


def come_due(world):
    """Let the retry's time come."""
    record = world.record()
    world.require(record is not None and record.state is State.RETRY_DUE)
    world.pass_time(max(RETRY_SECONDS, AFTER_SECONDS) + 1)


def land_orphan(world):
    """Let a request land whose sender is gone."""
    world.outside.land(_orphan(world))


def lose_orphan(world):
    """Let a request vanish whose sender is gone."""
    world.outside.requests.remove(_orphan(world))


def expire_done(world):
    """Let the record of what is done expire before its time."""
    record = world.record()
    world.require(record is not None and record.state is State.DONE)
    # Retention is a week: it outlives every message of the key.
    world.require(world.is_off("retention"))
    world.under_test.expire(world.runs[0].gate.key)


def lose_sibling(_world):
    """There is no counter that a sibling could share."""
    return False


def leave(world):
    """The store is away from every worker for longer than a lease."""
    with world.workers.cut_off(world.workers.links):
        world.pass_time(LEASE_SECONDS + 1)


def wipe(world):
    """The store loses its data."""
    # Each claim has been renewed once: a parent knows nothing of a claim that is younger than its last tick.
    world.workers.tick()
    world.under_test.wipe()
    world.invariants.wiped(world.outside)


def stop_short(_world):
    """The model's search ended here: no way led on."""


def _orphan(world):
    orphan = world.outside.orphaned()
    world.require(orphan is not None)
    return orphan


SENTENCES = (
    sentence(r"visibility timeout: message (?P<tid>\d) restored", time_out_visibility),
    sentence(r"the lease lapses", lapse),
    sentence(r"the retry becomes due", come_due),
    sentence(r"a request in flight lands", land_orphan),
    sentence(r"a request in flight is lost", lose_orphan),
    sentence(r"the done record expires", expire_done),
    sentence(r"a sibling under the same root id loses a start", lose_sibling),
    sentence(r"the store is away for longer than a lease", leave),
    sentence(r"the store loses its data", wipe),
    sentence(r"\(no way from here to a resolved state\)", stop_short),
)
