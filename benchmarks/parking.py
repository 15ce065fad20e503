"""
How fast many messages go through one lock, when all but one of them are parked.

    serial_ratio        time to drain, to the time that the bodies take one after the other; target 1.5
    deliveries_median   how often a message was given to a worker; target 2
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import redis

from benchmarks import report
from benchmarks.delivery_app import DELIVERIES, TRANSPORT, URL, make_app
from celery_safeguards.wiring import Wiring
from tests.support.servers import redis_server


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--hold-seconds", type=float, default=0.01)
    options = parser.parse_args()
    figures = {name: drain(name, options.messages, options.hold_seconds) for name in ("hardened", "stock")}
    report.write("parking", figures)


def drain(transport, count, hold_seconds):
    """Return how the messages of one lock were drained by a worker of four children."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(redis_server()).url
        client = stack.enter_context(redis.Redis.from_url(url))
        app = stack.enter_context(make_app(url, transport))
        app.finalize()
        Wiring.of(app).admission.declare_new()
        for number in range(count):
            app.tasks["locked"].delay(number, hold_seconds)
        ended = Path(stack.enter_context(tempfile.TemporaryDirectory()), "deliveries")
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.delivery_app", "worker", "-c", "4", "-l", "error"]
        worker = subprocess.Popen(
            [*command, "--without-gossip", "--without-mingle", "--without-heartbeat"],
            env={**os.environ, URL: url, TRANSPORT: transport, DELIVERIES: str(ended)},
            stdout=subprocess.DEVNULL,
        )
        stack.callback(worker.wait)
        stack.callback(worker.terminate)
        while not ended.exists():
            time.sleep(0.005)
        began = time.perf_counter()
        while client.exists("celery", "unacked", "unacked_parked"):
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        deliveries = Counter(ended.read_text().split()).values()
    return {
        "messages": len(deliveries),
        "seconds": round(seconds, 2),
        "serial_ratio": round(seconds / (count * hold_seconds), 2),
        "deliveries_median": statistics.median(deliveries),
        "deliveries_most": max(deliveries),
    }


if __name__ == "__main__":
    main()
