"""
A pytest plugin that notes how each test ended, one line of JSON each, in the file that `CELERY_SUITE_OUTCOMES` names.

A line is `{"test": node id, "outcome": "passed" | "failed" | "skipped", "error": text}`. A test that passes in a rerun
of its own (the suite marks some as flaky) has passed. A subtest that fails, or a fixture, fails its test. Some tests of
the suite need its worker without asking for it: it is started first.
"""

import json
import os
from pathlib import Path

import pytest

_WORST_FIRST = ("failed", "passed", "skipped")
_found: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="session", autouse=True)
def _worker_from_the_start(celery_session_worker):
    """Start the suite's worker also where the test before which it was started is not run again."""


def pytest_runtest_logreport(report):
    """Keep the worst that is said of a test; a rerun begins anew."""
    if report.outcome == "rerun":
        _found.pop(report.nodeid, None)
        return
    if report.when != "call" and report.outcome == "passed":
        return
    before = _found.get(report.nodeid)
    if before is None or _WORST_FIRST.index(report.outcome) < _WORST_FIRST.index(before["outcome"]):
        error = report.longreprtext if report.failed else ""
        _found[report.nodeid] = {"test": report.nodeid, "outcome": report.outcome, "error": error}


def pytest_runtest_logfinish(nodeid):
    """Write at once: a run that is cut short has not been for nothing. A start before a rerun is no end."""
    if nodeid in _found:
        with Path(os.environ["CELERY_SUITE_OUTCOMES"]).open("a") as file:
            file.write(json.dumps(_found.pop(nodeid)) + "\n")
