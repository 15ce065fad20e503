"""
Steps of a burial: dying, then the letter, then dead.
"""

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import NotOurs
from celery_safeguards.pipeline.burial import burial_fields, letter_of, write_letter
from tests.conformance.trace.leaving import fence_out
from tests.conformance.trace.runs import KEY, TASK
from tests.conformance.trace.sentences import of_run


def put_letter(world, run, expected):
    """Write the letter of the dying record; `expected` is whether the trace has it written, or found."""
    world.require(run.phase == "bury")
    before = world.letter()
    write_letter(world.workers.wiring_of(run), letter_of(run.record), tasks={})
    run.phase = "lettered"
    return expected == ("exists" if before == world.letter() else "written")


def finish_burial(world, run, final):
    """Write the final state, if the burial is still the record's."""
    world.require(run.phase == "lettered")
    before = world.record_of(run.gate.key)
    try:
        buried = run.gate.finish_burial(run.record)
    except NotOurs:
        if run.is_helper:
            run.phase = "received"
        else:
            fence_out(world, run)
        return False
    world.invariants.writes(before, run.record)
    run.phase = "received" if run.is_helper and not world.is_off("dying_then_dead") else "ack"
    return final in {"", buried.state}


def bury_held(world, run, bury, *, effect_possible):
    """Write a burial under the claim that a run holds, and return the word for it."""
    fields = burial_fields(composed(world, run, bury, run.hold.record))
    dying = run.gate.settle_dying(run.hold, bury.final, fields, effect_possible=effect_possible)
    return is_buried(world, run, dying, bury)


def is_buried(world, run, dying, bury):
    """Go on with the burial of a record that is dying, and return the word for it."""
    is_poison = "without an outcome" in bury.reason
    world.invariants.buries(run, bury, is_poison=is_poison)
    run.record, run.phase, run.is_helper = dying, "bury", False
    return "poison" if is_poison else "bury"


def composed(world, run, bury, record):
    """Return the letter that a burial writes."""
    return Letter(
        id=(record.letter_id if record else "") or "l-1",
        task=TASK,
        task_id=f"t-{run.message.tid}",
        wire=WireMessage(body=b"[[7], {}, {}]", headers=dict(run.message.headers)),
        kind=bury.kind,
        effect_possible=bury.effect_possible,
        reason=bury.reason,
        first_seen_seconds=world.clock.wall_seconds(),
        last_failed_seconds=world.clock.wall_seconds(),
        key=KEY,
        scope=TASK,
    )


SENTENCES = (
    of_run(r"writes the letter", put_letter, expected="written"),
    of_run(r"the letter exists already", put_letter, expected="exists"),
    of_run(r"record (?P<final>\w*)", finish_burial),
)
