"""
What must hold, and the ghosts by which it is judged: they see more than any process does, and no part reads them.
"""

from celery_safeguards.ledger.record import State
from tests.conformance.trace.runs import BODY, PAST_SEND


class Invariants:
    """
    The judge of a trace.

    Attributes:
        broken: the invariants that were broken, in order, each with the step.
        step: the step that is being taken.
        is_risky: a start was lost past its send, so that `rerun` may have a second effect.
        has_ended: some delivery found or made an outcome that is final.
        was_wiped: the store has lost its data.

    """

    def __init__(self, trace):
        self._trace = trace
        self.broken = []
        self.step = "start"
        self.is_risky = self.has_ended = self.was_wiped = False
        self.replays = 0
        self.due = 0.0
        self._holder = None
        self._starts = self._unsettled = 0
        self._series = set()

    def breaks(self, invariant):
        """Note a broken invariant."""
        self.broken.append((invariant, self.step))

    def claims(self, run, stalled):
        """Note a claim, and whether it was taken from somebody who is alive and in its body."""
        holder = self._holder
        if holder is not None and holder is not run and holder.phase in BODY:
            if holder.worker not in stalled:
                self.breaks("I3")
            self.is_risky = self.is_risky or holder.phase in PAST_SEND
        self._holder = run

    def begins(self, run, now, *, is_new, seen=None):
        """Note the start of a body, on a record as it was seen before."""
        if seen is not None and seen.state is State.RETRY_DUE and now < self.due:
            self.breaks("I7")
        if is_new:
            if run.message.tid in self._series:
                self.breaks("I7")
            self._series.add(run.message.tid)
            self._starts = self._unsettled = 0
        self._starts += 1
        self._unsettled += 1

    def settles(self, *, was_body):
        """Note an outcome, of a body or of an answer from the outside."""
        self._unsettled -= was_body

    def writes(self, before, held):
        """Note a write that was accepted, of who holds a record over the record as it was before."""
        if before is not None and (before.owner, before.fence) != (held.owner, held.fence):
            self.breaks("I4")

    def buries(self, run, bury, *, is_poison):
        """Note a burial."""
        if is_poison and self._unsettled < self._trace["max_lost_starts"]:
            self.breaks("I6")
        if bury.final is State.QUARANTINED and run.lineage.letter_id and self._trace["policy"] == "quarantine":
            self.breaks("I9")

    def loses(self, run):
        """Note the loss of a run: whether its effect took place nobody knows."""
        self.is_risky = self.is_risky or run.phase in PAST_SEND

    def wiped(self, outside):
        """Note that the store has lost its data: what was started before counts for nothing."""
        self.was_wiped = True
        self._starts = self._unsettled = 0
        self._series = set()
        self.is_risky = self.is_risky or bool(outside.effects or outside.requests)

    def check(self, effects, messages, letter):
        """Look at the world as it stands after a step."""
        if effects > 1 and (self._trace["policy"] != "rerun" or not self.is_risky):
            self.breaks("I1")
        if not (self.has_ended or messages or letter is not None):
            self.breaks("I2")
        if self._unsettled > self._trace["max_lost_starts"]:
            self.breaks("I6")
        if self._starts > self._trace["attempts"]:
            self.breaks("I7")
        if self.replays > 1:
            self.breaks("I8")
