"""A module of the tests that has a process of its own, since it patches or changes what a whole process shares."""

import json
import subprocess
import sys

from tests.support.workers import ROOT


def seen_by(module, *words):
    """
    Run a module to its end, and return what it has written as JSON.

    Raises:
        AssertionError: it has failed; with what it said.

    """
    ended = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
