"""
Steps of a body: its checkpoint, its call of the outside, and how that call or the body itself goes wrong.
"""

from types import SimpleNamespace

from celery_safeguards.errors import LeaseLost
from celery_safeguards.pipeline.safe import KeyedSafe
from tests.conformance.trace.leaving import fence_out
from tests.conformance.trace.runs import TASK
from tests.conformance.trace.sentences import of_run


def checkpoint(world, run, *, passed, acked=False):
    """Come to the checkpoint; `passed` is what the trace has."""
    world.require(run.phase == "go")
    return _may_go_on(world, run) == passed and (not acked or world.is_off("fenced_drop"))


def send(world, run):
    """Send the request, after a checkpoint."""
    world.require(run.phase in {"go", "checked"})
    if run.phase == "go" and not world.is_off("self_fence") and not _may_go_on(world, run):
        return False
    run.phase = "sent"
    world.outside.send(run, world.now())
    return True


def land(world, run):
    """Let the request have its effect, before its sender's eyes."""
    world.require(run.phase == "sent")
    world.outside.land_of(run)


def time_out(world, run):
    """Give up waiting for the answer."""
    world.require(run.phase == "sent")
    world.outside.orphan(run, world.now())
    world.invariants.is_risky = True
    run.phase = "ambiguous"


def lose_answer(world, run):
    """Have the effect and not learn of it."""
    world.require(run.phase == "landed")
    world.invariants.is_risky = True
    run.phase = "ambiguous"


def fail(world, run):
    """Fail before anything was sent."""
    world.require(run.phase == "go")
    run.phase = "failed"


def _may_go_on(world, run):
    """Return whether the body may go on; a worker that is cut off reaches no store."""
    delivery = SimpleNamespace(
        task=SimpleNamespace(name=TASK, time_limit=3_600.0, soft_time_limit=None, policy=world.policy),
        request=SimpleNamespace(id=run.message.headers["id"], timelimit=None),
        key=run.gate.key.key,
        gate=run.gate,
        wiring=world.workers.wiring_of(run),
    )
    safe = KeyedSafe(delivery, run.hold)
    with world.workers.cut_off(world.workers.stalled & {run.worker}):
        try:
            safe.checkpoint()
        except LeaseLost:
            fence_out(world, run)
            return False
    run.hold, run.phase = safe.hold, "checked"
    return True


SENTENCES = (
    of_run(r"checkpoint passed", checkpoint, passed=True),
    of_run(r"checkpoint before the call: fenced, dropped locally", checkpoint, passed=False),
    of_run(r"checkpoint before the call: fenced, but acks", checkpoint, passed=False, acked=True),
    of_run(r"sends the outside call", send),
    of_run(r"the effect lands", land),
    of_run(r"call times out, request in flight", time_out),
    of_run(r"the answer is lost after the effect", lose_answer),
    of_run(r"body fails cleanly", fail),
)
