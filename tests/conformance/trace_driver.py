"""
A tiny world in which the steps of a trace are taken one by one, with the real parts where the rules live.

Real are: `Gate`, `decide`, the store of records, the store of letters, `ask_outside`, `Safe.checkpoint`, the `Keeper`
of each worker, the headers of copies, and what a replay sends and refuses. Played are: the broker (a queue, unacked
messages by tag, the visibility timeout), the pool's children (a phase each), the outside (effects, and requests that
land although their sender died), and time.

    "A: unknown (claim lapsed), goes to verify"  ->  the slot A asks its gate, and does what the answer says

A step says what would happen in a world without one of the rules. Here the rule is on, so the answer may be another
one; the world then follows the answer, and later steps about a run that is elsewhere by now raise `Impossible`.

Time stands still unless a step lets it pass. While it passes, every healthy worker renews each third of a lease, and a
request that is in flight lands at the latest when the quiet period after its sender's loss would end.
"""

import random
import re
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from celery_safeguards import headers as h
from celery_safeguards.admission.epoch import PublisherEpoch
from celery_safeguards.admission.gate import Ending, Gate, Hold
from celery_safeguards.admission.plan import Plan
from celery_safeguards.admission.starts import MemoryStartCounter
from celery_safeguards.clock import to_seconds
from celery_safeguards.conf import Settings
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.store import LetterNotOpen
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import LeaseLost, NotOurs, StoreUnavailable
from celery_safeguards.headers import Lineage
from celery_safeguards.ledger import decide as answers
from celery_safeguards.ledger.decide import Arrival
from celery_safeguards.ledger.record import Record, ResultForm, State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.burial import burial_fields, letter_of, write_letter
from celery_safeguards.pipeline.copies import lineage_headers
from celery_safeguards.pipeline.safe import KeyedSafe
from celery_safeguards.pipeline.verifying import ask_outside
from celery_safeguards.policy import DidNotHappen, Happened, Idempotent, Policy, Safeguards, Verify
from celery_safeguards.replay.plan import Work, refusal, replay_message
from celery_safeguards.retry.policy import RetryPolicy
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.keeper import Keeper
from tests.conformance.stores import LEASE_SECONDS

AFTER_SECONDS = 10.0
RETRY_SECONDS = 10.0
QUEUE, UNHELD = -1, -2
BODY = {"go", "checked", "sent", "landed", "ambiguous", "failed"}
PAST_SEND = {"sent", "landed", "ambiguous"}
TASK = "shop.charge"
MAX_STEPS_TO_REST = 400
NOTHING = Ending(ResultForm.STORED, "null")
LOST = {"kind": "worker_lost", "error": "killed"}


class Impossible(Exception):
    """Raised when a step is about a run, a message or a letter that is not where the trace has it."""


class UnknownStep(Exception):
    """Raised when no rule of the driver reads a step: it must not be passed over in silence."""


@dataclass(eq=False, slots=True)
class Message:
    """A message at the broker; `place` is QUEUE, UNHELD or the slot whose delivery it is."""

    tid: int
    tag: int
    headers: dict
    place: int = QUEUE
    due: float = 0.0


@dataclass(eq=False, slots=True)
class Request:
    """A call of the outside that is on its way."""

    sent_at: float
    sender: "Run | None"


@dataclass(eq=False, slots=True)
class Run:
    """One delivery in a worker's slot."""

    slot: int
    worker: int
    phase: str = "idle"
    message: Message | None = None
    owner: str = ""
    gate: Gate | None = None
    hold: Hold | None = None
    record: Record | None = None
    """As last answered: what a copy's headers are made from, or the dying record whose burial is under way."""
    is_helper: bool = False
    wait_seconds: float = 0.0

    @property
    def lineage(self):
        return Lineage.from_headers(self.message.headers)


@dataclass(slots=True)
class Parts:
    """What a mutation replaces; by default everything is as shipped."""

    gate: type = Gate
    store: object = lambda store: store
    letters: object = lambda letters: letters
    ledger: dict = field(default_factory=dict)
    off: frozenset = frozenset()


class Link:
    """A worker's way to the store, which can be cut; the store itself is behind it, unchanged."""

    def __init__(self, store):
        self._store = store
        self.is_cut = False

    def __getattr__(self, name):
        if name == "lease_seconds":
            return self._store.lease_seconds

        def call(*args, **options):
            if self.is_cut:
                raise StoreUnavailable("the way to the store is cut")
            return getattr(self._store, name)(*args, **options)

        return call


