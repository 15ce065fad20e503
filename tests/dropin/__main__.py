"""
`make celery-suite`: Celery's own integration tests on plain tasks and on `SafeTask`, side by side.

    fetch the suite → an environment ─┬→ stock:   plain tasks, redis://             ─┬→ table
                                      └→ guarded: SafeTask, --guarded-broker-scheme ─┘

Both run at the same time, each on its own Redis, which is mostly waiting: about 25 minutes. The exit status is 1 if
a test passes on stock and fails on `SafeTask`, unless `known.toml` lists it. What is done to the suite's tasks:
`plugins/guarded_tasks.py`.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from tests.dropin.comparison import compare, known_contradictions
from tests.dropin.side import Side, end_all
from tests.dropin.suite import environment, fetch

_ERROR_CHARS = 2_000


def main() -> int:
    """Run both sides and print what they say together."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options()
    known = known_contradictions()
    directory = Path(tempfile.mkdtemp(prefix="celery-suite-"))
    try:
        suite = fetch(directory)
        python = environment(directory / "environment", suite)
        stock = Side(name="stock", python=python)
        guarded = Side(
            name="guarded",
            python=python,
            plugins=("guarded_tasks",),
            broker_scheme=options.guarded_broker_scheme,
            settings=dict(options.guarded_setting),
        )
        with ThreadPoolExecutor() as sides:
            runs = [sides.submit(side.run, suite, directory, options.only, known) for side in (stock, guarded)]
            try:
                # One side that could not be run leaves nothing to compare.
                ended, _ = wait(runs, return_when=FIRST_EXCEPTION)
            finally:
                end_all()
        for run in ended:
            run.result()  # of the two, the one that was not ended for the other's sake
        ends = [run.result() for run in runs]
    finally:
        if not options.keep:
            shutil.rmtree(directory)
    found = compare(*ends, known)
    for name in found.defects:
        _, error = ends[1].get(name, ("", "not run"))
        sys.stdout.write(f"--- {name}\n{error[-_ERROR_CHARS:]}\n")
    sys.stdout.write(f"{found.table(known)}\n")
    if options.keep:
        sys.stdout.write(f"logs: {directory}\n")
    return found.exit_status


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.dropin")
    parser.add_argument("-k", dest="only", metavar="EXPRESSION", help="only these tests, as in pytest")
    parser.add_argument("--guarded-broker-scheme", default="redis", help="of the guarded side's broker URL")
    parser.add_argument(
        "--guarded-setting",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=JSON",
        help="a Celery setting of the guarded side; may be given again",
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder with the suite and its logs")
    return parser.parse_args()


def _setting(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


if __name__ == "__main__":
    sys.exit(main())
