"""
How long a killed worker's task waits for another worker, and what it costs to keep that short.

    recommended, vt10    SIGKILL of a whole worker until another one starts its task, at the visibility timeout that
                         README recommends and at 10 s: {"vt_s", "p50_s", "p99_s"}; at most the timeout and 3 s
    renewal              round trips a second to the broker's Redis, of a worker that holds one message, and of an idle
                         one: renewal and sweep of messages, renewal of claims, and the wait for the next message

Trials run side by side, each on a server of its own; the kill comes at a random time between two renewals.
"""

import argparse
import concurrent.futures
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time

import redis

from benchmarks import report
from benchmarks.delivery_app import TRANSPORT, URL, VISIBILITY, make_app
from tests.support.servers import redis_server

RECOMMENDED_SECONDS = 60.0
SHORT_SECONDS = 10.0
_BODY_SECONDS = 600
_COUNTED_SECONDS = 10.0
_STARTING_AT_ONCE = 4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chance = random.Random(options.seed)
    figures = {}
    for name, visibility_seconds in (("vt10", SHORT_SECONDS), ("recommended", RECOMMENDED_SECONDS)):
        delays = [chance.uniform(0, visibility_seconds / 3) for _ in range(options.trials)]
        starting = threading.Semaphore(_STARTING_AT_ONCE)
        with concurrent.futures.ThreadPoolExecutor(options.trials) as trials:
            waits = sorted(trials.map(lambda delay: recovery(visibility_seconds, delay, starting), delays))  # noqa: B023
        figures[name] = {
            "vt_s": visibility_seconds,
            "p50_s": round(statistics.median(waits), 2),
            "p99_s": round(waits[min(len(waits) - 1, round(0.99 * len(waits)))], 2),
        }
    figures["renewal"] = renewal_cost()
    report.write("recovery", figures)


@contextlib.contextmanager
def fleet(visibility_seconds, workers, starting=None):
    """Start a server and idle workers; gives the client, the app and the workers' processes."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(starting or contextlib.nullcontext())
        server = stack.enter_context(redis_server())
        url = server.url
        client = stack.enter_context(redis.Redis.from_url(url, socket_timeout=None))
        app = stack.enter_context(make_app(url, "hardened", visibility_seconds))
        app.finalize()
        env = {**os.environ, URL: url, TRANSPORT: "hardened", VISIBILITY: str(visibility_seconds)}
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.delivery_app", "worker", "-c", "1", "-l", "error"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        processes = []
        for number in range(workers):
            process = subprocess.Popen(
                [*command, "-n", f"w{number}@bench"], env=env, stdout=subprocess.DEVNULL, start_new_session=True
            )
            stack.callback(process.wait)
            stack.callback(_kill, process)
            processes.append(process)
        while len(app.control.ping(timeout=1.0)) < workers:
            if any(process.poll() is not None for process in processes):
                raise SystemExit("a worker has ended")
        if starting is not None:
            starting.release()
        try:
            yield client, app, processes
        finally:
            if starting is not None:
                starting.acquire()


def recovery(visibility_seconds, delay_seconds, starting):
    """Return the seconds from the kill of a worker to the start of its task by another one."""
    with fleet(visibility_seconds, 2, starting) as (client, app, processes):
        app.tasks["long"].delay(_BODY_SECONDS)
        client.blpop("bench:starts", timeout=30)
        time.sleep(delay_seconds)
        (busy,) = [process for process in processes if _has_it(app, processes.index(process))]
        _kill(busy)
        killed = time.time()
        _, started = client.blpop("bench:starts", timeout=visibility_seconds * 3)
        return float(started) - killed


def _has_it(app, number):
    name = f"w{number}@bench"
    return bool((app.control.inspect([name], timeout=5.0).active() or {}).get(name))


def _kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def renewal_cost():
    """Return round trips a second at the recommended timeout: of a worker that holds a message, and of an idle one."""
    figures = {}
    for name, is_busy in (("idle_per_second", False), ("busy_per_second", True)):
        with fleet(RECOMMENDED_SECONDS, 1) as (client, app, _):
            if is_busy:
                app.tasks["long"].delay(_BODY_SECONDS)
                client.blpop("bench:starts", timeout=30)
            before = _trips(client)
            time.sleep(_COUNTED_SECONDS)
            figures[name] = round((_trips(client) - before) / _COUNTED_SECONDS, 2)
    return figures


def _trips(client):
    """Return how many questions were asked: scripts, and what is asked outside of them."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval", "brpop", "ping"))


if __name__ == "__main__":
    main()