class World:
    """
    Everything a trace speaks of.

    Attributes:
        broken: the invariants that were broken, in order, each with the step.
        effects: how often the outside effect took place.

    """

    def __init__(self, under_test, trace, parts=None):
        self.parts = parts or Parts()
        self._under_test = under_test
        self._clock = under_test.clock
        self._store = self.parts.store(under_test.store)
        self._letters = self.parts.letters(under_test.letters)
        self._trace = trace
        self._plan = self._made_plan()
        self.broken = []
        self._step = "start"
        # The broker.
        self.messages = []
        self._tags = 0
        # The outside.
        self.effects = 0
        self._requests = []
        # The workers.
        self._workers = sorted(set(trace["workers_of_slots"]))
        self.runs = [Run(slot, worker) for slot, worker in enumerate(trace["workers_of_slots"])]
        self._links = {worker: Link(self._store) for worker in self._workers}
        self._stalled = set()
        self._keepers = {worker: self._made_keeper(worker) for worker in self._workers}
        self._owners = 0
        # Ghosts: for the invariants only.
        self._holder = None
        self._starts = self._unsettled = self._replays = 0
        self._risk = self._ended = self._was_wiped = False
        self._series = set()
        self._due = 0.0
        epoch = self._store.view().epoch
        for tid in range(trace["messages"]):
            headers = {"id": f"t-{tid}", "task": TASK, h.KEY: "charge:7", h.FINGERPRINT: "f", h.EPOCH: epoch}
            self._publish(tid, headers)

    def _made_plan(self):
        def run(order_id): ...

        chosen = {"verify": Verify(self._find, after_seconds=AFTER_SECONDS)}.get(self._trace["policy"])
        policy = Policy.of(
            Safeguards(
                idempotent=Idempotent(
                    "charge:{order_id}",
                    on_unknown=chosen or self._trace["policy"],
                    on_dead=self._trace["on_dead"],
                    quiet_seconds=AFTER_SECONDS,
                ),
                retry=RetryPolicy(attempts=self._trace["attempts"]),
                max_lost_starts=self._trace["max_lost_starts"],
            )
        )
        plan = Plan.of(TASK, run, policy)
        self._policy = policy
        return replace(plan, ledger=replace(plan.ledger, **self.parts.ledger))

    def _made_keeper(self, worker):
        link = self._links[worker]
        wiring = Wiring(
            settings=Settings(lease_seconds=LEASE_SECONDS),
            admission=link,
            starts=MemoryStartCounter(),
            letters=self._letters,
            spool=None,
            epoch=PublisherEpoch(link, self._clock),
            clock=self._clock,
            chance=random.Random(0),
        )
        self._wiring = wiring
        keeper = Keeper(wiring, None if "parent_kills" in self.parts.off else self._killed_by_parent)
        keeper.tick()  # a worker is heard before its first message
        return keeper

    # ----------------------------------------------------------------------------------------------- steps of a trace

    def take(self, text):
        """Take one step; return whether it took place as it is written."""
        self._step = text
        for pattern, method, fixed in STEPS:
            found = pattern.fullmatch(text)
            if found:
                given = {name: value for name, value in found.groupdict().items() if value is not None}
                if "slot" in given:
                    given["run"] = self.runs["ABCDEF".index(given.pop("slot"))]
                happened = getattr(self, method)(**given, **fixed)
                self._check()
                return happened is not False
        raise UnknownStep(text)

    def receive(self, run, tid):
        message = next((m for m in self.messages if m.tid == int(tid) and m.place == QUEUE), None)
        self._require(run.phase == "idle" and message is not None)
        self._deliver(run, message)

    def admit(self, run, expected):
        """Ask the gate and carry out its answer; `expected` is what the trace has."""
        self._require(run.phase == "received")
        answered = self._admit(run)
        if answered == "verify is not due" and expected in {"go", "verify"} and not self._requests:
            # In a trace time is order: nothing is in flight, so the quiet period may be over by now.
            self.pass_time(run.wait_seconds + 1)
            run.phase = "received"
            answered = self._admit(run)
        if answered == "verify" and expected == "go":
            # With `verify` also a clean retry asks first; a trace knows only the doubtful ones.
            self.verify(run)
            answered = self._act_on_verdict(run) if run.phase == "no" else "yes"
        return answered == expected

    def verify(self, run, answer=None):
        self._require(run.phase == "verify")
        verdict = ask_outside(self._plan.idempotent.verify, {}, run.gate.key.key)
        run.phase = "yes" if isinstance(verdict, Happened) else "no"
        return answer in {None, type(verdict).__name__}

    def act_on_verdict(self, run, expected=None):
        self._require(run.phase == "no")
        return expected in {None, self._act_on_verdict(run)}

    def checkpoint(self, run, *, passed, acked=False):
        self._require(run.phase == "go")
        return self._checkpoint(run) == passed and (not acked or "fenced_drop" in self.parts.off)

    def send(self, run):
        self._require(run.phase in {"go", "checked"})
        if run.phase == "go" and "self_fence" not in self.parts.off and not self._checkpoint(run):
            return False
        run.phase = "sent"
        self._requests.append(Request(self._now(), run))
        return True

    def land(self, run):
        self._require(run.phase == "sent")
        self._land(next(request for request in self._requests if request.sender is run))

    def time_out(self, run):
        self._require(run.phase == "sent")
        self._orphan(run)
        self._risk = True
        run.phase = "ambiguous"

    def lose_answer(self, run):
        self._require(run.phase == "landed")
        self._risk = True
        run.phase = "ambiguous"

    def fail(self, run):
        self._require(run.phase == "go")
        run.phase = "failed"

    def settle(self, run, expected=None):
        self._require(run.phase in {"landed", "yes", "failed", "ambiguous"})
        before, was_body = self._under_test.store.read(run.gate.key), run.phase in BODY
        try:
            settled = self._settle(run)
        except NotOurs:
            self._fenced(run)
            return expected == "fenced"
        if before is not None and (before.owner, before.fence) != (run.hold.record.owner, run.hold.record.fence):
            self._breaks("I4")
        self._unsettled -= was_body
        return expected in {None, settled}

    def settle_in_vain(self, run, acked=False):
        """The store does not answer until the lease is over: the outcome is not known to anybody."""
        self._require(run.phase in {"landed", "yes", "failed", "ambiguous"})
        self._lose(run)
        if acked and "ack_needs_outcome" in self.parts.off:
            self._ack(run)
            return True
        self._drop(run)
        return not acked

    def settle_unheard(self, run):
        """The outcome is written, and the answer never arrives."""
        self.settle(run)
        self._require(run.phase != "idle")
        self._drop(run)

    def publish_retry(self, run, early=False):
        self._require(run.phase == "publish" and not early)
        self._copy(run, RETRY_SECONDS)
        run.phase = "ack"

    def fail_to_publish(self, run, acked=False):
        self._require(run.phase in {"publish", "defer"})
        if acked and "keep_original" in self.parts.off:
            self._ack(run)
            return True
        self._drop(run)
        return not acked

    def defer(self, run, acked_first=False):
        self._require(run.phase == "defer")
        if acked_first and "publish_before_ack" in self.parts.off:
            message = run.message
            self._ack(run)
            run.message, run.phase = message, "late copy"
            return True
        self._copy(run, run.wait_seconds)
        run.phase = "ack"
        return not acked_first

    def publish_late(self, run):
        self._require(run.phase == "late copy")
        self._copy(run, 0.0)
        run.message, run.phase = None, "idle"

    def write_letter(self, run, expected):
        self._require(run.phase == "bury")
        before = self._letter()
        write_letter(self._wiring, letter_of(run.record))
        run.phase = "lettered"
        return expected == ("exists" if before == self._letter() else "written")

    def finish_burial(self, run, final):
        self._require(run.phase == "lettered")
        before = self._under_test.store.read(run.gate.key)
        try:
            buried = run.gate.finish_burial(run.record)
        except NotOurs:
            if run.is_helper:
                run.phase = "received"
            else:
                self._fenced(run)
            return False
        if before is not None and (before.owner, before.fence) != (run.record.owner, run.record.fence):
            self._breaks("I4")
        run.phase = "received" if run.is_helper and "dying_then_dead" not in self.parts.off else "ack"
        return final in {"", buried.state}

    def ack(self, run):
        self._require(run.phase == "ack")
        self._ack(run)

    def kill_child(self, run):
        self._require(run.phase not in {"idle", "child died"})
        self._lose(run)
        run.phase = "child died"

    def parent_marks(self, run):
        self._require(run.phase == "child died")
        self._keepers[run.worker].forget(run.owner)
        if "parent_marks_lost" in self.parts.off:
            self._under_test.expire(run.gate.key)
        else:
            self._links[run.worker].mark_lost(run.gate.key, run.owner, LOST)
        self._restore(run.message)
        self._freed(run)

    def kill_worker(self, worker):
        mine = self._busy(worker)
        self._require(mine)
        self._stalled.discard(self._index(worker))
        for run in mine:
            self._lose(run)
            self._drop(run)
        self._keepers[self._index(worker)] = self._made_keeper(self._index(worker))

    def stall(self, worker):
        self._require(self._busy(worker))
        self._stalled.add(self._index(worker))

    def wake(self, worker):
        self._require(self._index(worker) in self._stalled)
        self._stalled.discard(self._index(worker))
        self._keepers[self._index(worker)].tick()

    def cut_broker(self, worker):
        """A cut restores what no running request holds, and every delivery of a slot is held by one."""
        self._require(self._busy(worker))
        return False

    def time_out_visibility(self, tid):
        lost = [m for m in self.messages if m.tid == int(tid) and self._is_unrenewed(m)]
        self._require(lost)
        self._restore(lost[0])

    def lapse(self):
        record = self._record()
        self._require(record is not None and record.state is State.IN_PROGRESS)
        if record.is_live(self._store.view().now_us):
            self.pass_time(LEASE_SECONDS + 1)
        record = self._record()
        return record is None or not record.is_live(self._store.view().now_us)

    def come_due(self):
        record = self._record()
        self._require(record is not None and record.state is State.RETRY_DUE)
        self.pass_time(max(RETRY_SECONDS, AFTER_SECONDS) + 1)

    def land_orphan(self):
        self._land(self._orphan_request())

    def lose_orphan(self):
        self._requests.remove(self._orphan_request())

    def write_back(self, run):
        self._keepers[run.worker].tick()
        return self._record() is not None

    def expire_done(self):
        record = self._record()
        self._require(record is not None and record.state is State.DONE)
        # Retention is a week: it outlives every message of the key.
        self._require("retention" in self.parts.off)
        self._under_test.expire(self.runs[0].gate.key)

    def lose_sibling(self):
        """There is no counter that a sibling could share."""
        return False

    def click(self):
        """A person looks at the letter, finds out what they must, and clicks."""
        letter = self._letter()
        self._require(letter is not None)
        verdict = None
        if refusal(letter, self._work()) is not None:
            self.pass_time(AFTER_SECONDS + 1)
            verdict = Happened() if self.effects else DidNotHappen()
            self._require(refusal(letter, self._work(), verdict) is None)
        try:
            self._letters.begin_replay(letter.id, f"t-{2 + self._replays}", "ana", self._clock.wall_seconds())
        except LetterNotOpen:
            return False
        self._replays += 1
        self._verdict = verdict
        return True

    def publish_replay(self, noted=True):
        letter = self._letter()
        self._require(letter is not None and letter.state == "replaying")
        message = replay_message(letter, letter.replay_task_id, self._verdict, at_seconds=self._clock.wall_seconds())
        self._publish(int(message.task_id.removeprefix("t-")), dict(message.headers))
        if noted:
            self._letters.mark_replayed(letter.id, letter.replay_task_id, self._clock.wall_seconds())

    def leave(self):
        """The store is away from every worker for longer than a lease."""
        for link in self._links.values():
            link.is_cut = True
        self.pass_time(LEASE_SECONDS + 1)
        for link in self._links.values():
            link.is_cut = False

    def wipe(self):
        # Each claim has been renewed once: a parent knows nothing of a claim that is younger than its last tick.
        self._tick()
        self._under_test.wipe()
        self._was_wiped = True
        self._starts = self._unsettled = 0
        self._series = set()
        self._risk = self._risk or bool(self.effects or self._requests)

    def stop_short(self):
        """The model's search ended here: no way led on."""

    # ------------------------------------------------------------------------------------------------ time, and rest

    def pass_time(self, seconds):
        """Let time pass in thirds of a lease; healthy workers renew in each."""
        while seconds > 0:
            some = min(seconds, LEASE_SECONDS / 3)
            seconds -= some
            shift_us = self._under_test.advance(some)
            for message in self.messages:
                if shift_us and message.headers.get(h.SEEN):
                    message.headers[h.SEEN] = max(1, message.headers[h.SEEN] - shift_us)
            for request in tuple(self._requests):
                if self._now() - request.sent_at > AFTER_SECONDS:
                    self._land(request)
            self._tick()

    def rest(self):
        """Let faults cease and go on until nothing is left to do; a world that cannot rest breaks I2."""
        self._step = "rest"
        for worker in tuple(self._stalled):
            self._stalled.discard(worker)
            self._keepers[worker].tick()
        for _ in range(MAX_STEPS_TO_REST):
            if self.is_resolved():
                return
            if not self._go_on():
                self.pass_time(LEASE_SECONDS / 3)
            self._check()
        self._breaks("I2")

    def is_resolved(self):
        """Whether all is over: done with no letter open, or buried with an open letter."""
        if self.messages or self._requests or any(run.phase != "idle" for run in self.runs):
            return False
        record, letter = self._record(), self._letter()
        if record is None:
            return self._ended or (self._was_wiped and letter is not None and letter.state == "open")
        if record.state is State.DONE:
            return letter is None or letter.state == "closed"
        return record.state in {State.DEAD, State.QUARANTINED} and letter is not None and letter.state == "open"

    def _go_on(self):
        """Take the next step of whatever is not at rest; return whether there was one."""
        for run in self.runs:
            if run.phase != "idle":
                step, options = _NEXT[run.phase]
                getattr(self, step)(run, **options)
                return True
        letter = self._letter()
        if letter is not None and letter.state == "replaying" and not any(m.tid >= 2 for m in self.messages):
            self.publish_replay()
            return True
        for message in self.messages:
            if self._is_unrenewed(message):
                self._restore(message)
                return True
            if message.place == QUEUE and message.due <= self._now():
                self._deliver(self.runs[0], message)
                return True
        return False

    # ------------------------------------------------------------------------------------------------------- inside

    def _admit(self, run):  # noqa: C901, PLR0911, PLR0912 - an answer a case
        """Return what the gate's answer comes to, as one word, after carrying it out."""
        while True:
            question = run.gate.ask()
            run.record, decision = question.record, question.decision
            match decision:
                case answers.Go():
                    hold = question.hold or run.gate.start(decision, run.record)
                    if hold is not None:
                        self._claimed(run, hold)
                        self._began(run, is_new=decision.new_series or question.record is None, seen=question.record)
                        return "go"
                case answers.Resume():
                    run.hold, run.phase = question.hold, "go"
                    return "go"
                case answers.Ask():
                    hold = run.gate.hold_to_ask(decision, run.record)
                    if hold is not None:
                        self._claimed(run, hold)
                        run.phase = "verify"
                        return "verify"
                case answers.Accept():
                    if run.gate.accept(run.record, NOTHING) is not None:
                        return self._finished(run, "accepted")
                case answers.Return():
                    return self._finished(run, "done")
                case answers.Defer():
                    if "busy_defers" in self.parts.off:
                        run.phase = "ack"
                        return "busy"
                    until_us = decision.until_us
                    run.wait_seconds = to_seconds(until_us - question.view.now_us) if until_us else 1.0
                    run.phase = "defer"
                    return {"in progress elsewhere": "busy"}.get(decision.reason, decision.reason)
                case answers.Bury():
                    fields = burial_fields(self._composed(run, decision, run.record))
                    hold = run.gate.hold_to_bury(decision, run.record, fields)
                    if hold is not None:
                        self._claimed(run, hold)
                        return self._buries(run, hold.record, decision)
                case answers.FinishBurial():
                    run.phase, run.is_helper = "bury", True
                    return "dying"
                case answers.Fail(refused):
                    if refused is not answers.Refusal.STORED:
                        self._letters.add_note(run.record.letter_id, f"a publication was {refused}", None)
                    run.phase = "ack"
                    return "attach"

    def _act_on_verdict(self, run):
        """Carry out "it did not happen", and return what it comes to."""
        decision = answers.start("verified", run.hold.record, self._plan.ledger, verified=True)
        if isinstance(decision, answers.Bury):
            return self._bury_held(run, decision, effect_possible=decision.effect_possible)
        try:
            run.hold = run.gate.start_held(run.hold)
        except NotOurs:
            self._fenced(run)
            return "fenced"
        self._began(run, is_new=run.hold.record.attempt == 1)
        return "go"

    def _settle(self, run):
        """Write the outcome that the phase stands for, as the pipeline does."""
        if run.phase in {"landed", "yes"}:
            run.record = run.gate.settle_done(run.hold, NOTHING)
            self._finished(run, "done")
            return "done"
        on_unknown = self._plan.ledger.on_unknown
        effect = run.phase == "ambiguous" or on_unknown is answers.OnUnknown.VERIFY
        quarantined = effect and on_unknown is answers.OnUnknown.QUARANTINE
        if quarantined or run.hold.record.attempt >= self._trace["attempts"]:
            final = State.QUARANTINED if quarantined else State.DEAD
            bury = answers.Bury(FailureKind.DEPENDENCY_TIMEOUT, final, "last attempt", effect_possible=effect)
            return self._bury_held(run, bury, effect_possible=effect)
        doubt = {"effect_possible": effect, "ambiguous": run.phase == "ambiguous"}
        run.record = run.gate.settle_retry(run.hold, RETRY_SECONDS, {"kind": "transient"}, **doubt)
        self._due = self._now() + RETRY_SECONDS
        run.phase = "publish"
        return "retry"

    def _bury_held(self, run, bury, *, effect_possible):
        fields = burial_fields(self._composed(run, bury, run.hold.record))
        dying = run.gate.settle_dying(run.hold, bury.final, fields, effect_possible=effect_possible)
        return self._buries(run, dying, bury)

    def _buries(self, run, dying, bury):
        is_poison = "without an outcome" in bury.reason
        if is_poison and self._unsettled < self._trace["max_lost_starts"]:
            self._breaks("I6")
        if bury.final is State.QUARANTINED and run.lineage.letter_id and self._trace["policy"] == "quarantine":
            self._breaks("I9")
        run.record, run.phase, run.is_helper = dying, "bury", False
        return "poison" if is_poison else "bury"

    def _composed(self, run, bury, record):
        return Letter(
            id=(record.letter_id if record else "") or "l-1",
            task=TASK,
            task_id=f"t-{run.message.tid}",
            wire=WireMessage(body=b"[[7], {}, {}]", headers=dict(run.message.headers)),
            kind=bury.kind,
            effect_possible=bury.effect_possible,
            reason=bury.reason,
            first_seen_seconds=self._clock.wall_seconds(),
            last_failed_seconds=self._clock.wall_seconds(),
            key="charge:7",
            scope=TASK,
        )

    def _finished(self, run, word):
        record = self._under_test.store.read(run.gate.key) or run.record
        if record.letter_id:
            self._letters.close(record.letter_id, word)
        self._ended = True
        run.phase = "ack"
        return word

    def _claimed(self, run, hold):
        """Note a claim, and whether it was taken from somebody who is alive and in its body."""
        holder = self._holder
        if holder is not None and holder is not run and holder.phase in BODY:
            if holder.worker not in self._stalled:
                self._breaks("I3")
            self._risk = self._risk or holder.phase in PAST_SEND
        self._holder, run.hold = run, hold

    def _began(self, run, *, is_new, seen=None):
        if seen is not None and seen.state is State.RETRY_DUE and self._now() < self._due:
            self._breaks("I7")
        if is_new:
            if run.message.tid in self._series:
                self._breaks("I7")
            self._series.add(run.message.tid)
            self._starts = self._unsettled = 0
        self._starts += 1
        self._unsettled += 1
        run.phase = "go"

    def _checkpoint(self, run):
        """Return whether the body may go on; a worker that is cut off reaches no store."""
        link = self._links[run.worker]
        link.is_cut = run.worker in self._stalled
        delivery = SimpleNamespace(
            task=SimpleNamespace(name=TASK, time_limit=3_600.0, soft_time_limit=None, policy=self._policy),
            request=SimpleNamespace(id=run.message.headers["id"], timelimit=None),
            key=run.gate.key.key,
            gate=run.gate,
            wiring=self._wiring,
        )
        safe = KeyedSafe(delivery, run.hold)
        try:
            safe.checkpoint()
        except LeaseLost:
            self._fenced(run)
            return False
        finally:
            link.is_cut = False
        run.hold, run.phase = safe.hold, "checked"
        return True

    def _fenced(self, run):
        if "fenced_drop" in self.parts.off:
            self._ack(run)
        else:
            self._drop(run)

    def _killed_by_parent(self, slot):
        self.kill_child(self.runs[slot])

    def _deliver(self, run, message):
        self._owners += 1
        lineage = Lineage.from_headers(message.headers)
        message.place = run.slot
        run.message, run.phase, run.owner = message, "received", f"{'ABCDEF'[run.slot]}{self._owners}"
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
        run.gate = self.parts.gate(self._links[run.worker], self._plan, lineage.key, arrival, self._clock)
        self._keepers[run.worker].keep(run.owner, run.gate.key, arrival.task_id, run.slot, 3_600.0)

    def _publish(self, tid, headers, due=0.0):
        self._tags += 1
        self.messages.append(Message(tid, self._tags, headers, due=due))

    def _copy(self, run, delay_seconds):
        headers = {**run.message.headers, **lineage_headers(run.record, run.gate.key.key, run.lineage)}
        self._publish(run.message.tid, headers, self._now() + delay_seconds)

    def _restore(self, message):
        """Back to the queue, under a fresh tag: the old owner's ack must not reach it."""
        if "fresh_tag" in self.parts.off:
            message.place = QUEUE
            return
        self._tags += 1
        message.place, message.tag = QUEUE, self._tags
        for run in self.runs:
            if run.message is message:
                # Whoever held it still has its delivery, of a message that is not its own any more.
                run.message = replace(message, tag=0, place=UNHELD, headers=dict(message.headers))

    def _ack(self, run):
        tag = run.message.tag
        if any(m.tag == tag and m.place >= 0 and m.place != run.slot for m in self.messages):
            self._breaks("I5")
        self.messages = [m for m in self.messages if m.tag != tag]
        self._freed(run)

    def _drop(self, run):
        run.message.place = UNHELD
        self._freed(run)

    def _freed(self, run):
        self._keepers[run.worker].forget(run.owner)
        run.phase, run.message = "idle", None

    def _is_unrenewed(self, message):
        return message.place == UNHELD or (message.place >= 0 and self.runs[message.place].worker in self._stalled)

    def _lose(self, run):
        self._risk = self._risk or run.phase in PAST_SEND
        if run.phase == "sent":
            self._orphan(run)

    def _orphan(self, run):
        for request in self._requests:
            if request.sender is run:
                # Its longest life is counted from the loss of its sender.
                request.sender, request.sent_at = None, self._now()

    def _orphan_request(self):
        orphan = next((request for request in self._requests if request.sender is None), None)
        self._require(orphan is not None)
        return orphan

    def _land(self, request):
        self._requests.remove(request)
        self.effects += 1
        if request.sender is not None:
            request.sender.phase = "landed"

    def _find(self):
        return Happened() if self.effects else DidNotHappen()

    def _tick(self):
        for worker in self._workers:
            if worker not in self._stalled:
                self._keepers[worker].tick()

    def _busy(self, worker):
        return [run for run in self.runs if run.worker == self._index(worker) and run.phase != "idle"]

    def _index(self, worker):
        return int(worker) - 1

    def _now(self):
        return self._clock.monotonic_seconds()

    def _record(self):
        return self._under_test.store.read(self._plan.record_key("charge:7"))

    def _letter(self):
        letters = self._letters.list().letters
        if len(letters) > 1:
            self._breaks("I2")
        return letters[0] if letters else None

    def _work(self):
        return Work(now_us=self._store.view().now_us, record=self._record(), policy=self._policy)

    def _require(self, is_possible):
        if not is_possible:
            raise Impossible(self._step)

    def _breaks(self, invariant):
        self.broken.append((invariant, self._step))

    def _check(self):
        if self.effects > 1 and (self._trace["policy"] != "rerun" or not self._risk):
            self._breaks("I1")
        if not (self._ended or self.messages or self._letter() is not None):
            self._breaks("I2")
        if self._unsettled > self._trace["max_lost_starts"]:
            self._breaks("I6")
        if self._starts > self._trace["attempts"]:
            self._breaks("I7")
        if self._replays > 1:
            self._breaks("I8")


