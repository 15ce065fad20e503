"""
How long the admin's pages take with a million dead letters, beside the same pages with a thousand.

    pages_p95_ms    {database: {rows: {page: ms}}}: a whole request, with rendering, of a person who may do everything;
                    in PostgreSQL, embedded, and with a tenth of the letters in SQLite
    pages_ratio     {database: {page: times}}: the median of how many times longer a page takes with many letters,
                    request by request: neighbours in time share the machine's mood
    above_target    {database: [page]}: those that took longer than 1.5 times what they take with a thousand letters and
                    more than 30 ms longer; a search also if it took longer than 200 ms

All pages are asked in turn, each with few letters and with many beside each other, so that a machine that slows down
slows both. Who searches looks for another letter each time. Connections stay open, as by `CONN_MAX_AGE`.
"""

import argparse
import contextlib
import json
import os
import tempfile
from pathlib import Path

import django
from django.core.management import call_command

from benchmarks import report
from tests.support import apps, databases
from tests.support.postgres import fresh_database, postgres_server

FEW = 1_000
MOST_TIMES, MOST_MORE_MS, MOST_OF_A_SEARCH_MS = 1.5, 30, 200
_SERVER = {"shared_buffers": "128MB", "maintenance_work_mem": "256MB", "max_wal_size": "4GB", "autovacuum": "off"}
"""What PostgreSQL has by itself; what was changed is for the filling, and vacuuming is done when it would be due."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="letters in PostgreSQL; a tenth of it in SQLite")
    parser.add_argument("--repetitions", type=int, default=40, help="how often each page is asked, after a warm-up")
    options = parser.parse_args()
    counts = {"postgresql": options.rows, "sqlite": max(2 * FEW, options.rows // 10)}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="safeguards-triage-")))
        server = stack.enter_context(postgres_server(**_SERVER))
        stores = {}
        for size in ("few", "many"):
            url = stack.enter_context(fresh_database(server.url))
            stores[f"postgresql_{size}"] = databases.postgres(url)
            stores[f"sqlite_{size}"] = databases.sqlite(directory / f"{size}.sqlite3")
        client = set_up(directory, stores)
        # The project is known only now.
        from django.db import connections  # noqa: PLC0415

        from benchmarks import triage_pages as pages  # noqa: PLC0415

        stack.callback(connections.close_all)
        figures = {"pages_p95_ms": {}, "pages_ratio": {}, "above_target": {}}
        for database, count in counts.items():
            few, many = (pages.filled(f"{database}_{size}", of) for size, of in (("few", FEW), ("many", count)))
            took, ratios = pages.measured(client, few, many, options.repetitions)
            figures["pages_p95_ms"][database] = {str(rows.count): took[rows] for rows in (few, many)}
            figures["pages_ratio"][database] = ratios
            figures["above_target"][database] = told(database, few, many, took, ratios)
    report.write("triage", figures, is_printed=False)


def set_up(directory, stores):
    """Return a client that is logged in."""
    os.environ |= {
        apps.BROKER_URL: "memory://",
        apps.NAMESPACE: "triage",
        "BENCH_STORES": json.dumps(stores),
        "DESK_USERS_FILE": str(directory / "users.sqlite3"),
        "DJANGO_SETTINGS_MODULE": "benchmarks.triage_settings",
    }
    django.setup()
    for alias in ("default", *stores):
        call_command("migrate", database=alias, verbosity=0)
    from django.contrib.auth.models import User  # noqa: PLC0415 - as above
    from django.test import Client  # noqa: PLC0415

    client = Client()
    client.force_login(User.objects.create_superuser("ann"))
    return client


def told(database, few, many, took, ratios):
    """Print what pages took, and return those that took too long."""
    above = []
    print(f"\n{database + ', p95 in ms':<42}{few.count:>12,}{many.count:>12,}     ratio")
    for page, few_ms in took[few].items():
        many_ms = took[many][page]
        is_above = many_ms > max(few_ms * MOST_TIMES, few_ms + MOST_MORE_MS)
        is_above |= page.startswith("search") and many_ms > MOST_OF_A_SEARCH_MS
        above += [page] * is_above
        print(f"  {page:<40}{few_ms:>12}{many_ms:>12}{ratios[page]:>10}{'   above the target' if is_above else ''}")
    return above


if __name__ == "__main__":
    main()
