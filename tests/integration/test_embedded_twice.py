"""
One process that runs a worker of its app, ends it and runs another, as the fixtures of a project's tests do.
"""

import json
import subprocess
import sys

from tests.support.workers import ROOT


def test_second_worker_of_a_process_renews_by_its_own_loop_and_pool(redis_url, namespace):
    """By the first one's, it would renew for ever while its loop stands still, and end no child whose claim lapses."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.embedded_worker", redis_url, namespace],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"renewed": [True, True], "keepers": 4}
