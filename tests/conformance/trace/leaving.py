"""
How a delivery leaves its slot: acknowledged, dropped locally, fenced out, or lost with its process.
"""

from celery_safeguards.pipeline.copies import lineage_headers
from tests.conformance.trace.broker import UNHELD


def acknowledge(world, run):
    """Tell the broker that it may forget the message."""
    if world.broker.remove(run.message.tag, run.slot):
        world.invariants.breaks("I5")
    free(world, run)


def drop(world, run):
    """Free the slot and tell the broker nothing."""
    run.message.place = UNHELD
    free(world, run)


def fence_out(world, run):
    """Leave a run whose claim is another's."""
    if world.is_off("fenced_drop"):
        acknowledge(world, run)
    else:
        drop(world, run)


def lose(world, run):
    """Lose what a run knew; its request goes on without it."""
    world.invariants.loses(run)
    if run.phase == "sent":
        world.outside.orphan(run, world.now())


def free(world, run):
    """Give the slot back."""
    world.workers.keepers[run.worker].forget(run.owner)
    run.phase, run.message = "idle", None


def publish_copy(world, run, delay_seconds):
    """Publish the message anew, with what the record says."""
    headers = {**run.message.headers, **lineage_headers(run.record, run.gate.key.key, run.lineage)}
    world.broker.publish(run.message.tid, headers, world.now() + delay_seconds)


def finish(world, run, word):
    """Find a record final: close its letter, and return the word for it."""
    record = world.record_of(run.gate.key) or run.record
    if record.letter_id:
        world.letters.close(record.letter_id, word)
    world.invariants.has_ended = True
    run.phase = "ack"
    return word
