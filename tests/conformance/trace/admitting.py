"""
Steps of a child up to its body: it receives a message, asks the gate, asks the outside, and does what the answer says.
"""

from celery_safeguards.clock import to_seconds
from celery_safeguards.errors import NotOurs
from celery_safeguards.headers import Lineage
from celery_safeguards.ledger import decide as answers
from celery_safeguards.ledger.decide import Arrival
from celery_safeguards.pipeline.burial import burial_fields
from celery_safeguards.pipeline.verifying import ask_outside
from celery_safeguards.policy import Happened
from tests.conformance.trace.burying import bury_held, composed, is_buried
from tests.conformance.trace.leaving import fence_out, finish
from tests.conformance.trace.runs import SLOTS
from tests.conformance.trace.sentences import of_run
from tests.conformance.trace.settling import NOTHING


def receive(world, run, tid):
    """Take a message from the queue."""
    message = world.broker.waiting(int(tid))
    world.require(run.phase == "idle" and message is not None)
    deliver(world, run, message)


def deliver(world, run, message):
    """Put a message into a slot, under a new owner."""
    world.owners += 1
    lineage = Lineage.from_headers(message.headers)
    message.place = run.slot
    run.message, run.phase, run.owner = message, "received", f"{SLOTS[run.slot]}{world.owners}"
    run.hold = run.record = None
    run.is_helper = False
    arrival = Arrival(
        task_id=message.headers["id"],
        owner=run.owner,
        fingerprint=lineage.fingerprint or "",
        seen=lineage.seen,
        epoch=lineage.epoch,
        letter_id=lineage.letter_id,
        verdict=lineage.verdict,
    )
    run.gate = world.parts.gate(world.workers.links[run.worker], world.plan, lineage.key, arrival, world.clock)
    world.workers.keepers[run.worker].keep(run.owner, run.gate.key, arrival.task_id, run.slot, 3_600.0)


def admit(world, run, expected):
    """Ask the gate and carry out its answer; `expected` is what the trace has."""
    world.require(run.phase == "received")
    answered = _asked(world, run)
    if answered == "verify is not due" and expected in {"go", "verify"} and not world.outside.requests:
        # In a trace time is order: nothing is in flight, so the quiet period may be over by now.
        world.pass_time(run.wait_seconds + 1)
        run.phase = "received"
        answered = _asked(world, run)
    if answered == "verify" and expected == "go":
        # With `verify` also a clean retry asks first; a trace knows only the doubtful ones.
        verify(world, run)
        answered = _started(world, run) if run.phase == "no" else "yes"
    return answered == expected


def verify(world, run, answer=None):
    """Ask the outside."""
    world.require(run.phase == "verify")
    verdict = ask_outside(world.plan.idempotent.verify, {}, run.gate.key.key)
    run.phase = "yes" if isinstance(verdict, Happened) else "no"
    return answer in {None, type(verdict).__name__}


def act_on_verdict(world, run, expected=None):
    """Carry out what the outside has said."""
    world.require(run.phase == "no")
    return expected in {None, _started(world, run)}


def _asked(world, run):  # noqa: C901, PLR0911, PLR0912 - an answer a case
    """Return what the gate's answer comes to, as one word, after carrying it out."""
    while True:
        question = run.gate.ask()
        run.record, decision = question.record, question.decision
        match decision:
            case answers.Go():
                hold = question.hold or run.gate.start(decision, run.record)
                if hold is not None:
                    _claim(world, run, hold)
                    _begin(world, run, is_new=decision.new_series or question.record is None, seen=question.record)
                    return "go"
            case answers.Resume():
                run.hold, run.phase = question.hold, "go"
                return "go"
            case answers.Ask():
                hold = run.gate.hold_to_ask(decision, run.record)
                if hold is not None:
                    _claim(world, run, hold)
                    run.phase = "verify"
                    return "verify"
            case answers.Accept():
                if run.gate.accept(run.record, NOTHING) is not None:
                    return finish(world, run, "accepted")
            case answers.Return():
                return finish(world, run, "done")
            case answers.Defer():
                if world.is_off("busy_defers"):
                    run.phase = "ack"
                    return "busy"
                until_us = decision.until_us
                run.wait_seconds = to_seconds(until_us - question.view.now_us) if until_us else 1.0
                run.phase = "defer"
                return {"in progress elsewhere": "busy"}.get(decision.reason, decision.reason)
            case answers.Bury():
                fields = burial_fields(composed(world, run, decision, run.record))
                hold = run.gate.hold_to_bury(decision, run.record, fields)
                if hold is not None:
                    _claim(world, run, hold)
                    return is_buried(world, run, hold.record, decision)
            case answers.FinishBurial():
                run.phase, run.is_helper = "bury", True
                return "dying"
            case answers.Fail(refused):
                if refused is not answers.Refusal.STORED:
                    world.letters.add_note(run.record.letter_id, f"a publication was {refused}", None)
                run.phase = "ack"
                return "attach"


def _started(world, run):
    """Carry out "it did not happen", and return what it comes to."""
    decision = answers.start("verified", run.hold.record, world.plan.ledger, verified=True)
    if isinstance(decision, answers.Bury):
        return bury_held(world, run, decision, effect_possible=decision.effect_possible)
    try:
        run.hold = run.gate.start_held(run.hold)
    except NotOurs:
        fence_out(world, run)
        return "fenced"
    _begin(world, run, is_new=run.hold.record.attempt == 1)
    return "go"


def _claim(world, run, hold):
    world.invariants.claims(run, world.workers.stalled)
    run.hold = hold


def _begin(world, run, *, is_new, seen=None):
    world.invariants.begins(run, world.now(), is_new=is_new, seen=seen)
    run.phase = "go"


SENTENCES = (
    of_run(r"receives message (?P<tid>\d)", receive),
    of_run(r"(no record|retry|new series after \w+|unknown \(.+\), rerun): go", admit, expected="go"),
    of_run(r"admit says busy(, to be acked away)?", admit, expected="busy"),
    of_run(r"admit says retry not due", admit, expected="retry not due"),
    of_run(r"admit finds dying, finishes the burial", admit, expected="dying"),
    of_run(r"admit finds \w+, attaches", admit, expected="attach"),
    of_run(r"admit returns the stored result", admit, expected="done"),
    of_run(r"unknown \(.+\), goes to verify", admit, expected="verify"),
    of_run(r"unknown \(.+\), still inside the quiet period", admit, expected="verify is not due"),
    of_run(r"unknown \(.+\), record \w+", admit, expected="bury"),
    of_run(r"(no record|retry): poison, record dying", admit, expected="poison"),
    of_run(r"verify says (?P<answer>\w+)", verify),
    of_run(r"verified: go", act_on_verdict, expected="go"),
    of_run(r"verified: poison, record dying", act_on_verdict, expected="poison"),
    of_run(r"verified: no attempts left, record dying", act_on_verdict, expected="bury"),
)
