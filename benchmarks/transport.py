"""
What the hardened transport costs beside the stock one, for the same messages.

    throughput_ratio    tasks a second of a prefork worker that drains a full queue, hardened to stock
    publish_ratio       time of one publish, hardened to stock

Each transport has a worker and a server of its own; they are measured in turn, and medians are compared.
"""

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time

import redis

from benchmarks import report
from benchmarks.delivery_app import TRANSPORT, URL, make_app
from tests.support.servers import redis_server

TRANSPORTS = ("stock", "hardened")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="times each transport is measured")
    parser.add_argument("--tasks", type=int, default=3000, help="tasks in each measurement")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        sides = {name: Side(name, stack) for name in TRANSPORTS}
        publishes = {name: [] for name in TRANSPORTS}
        rates = {name: [] for name in TRANSPORTS}
        for round_number in range(options.rounds + 1):
            for name, side in sides.items():
                publish_us, per_second = side.measure(options.tasks)
                if round_number:
                    publishes[name].append(publish_us)
                    rates[name].append(per_second)
    figures = {
        "throughput": {
            **{f"{name}_per_second": round(statistics.median(values)) for name, values in rates.items()},
            "throughput_ratio": _ratio(rates),
        },
        "publish": {
            **{f"{name}_us": round(statistics.median(values), 1) for name, values in publishes.items()},
            "publish_ratio": _ratio(publishes),
        },
    }
    report.write("transport", figures)


def _ratio(values):
    pairs = zip(values["hardened"], values["stock"], strict=True)
    return round(statistics.median(hardened / stock for hardened, stock in pairs), 3)


class Side:
    """One transport with its server and its worker."""

    def __init__(self, transport, stack):
        server = stack.enter_context(redis_server())
        url = server.url
        self.client = stack.enter_context(redis.Redis.from_url(url))
        self.app = stack.enter_context(make_app(url, transport))
        self.app.finalize()
        self._numbers = itertools.count()
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.delivery_app", "worker", "-c", "2", "-l", "error"]
        worker = subprocess.Popen(
            [*command, "-Q", "idle", "--without-gossip", "--without-mingle", "--without-heartbeat"],
            env={**os.environ, URL: url, TRANSPORT: transport},
        )
        stack.callback(worker.wait)
        stack.callback(worker.terminate)
        while not self.app.control.ping(timeout=0.5):
            if worker.poll() is not None:
                raise SystemExit("the worker has ended")

    def measure(self, count):
        """Return the time of a publish in microseconds, and the tasks a second of the drain that follows."""
        queue, task = f"bench-{next(self._numbers)}", self.app.tasks["nothing"]
        with self.app.producer_pool.acquire() as producer:
            began = time.perf_counter()
            for _ in range(count):
                task.apply_async((next(self._numbers),), queue=queue, producer=producer)
            publish_us = (time.perf_counter() - began) / count * 1e6
        began = time.perf_counter()
        self.app.control.add_consumer(queue)
        while self.client.llen(queue) or self.client.hlen("unacked"):
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        self.app.control.cancel_consumer(queue)
        return publish_us, count / seconds


if __name__ == "__main__":
    main()
