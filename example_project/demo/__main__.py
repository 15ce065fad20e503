"""
Take payments while everything around them breaks, and count at the gateway what became of the money.

Two shops, the same orders, the same faults: one is plain Celery with late acknowledgement and automatic retry, the
other has safeguards. Real workers, real brokers and databases, and a gateway that charges whatever it is sent.

    python -m example_project.demo [--orders 200] [--seed 7] [--logs DIRECTORY] [--serve]

Exits with 0 if the guarded shop charged every order once, every planned fault struck, and the plain shop shows what
the faults do. With `--serve` the guarded shop's admin then stays open until Ctrl-C.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import traceback
from pathlib import Path

import django
from django.core.management import call_command

from example_project.demo import postgres
from example_project.demo.plan import FEWEST_ORDERS, draw_plan
from example_project.demo.processes import DemoFailed, adopt_orphans, note_signals
from example_project.demo.report import objections, table, verdict

_LOG_LINES = 25
_INTERRUPTED = 130


def main():
    """Run the demo and return the exit code."""
    options = _options()
    note_signals()
    adopt_orphans()
    print(f"{options.orders} orders, seed {options.seed}; takes about half a minute", flush=True)
    with _directory(options.logs) as directory:
        try:
            return _play(options, directory)
        except KeyboardInterrupt:
            print("interrupted: everything that was started has been stopped", flush=True)
            return _INTERRUPTED
        except Exception as error:  # noqa: BLE001 - whatever broke, it is told as the last line
            _show_logs(directory)
            if not isinstance(error, DemoFailed):
                traceback.print_exc()
            print(f"demo: orders={options.orders} FAILED: {error or type(error).__name__}", flush=True)
            return 1


def _play(options, directory):
    plan = draw_plan(options.orders, options.seed)
    with postgres.databases("plain", "guarded") as urls:
        _open_project(urls)
        # Not before: models need the project's settings.
        from example_project.demo.run import Demo  # noqa: PLC0415
        from example_project.demo.serving import serve  # noqa: PLC0415

        with Demo(plan, directory, urls) as demo:
            plain, guarded = demo.run()
            reasons = objections(plan, plain, guarded)
            report = ["", *table(plan, plain, guarded), "", verdict(guarded, options.orders, reasons)]
            is_served = options.serve and not reasons
            if is_served:
                print(*report, sep="\n", flush=True)
                serve(demo)
            else:
                demo.say("stop the workers, both gateways, both brokers and the database server")
    if is_served:
        print("everything that was started has been stopped", flush=True)
        return 0
    if reasons:
        _show_logs(directory)
    print(*report, sep="\n", flush=True)
    return 1 if reasons else 0


def _open_project(urls):
    """Set Django up in this process, which looks into both shops, and for the processes that it starts."""
    # No debug mode: it keeps every statement in memory.
    os.environ.update(SHOP_DATABASE_URL=urls["guarded"], SHOP_DEMO_PLAIN_DATABASE_URL=urls["plain"], SHOP_DEBUG="0")
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.demo.settings"
    django.setup()
    for alias in ("default", "plain"):
        call_command("migrate", database=alias, verbosity=0, interactive=False)


def _options():
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__.splitlines()[1])
    parser.add_argument("--orders", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="chooses the victims")
    parser.add_argument("--logs", type=Path, help="keep the workers' logs here (default: a temporary directory)")
    parser.add_argument("--serve", action="store_true", help="leave the admin running afterwards, until Ctrl-C")
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


def _show_logs(directory):
    for path in sorted(directory.glob("*/*.log")):
        lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        print(f"--- the end of the log of {path.stem}", *lines, sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
