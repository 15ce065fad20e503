"""
Steps of a child after its body: the outcome, the copy that follows it, and the acknowledgement.
"""

from celery_safeguards.admission.hold import Ending
from celery_safeguards.errors import NotOurs
from celery_safeguards.ledger import decide as answers
from celery_safeguards.ledger.record import ResultForm, State
from celery_safeguards.outcome import FailureKind
from tests.conformance.trace.burying import bury_held
from tests.conformance.trace.leaving import acknowledge, drop, fence_out, finish, lose, publish_copy
from tests.conformance.trace.runs import BODY, RETRY_SECONDS
from tests.conformance.trace.sentences import of_run

NOTHING = Ending(ResultForm.STORED, "null")
ENDED = {"landed", "yes", "failed", "ambiguous"}


def settle(world, run, expected=None):
    """Write the outcome; `expected` is what the trace has."""
    world.require(run.phase in ENDED)
    before, was_body = world.record_of(run.gate.key), run.phase in BODY
    try:
        settled = _settled(world, run)
    except NotOurs:
        fence_out(world, run)
        return expected == "fenced"
    world.invariants.writes(before, run.hold.record)
    world.invariants.settles(was_body=was_body)
    return expected in {None, settled}


def settle_in_vain(world, run, acked=False):
    """The store does not answer until the lease is over: the outcome is not known to anybody."""
    world.require(run.phase in ENDED)
    lose(world, run)
    if acked and world.is_off("ack_needs_outcome"):
        acknowledge(world, run)
        return True
    drop(world, run)
    return not acked


def settle_unheard(world, run):
    """The outcome is written, and the answer never arrives."""
    settle(world, run)
    world.require(run.phase != "idle")
    drop(world, run)


def publish_retry(world, run, early=False):
    """Publish the retry's copy, after the settle."""
    world.require(run.phase == "publish" and not early)
    publish_copy(world, run, RETRY_SECONDS)
    run.phase = "ack"


def fail_to_publish(world, run, acked=False):
    """The broker does not take the copy."""
    world.require(run.phase in {"publish", "defer"})
    if acked and world.is_off("keep_original"):
        acknowledge(world, run)
        return True
    drop(world, run)
    return not acked


def defer(world, run, acked_first=False):
    """Put the message off: its copy is out before it is acknowledged."""
    world.require(run.phase == "defer")
    if acked_first and world.is_off("publish_before_ack"):
        message = run.message
        acknowledge(world, run)
        run.message, run.phase = message, "late copy"
        return True
    publish_copy(world, run, run.wait_seconds)
    run.phase = "ack"
    return not acked_first


def publish_late(world, run):
    """Publish a copy whose original is gone already."""
    world.require(run.phase == "late copy")
    publish_copy(world, run, 0.0)
    run.message, run.phase = None, "idle"


def ack(world, run):
    """Acknowledge what may be acknowledged."""
    world.require(run.phase == "ack")
    acknowledge(world, run)


def _settled(world, run):
    """Write the outcome that the phase stands for, as the pipeline does, and return the word for it."""
    if run.phase in {"landed", "yes"}:
        run.record = run.gate.settle_done(run.hold, NOTHING)
        finish(world, run, "done")
        return "done"
    on_unknown = world.plan.ledger.on_unknown
    effect = run.phase == "ambiguous" or on_unknown is answers.OnUnknown.VERIFY
    quarantined = effect and on_unknown is answers.OnUnknown.QUARANTINE
    if quarantined or run.hold.record.attempt >= world.trace["attempts"]:
        final = State.QUARANTINED if quarantined else State.DEAD
        bury = answers.Bury(FailureKind.DEPENDENCY_TIMEOUT, final, "last attempt", effect_possible=effect)
        return bury_held(world, run, bury, effect_possible=effect)
    doubt = {"effect_possible": effect, "ambiguous": run.phase == "ambiguous"}
    run.record = run.gate.settle_retry(run.hold, RETRY_SECONDS, {"kind": "transient"}, **doubt)
    world.invariants.due = world.now() + RETRY_SECONDS
    run.phase = "publish"
    return "retry"


SENTENCES = (
    of_run(r"settles done", settle, expected="done"),
    of_run(r"settles retry after \w+", settle, expected="retry"),
    of_run(r"settles \w+(, last attempt)?, record \w+", settle, expected="bury"),
    of_run(r"settle \w+: fenced, .+", settle, expected="fenced"),
    of_run(r"settle fails until the lease ends, dropped", settle_in_vain),
    of_run(r"settle fails, acked all the same", settle_in_vain, acked=True),
    of_run(r"settle applied, its answer lost, dropped", settle_unheard),
    of_run(r"publishes the retry", publish_retry),
    of_run(r"publishes the retry before it settles", publish_retry, early=True),
    of_run(r"publish fails, original kept", fail_to_publish),
    of_run(r"publish fails, acked all the same", fail_to_publish, acked=True),
    of_run(r"defers, publishes the copy", defer),
    of_run(r"defers, acks before the copy is out", defer, acked_first=True),
    of_run(r"publishes the copy", publish_late),
    of_run(r"acks", ack),
)