_NEXT = {
    "received": ("admit", {"expected": None}),
    "verify": ("verify", {}),
    "no": ("act_on_verdict", {}),
    "yes": ("settle", {}),
    "go": ("send", {}),
    "checked": ("send", {}),
    "sent": ("land", {}),
    "landed": ("settle", {}),
    "failed": ("settle", {}),
    "ambiguous": ("settle", {}),
    "publish": ("publish_retry", {}),
    "defer": ("defer", {}),
    "late copy": ("publish_late", {}),
    "bury": ("write_letter", {"expected": "written"}),
    "lettered": ("finish_burial", {"final": ""}),
    "ack": ("ack", {}),
    "child died": ("parent_marks", {}),
}
_WHO = r"(?P<slot>[A-F]): "
_WORKER = r"worker (?P<worker>\d)"
STEPS = [
    (re.compile(pattern), method, fixed)
    for pattern, method, fixed in (
        (_WHO + r"receives message (?P<tid>\d)", "receive", {}),
        (_WHO + r"verified: go", "act_on_verdict", {"expected": "go"}),
        (_WHO + r"verified: poison, record dying", "act_on_verdict", {"expected": "poison"}),
        (_WHO + r"verified: no attempts left, record dying", "act_on_verdict", {"expected": "bury"}),
        (_WHO + r"(no record|retry|new series after \w+|unknown \(.+\), rerun): go", "admit", {"expected": "go"}),
        (_WHO + r"admit says busy(, to be acked away)?", "admit", {"expected": "busy"}),
        (_WHO + r"admit says retry not due", "admit", {"expected": "retry not due"}),
        (_WHO + r"admit finds dying, finishes the burial", "admit", {"expected": "dying"}),
        (_WHO + r"admit finds \w+, attaches", "admit", {"expected": "attach"}),
        (_WHO + r"admit returns the stored result", "admit", {"expected": "done"}),
        (_WHO + r"unknown \(.+\), goes to verify", "admit", {"expected": "verify"}),
        (_WHO + r"unknown \(.+\), still inside the quiet period", "admit", {"expected": "verify is not due"}),
        (_WHO + r"unknown \(.+\), record \w+", "admit", {"expected": "bury"}),
        (_WHO + r"(no record|retry): poison, record dying", "admit", {"expected": "poison"}),
        (_WHO + r"verify says (?P<answer>\w+)", "verify", {}),
        (_WHO + r"checkpoint passed", "checkpoint", {"passed": True}),
        (_WHO + r"checkpoint before the call: fenced, dropped locally", "checkpoint", {"passed": False}),
        (_WHO + r"checkpoint before the call: fenced, but acks", "checkpoint", {"passed": False, "acked": True}),
        (_WHO + r"sends the outside call", "send", {}),
        (_WHO + r"the effect lands", "land", {}),
        (_WHO + r"call times out, request in flight", "time_out", {}),
        (_WHO + r"the answer is lost after the effect", "lose_answer", {}),
        (_WHO + r"body fails cleanly", "fail", {}),
        (_WHO + r"settles done", "settle", {"expected": "done"}),
        (_WHO + r"settles retry after \w+", "settle", {"expected": "retry"}),
        (_WHO + r"settles \w+(, last attempt)?, record \w+", "settle", {"expected": "bury"}),
        (_WHO + r"settle \w+: fenced, .+", "settle", {"expected": "fenced"}),
        (_WHO + r"settle fails until the lease ends, dropped", "settle_in_vain", {}),
        (_WHO + r"settle fails, acked all the same", "settle_in_vain", {"acked": True}),
        (_WHO + r"settle applied, its answer lost, dropped", "settle_unheard", {}),
        (_WHO + r"publishes the retry", "publish_retry", {}),
        (_WHO + r"publishes the retry before it settles", "publish_retry", {"early": True}),
        (_WHO + r"publish fails, original kept", "fail_to_publish", {}),
        (_WHO + r"publish fails, acked all the same", "fail_to_publish", {"acked": True}),
        (_WHO + r"defers, publishes the copy", "defer", {}),
        (_WHO + r"defers, acks before the copy is out", "defer", {"acked_first": True}),
        (_WHO + r"publishes the copy", "publish_late", {}),
        (_WHO + r"writes the letter", "write_letter", {"expected": "written"}),
        (_WHO + r"the letter exists already", "write_letter", {"expected": "exists"}),
        (_WHO + r"record (?P<final>\w*)", "finish_burial", {}),
        (_WHO + r"acks", "ack", {}),
        (_WHO + r"child killed", "kill_child", {}),
        (_WHO + r"parent marks the claim and requeues", "parent_marks", {}),
        (_WHO + r"renewal finds no record, writes the claim back", "write_back", {}),
        (_WORKER + r" killed", "kill_worker", {}),
        (_WORKER + r" freezes or is cut off, renews nothing", "stall", {}),
        (_WORKER + r" renews again", "wake", {}),
        (_WORKER + r": broker connection cut, its messages restored, bodies run on", "cut_broker", {}),
        (r"visibility timeout: message (?P<tid>\d) restored", "time_out_visibility", {}),
        (r"the lease lapses", "lapse", {}),
        (r"the retry becomes due", "come_due", {}),
        (r"a request in flight lands", "land_orphan", {}),
        (r"a request in flight is lost", "lose_orphan", {}),
        (r"the done record expires", "expire_done", {}),
        (r"a sibling under the same root id loses a start", "lose_sibling", {}),
        (r"a person clicks replay", "click", {}),
        (r"replay published", "publish_replay", {}),
        (r"replay published, crash before it is noted", "publish_replay", {"noted": False}),
        (r"the store is away for longer than a lease", "leave", {}),
        (r"the store loses its data", "wipe", {}),
        (r"\(no way from here to a resolved state\)", "stop_short", {}),
    )
]
