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

In `trace/` each file of steps ends with the sentences that it reads:

    admitting  body  burying  settling    a child: up to its body, in it, and after it
    parents                               main processes, killed and frozen
    surroundings                          broker, store, outside and time, for everybody
    replaying                             a person at the letters
    broker  outside  workers  runs        who takes part
    invariants                            what must hold, and the ghosts that tell
"""

from dataclasses import replace

from celery_safeguards import headers as h
from celery_safeguards.admission.plan import Plan
from celery_safeguards.policy import Idempotent, Policy, Safeguards, Verify
from celery_safeguards.retry.policy import RetryPolicy
from tests.conformance.stores import LEASE_SECONDS
from tests.conformance.trace import admitting, body, burying, parents, replaying, resting, settling, surroundings
from tests.conformance.trace.broker import UNHELD, Broker
from tests.conformance.trace.invariants import Invariants
from tests.conformance.trace.outside import Outside
from tests.conformance.trace.runs import AFTER_SECONDS, KEY, SLOTS, TASK, Impossible, Parts, Run, UnknownStep
from tests.conformance.trace.workers import Workers

__all__ = ["Impossible", "Parts", "UnknownStep", "World"]

MAX_STEPS_TO_REST = 400
SENTENCES = [
    each for steps in (admitting, body, settling, burying, parents, surroundings, replaying) for each in steps.SENTENCES
]


class World:
    """
    Everything a trace speaks of.

    Attributes:
        broken: the invariants that were broken, in order, each with the step.
        effects: how often the outside effect took place.
        runs: the slots, in the order of their letters.

    """

    def __init__(self, under_test, trace, parts=None):
        self.parts = parts or Parts()
        self.trace = trace
        self.under_test = under_test
        self.clock = under_test.clock
        self.store = self.parts.store(under_test.store)
        self.letters = self.parts.letters(under_test.letters)
        self.outside = Outside()
        self.policy = self._made_policy()
        self.plan = self._made_plan()
        self.broker = Broker(gives_fresh_tags=not self.is_off("fresh_tag"))
        self.invariants = Invariants(trace)
        self.runs = [Run(slot, worker) for slot, worker in enumerate(trace["workers_of_slots"])]
        kill = None if self.is_off("parent_kills") else self._kill_child
        self.workers = Workers(sorted(set(trace["workers_of_slots"])), self.store, self.letters, self.clock, kill)
        self.owners = 0
        self.verdict = None
        epoch = self.store.view().epoch
        for tid in range(trace["messages"]):
            self.broker.publish(tid, {"id": f"t-{tid}", "task": TASK, h.KEY: KEY, h.FINGERPRINT: "f", h.EPOCH: epoch})

    @property
    def broken(self):
        return self.invariants.broken

    @property
    def effects(self):
        return self.outside.effects

    # -------------------------------------------------------------------------------------------- steps, time, and rest

    def take(self, text):
        """Take one step; return whether it took place as it is written."""
        self.invariants.step = text
        for sentence in SENTENCES:
            found = sentence.pattern.fullmatch(text)
            if found:
                given = {name: value for name, value in found.groupdict().items() if value is not None}
                if "slot" in given:
                    given["run"] = self.runs[SLOTS.index(given.pop("slot"))]
                happened = sentence.act(self, **given, **sentence.fixed)
                self._check()
                return happened is not False
        raise UnknownStep(text)

    def pass_time(self, seconds):
        """Let time pass in thirds of a lease; healthy workers renew in each."""
        while seconds > 0:
            some = min(seconds, LEASE_SECONDS / 3)
            seconds -= some
            shift_us = self.under_test.advance(some)
            for message in self.broker.messages:
                if shift_us and message.headers.get(h.SEEN):
                    message.headers[h.SEEN] = max(1, message.headers[h.SEEN] - shift_us)
            self.outside.land_overdue(self.now())
            self.workers.tick()

    def rest(self):
        """Let faults cease and go on until nothing is left to do; a world that cannot rest breaks I2."""
        self.invariants.step = "rest"
        for worker in tuple(self.workers.stalled):
            self.workers.wake(worker)
        for _ in range(MAX_STEPS_TO_REST):
            if self.is_resolved():
                return
            if not resting.go_on(self):
                self.pass_time(LEASE_SECONDS / 3)
            self._check()
        self.invariants.breaks("I2")

    def is_resolved(self):
        """Whether all is over: done with no letter open, or buried with an open letter."""
        return resting.is_resolved(self)

    # ------------------------------------------------------------------------------------------------ for the steps

    def require(self, is_possible):
        """Refuse a step that is about something that is elsewhere."""
        if not is_possible:
            raise Impossible(self.invariants.step)

    def is_off(self, rule):
        """Whether a rule that lives in the driver is switched off."""
        return rule in self.parts.off

    def now(self):
        """Return the moment, in seconds."""
        return self.clock.monotonic_seconds()

    def record(self):
        """Return the record of the operation; None: there is none."""
        return self.record_of(self.plan.record_key(KEY))

    def record_of(self, key):
        """Return a record past whatever a mutation does to the store."""
        return self.under_test.store.read(key)

    def letter(self):
        """Return the letter of the operation; None: there is none."""
        letters = self.letters.list().letters
        if len(letters) > 1:
            self.invariants.breaks("I2")
        return letters[0] if letters else None

    def is_unrenewed(self, message):
        """Whether a message is out, and nobody keeps it from being delivered again."""
        if message.place >= 0:
            return self.runs[message.place].worker in self.workers.stalled
        return message.place == UNHELD

    def _made_policy(self):
        chosen = {"verify": Verify(self.outside.find, after_seconds=AFTER_SECONDS)}.get(self.trace["policy"])
        return Policy.of(
            Safeguards(
                idempotent=Idempotent(
                    "charge:{order_id}",
                    on_unknown=chosen or self.trace["policy"],
                    on_dead=self.trace["on_dead"],
                    quiet_seconds=AFTER_SECONDS,
                ),
                retry=RetryPolicy(attempts=self.trace["attempts"]),
                max_lost_starts=self.trace["max_lost_starts"],
            )
        )

    def _made_plan(self):
        def run(order_id): ...

        plan = Plan.of(TASK, run, self.policy)
        return replace(plan, ledger=replace(plan.ledger, **self.parts.ledger))

    def _kill_child(self, slot):
        parents.kill_child(self, self.runs[slot])

    def _check(self):
        self.invariants.check(self.effects, self.broker.messages, self.letter())
