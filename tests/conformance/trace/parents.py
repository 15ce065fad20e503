"""
Steps of the main processes and their children: killed, marked lost, frozen, back again.
"""

from tests.conformance.trace.leaving import drop, free, lose
from tests.conformance.trace.sentences import of_run, of_worker

LOST = {"kind": "worker_lost", "error": "killed"}


def kill_child(world, run):
    """Kill a child in whatever it does."""
    world.require(run.phase not in {"idle", "child died"})
    lose(world, run)
    run.phase = "child died"


def mark(world, run):
    """Mark the claim of a dead child lost, and put its message back."""
    world.require(run.phase == "child died")
    world.workers.keepers[run.worker].forget(run.owner)
    if world.is_off("parent_marks_lost"):
        world.under_test.expire(run.gate.key)
    else:
        world.workers.links[run.worker].mark_lost(run.gate.key, run.owner, LOST)
    world.broker.restore(run.message, world.runs)
    free(world, run)


def write_back(world, run):
    """Renew a claim whose record the store has lost."""
    world.workers.keepers[run.worker].tick()
    return world.record() is not None


def kill_worker(world, worker):
    """Kill a worker with all its children; another one starts in its place."""
    mine, number = _busy(world, worker), _number(worker)
    world.require(mine)
    world.workers.stalled.discard(number)
    for run in mine:
        lose(world, run)
        drop(world, run)
    world.workers.start(number)


def stall(world, worker):
    """Freeze a worker, or cut it off."""
    world.require(_busy(world, worker))
    world.workers.stalled.add(_number(worker))


def wake(world, worker):
    """Let a stalled worker go on."""
    world.require(_number(worker) in world.workers.stalled)
    world.workers.wake(_number(worker))


def cut_broker(world, worker):
    """A cut restores what no running request holds, and every delivery of a slot is held by one."""
    world.require(_busy(world, worker))
    return False


def _busy(world, worker):
    return [run for run in world.runs if run.worker == _number(worker) and run.phase != "idle"]


def _number(worker):
    """Traces count workers from 1."""
    return int(worker) - 1


SENTENCES = (
    of_run(r"child killed", kill_child),
    of_run(r"parent marks the claim and requeues", mark),
    of_run(r"renewal finds no record, writes the claim back", write_back),
    of_worker(r" killed", kill_worker),
    of_worker(r" freezes or is cut off, renews nothing", stall),
    of_worker(r" renews again", wake),
    of_worker(r": broker connection cut, its messages restored, bodies run on", cut_broker),
)
