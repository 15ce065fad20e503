"""
The way to rest after a trace: with all faults over, whatever is under way goes on until nothing is left to do.
"""

from celery_safeguards.ledger.record import State
from tests.conformance.trace import admitting, body, burying, parents, replaying, settling
from tests.conformance.trace.broker import QUEUE

NEXT = {
    "received": (admitting.admit, {"expected": None}),
    "verify": (admitting.verify, {}),
    "no": (admitting.act_on_verdict, {}),
    "yes": (settling.settle, {}),
    "go": (body.send, {}),
    "checked": (body.send, {}),
    "sent": (body.land, {}),
    "landed": (settling.settle, {}),
    "failed": (settling.settle, {}),
    "ambiguous": (settling.settle, {}),
    "publish": (settling.publish_retry, {}),
    "defer": (settling.defer, {}),
    "late copy": (settling.publish_late, {}),
    "bury": (burying.put_letter, {"expected": "written"}),
    "lettered": (burying.finish_burial, {"final": ""}),
    "ack": (settling.ack, {}),
    "child died": (parents.mark, {}),
}


def is_resolved(world):
    """Whether all is over: done with no letter open, or buried with an open letter."""
    if world.broker.messages or world.outside.requests or any(run.phase != "idle" for run in world.runs):
        return False
    record, letter = world.record(), world.letter()
    is_open = letter is not None and letter.state == "open"
    if record is None:
        return world.invariants.has_ended or (world.invariants.was_wiped and is_open)
    if record.state is State.DONE:
        return letter is None or letter.state == "closed"
    return record.state in {State.DEAD, State.QUARANTINED} and is_open


def go_on(world):
    """Take the next step of whatever is not at rest; return whether there was one."""
    for run in world.runs:
        if run.phase != "idle":
            act, options = NEXT[run.phase]
            act(world, run, **options)
            return True
    letter, messages = world.letter(), world.broker.messages
    if letter is not None and letter.state == "replaying" and not any(message.tid >= 2 for message in messages):
        replaying.publish_replay(world)
        return True
    for message in messages:
        if world.is_unrenewed(message):
            world.broker.restore(message, world.runs)
            return True
        if message.place == QUEUE and message.due <= world.now():
            admitting.deliver(world, world.runs[0], message)
            return True
    return False
