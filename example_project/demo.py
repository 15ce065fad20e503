"""
Take payments while everything around them breaks, and count at the gateway what became of the money.

Two shops, the same orders, the same faults: one is plain Celery with late acknowledgement and automatic retry, the
other has safeguards. Real workers, a real broker and a gateway that charges whatever it is sent.

    python -m example_project.demo [--orders 200] [--seed 7] [--logs DIRECTORY]

Exits with 0 if the guarded shop charged every order once, every planned fault struck, and the plain shop shows what
the faults do.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import replay
from example_project import demo_faults as faults
from example_project import shop
from example_project.demo_plan import FEWEST_ORDERS, Fate, draw_plan
from example_project.demo_processes import DemoFailed, adopt_orphans, note_signals, stop_if_interrupted, wait_until
from example_project.demo_report import Finding, objections, table, verdict
from example_project.demo_side import RESEND_AFTER_SECONDS, WORKERS, GuardedSide, PlainSide

_SETTLED_SECONDS = 60
_LOG_LINES = 25
_INTERRUPTED = 130


class Demo:
    """One run."""

    def __init__(self, plan, directory):
        self._plan = plan
        self._directory = directory
        self._began = time.monotonic()
        self.sides = []

    def run(self):
        """Run all of it and return the findings, plain and guarded."""
        with contextlib.ExitStack() as started:
            for each in (PlainSide, GuardedSide):
                directory = self._directory / each.__name__
                (directory / "valkey").mkdir(parents=True)
                self.sides.append(started.enter_context(each(directory)))
            self._break()
            self._settle()
            findings = self._repair()
            self.say("stop the workers, both gateways and both brokers")
        return findings

    def say(self, text):
        """Say what happens, and when; this is also where a signal stops the demo."""
        stop_if_interrupted()
        print(f"{time.monotonic() - self._began:5.0f} s  {text}", flush=True)

    def _break(self):
        plan, say = self._plan, self.say
        bad, twice, vanished = len(plan.bad_payloads), len(plan.of(Fate.TWICE)), len(plan.of(Fate.VANISHED))
        say("two shops are open, each with its own broker and gateway: plain Celery, and the same with safeguards")
        say("    the guarded store was declared new: an empty one may be a wiped one, and admits nobody for one lease")
        say(f"publish the first orders, {twice} of them twice, and {bad} payloads that are wrong")
        say(
            f"    {vanished} messages vanish as when a worker dies between taking one and noting it: Redis forgets them"
        )
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
        self.say(
            f"    the guarded one sends again, under the same key, what is not done after {RESEND_AFTER_SECONDS:g} s"
        )
        self.say("    the plain one has no record to ask: an order without an answer may be lost or charged")
        self._await_settled()
        self._do(faults.count_misbehaviour)

    def _repair(self):
        plain, guarded = self.sides
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
                replay(shop.app, letter.id, "demo")
                guarded.replayed += 1
        self._await_settled()
        unpaid = guarded.unpaid()
        if unpaid:
            raise DemoFailed(f"not paid after the repair: {[order.id for order in unpaid]}")
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
            for side in self.sides:
                side.send_again()
            # Both are asked each time: they count for how long they have been quiet.
            answers = [side.is_settled() for side in self.sides]
            return all(answers)

        try:
            wait_until(settled, _SETTLED_SECONDS, "both shops are quiet")
        except DemoFailed as error:
            raise DemoFailed(f"{error}; {'; '.join(side.what_is_left() for side in self.sides)}") from error


def main():
    """Run the demo and return the exit code."""
    options = _options()
    note_signals()
    adopt_orphans()
    print(f"{options.orders} orders, seed {options.seed}; takes about half a minute", flush=True)
    plan = draw_plan(options.orders, options.seed)
    with _directory(options.logs) as directory:
        demo = Demo(plan, directory)
        try:
            plain, guarded = demo.run()
        except KeyboardInterrupt:
            print("interrupted: everything that was started has been stopped", flush=True)
            return _INTERRUPTED
        except Exception as error:  # noqa: BLE001 - whatever broke, it is told as the last line
            _show_logs(demo)
            if not isinstance(error, DemoFailed):
                traceback.print_exc()
            print(f"demo: orders={options.orders} FAILED: {error or type(error).__name__}", flush=True)
            return 1
        reasons = objections(plan, plain, guarded)
        if reasons:
            _show_logs(demo)
        print("", *table(plan, plain, guarded), "", verdict(guarded, options.orders, reasons), sep="\n", flush=True)
        return 1 if reasons else 0


def _options():
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__.splitlines()[1])
    parser.add_argument("--orders", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="chooses the victims")
    parser.add_argument("--logs", type=Path, help="keep the workers' logs here (default: a temporary directory)")
    options = parser.parse_args()
    if options.orders < FEWEST_ORDERS:
        parser.error(f"--orders {options.orders}: give {FEWEST_ORDERS} or more, so that every fault has its orders")
    return options


@contextlib.contextmanager
def _directory(logs):
    if logs is not None:
        logs.mkdir(parents=True)
        yield logs.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="safeguards-demo-") as directory:
        yield Path(directory)


def _show_logs(demo):
    for side in demo.sides:
        for name, text in side.logs().items():
            lines = text.splitlines()[-_LOG_LINES:]
            print(f"--- the end of the log of {name}", *lines, sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
