"""
One run of the demo: what is done to both shops, in order, and what is repaired afterwards.
"""

import contextlib
import time

from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import replay
from example_project.config.celery import app as shop_app
from example_project.demo import faults
from example_project.demo.plan import Fate
from example_project.demo.processes import DemoFailed, stop_if_interrupted, wait_until
from example_project.demo.report import Finding
from example_project.demo.side import WORKERS
from example_project.demo.sides import GuardedSide, PlainSide

_SETTLED_SECONDS = 120


class Demo:
    """
    One run.

    Args:
        plan: what is to be done to the orders.
        directory: for logs, notes and data.
        urls: of the databases, `plain` and `guarded`.

    """

    def __init__(self, plan, directory, urls):
        self._plan = plan
        self._began = time.monotonic()
        self._started = contextlib.ExitStack()
        self.plain = PlainSide(directory / "plain", urls["plain"])
        self.guarded = GuardedSide(directory / "guarded", urls["guarded"])
        self.sides = (self.plain, self.guarded)

    def __enter__(self):
        with contextlib.ExitStack() as started:
            for side in self.sides:
                started.enter_context(side)
            self._started = started.pop_all()
        return self

    def __exit__(self, *error):
        # All at once: a worker takes seconds to stop.
        for side in self.sides:
            side.ask_workers_to_stop()
        return self._started.__exit__(*error)

    def run(self):
        """Run all of it and return the findings, plain and guarded; both shops stay open."""
        self._break()
        self._settle()
        return self._repair()

    def say(self, text):
        """Say what happens, and when; this is also where a signal stops the demo."""
        stop_if_interrupted()
        print(f"{time.monotonic() - self._began:5.0f} s  {text}", flush=True)

    def _break(self):
        plan, say = self._plan, self.say
        bad, twice, vanished = len(plan.bad_payloads), len(plan.of(Fate.TWICE)), len(plan.of(Fate.VANISHED))
        say(
            "two shops are open, each with a broker, gateway and database of its own: plain Celery, and with safeguards"
        )
        say("    the guarded store was declared new: an empty one may be a wiped one, and admits nobody for one lease")
        say(f"publish the first orders, {twice} of them twice, and {bad} payloads that are wrong")
        say(f"    a worker dies {vanished} times between taking a message and noting it: stock transport forgets it")
        self._do(faults.trade)
        say(f"start {WORKERS} workers for each shop; the gateway drops answers, fails, limits the rate and is slow")
        for side in self.sides:
            for _ in range(WORKERS):
                side.start_worker()
        for side in self.sides:
            side.wait_workers_ready()
        say("kill pool children at the worst points: the charge is under way; made but not answered; answered")
        self._do(faults.kill_children)
        say("kill whole workers while a charge of theirs is under way, or made; start others")
        self._do(faults.kill_workers)
        say("cut every connection to the broker, in the middle of a charge: it redelivers what still runs")
        self._do(faults.cut_connections)
        say(f"the gateway refuses connections for {faults.OUTAGE_SECONDS:g} s, with orders on their way to it")
        self._do(faults.stop_gateway)
        self._do(faults.await_gateway)

    def _settle(self):
        self.say("wait until both shops are quiet")
        self.say("    the guarded one sends again, under the same key, what is not done and has no message any more")
        self.say("    the plain one has no record to ask: an order without an answer may be lost or charged")
        self._await_settled()
        self._do(faults.count_misbehaviour)

    def _repair(self):
        plain, guarded = self.plain, self.guarded
        letters = guarded.letters()
        wrong = [letter for letter in letters if letter.kind is FailureKind.DATA]
        self.say(f"repair the gateway; of {len(letters)} dead letters replay those that died of it,")
        self.say(f"    and discard with a reason the {len(wrong)} that were wrong from the start")
        for side in self.sides:
            side.gateway.clear_faults()
        for letter in letters:
            if letter in wrong:
                guarded.discard(letter, "the payload is wrong: its producer was told")
            else:
                replay(shop_app, letter.id, "demo")
                guarded.replayed += 1
        self._await_settled()
        unfinished = guarded.unfinished()
        if unfinished:
            raise DemoFailed(f"not finished after the repair: {[order.id for order in unfinished]}")
        still_open = [letter.id for letter in guarded.letters() if letter.state not in {"closed", "discarded"}]
        if still_open:
            raise DemoFailed(f"letters that are not closed: {still_open}")
        return (
            Finding.of(plain, self._plan),
            Finding.of(guarded, self._plan, dead_lettered=len(letters), discarded=len(wrong)),
        )

    def _do(self, harm):
        for side in self.sides:
            harm(side, self._plan)

    def _await_settled(self):
        def settled():
            # Both are asked each time: they count for how long they have been quiet.
            answers = [side.is_settled() for side in self.sides]
            return all(answers)

        try:
            wait_until(settled, _SETTLED_SECONDS, "both shops are quiet")
        except DemoFailed as error:
            raise DemoFailed(f"{error}; {'; '.join(side.what_is_left() for side in self.sides)}") from error
