"""
The demo as a user runs it: a command, its exit code and its last line.
"""

import os
import re
import signal
import subprocess
import sys

from tests.support import servers
from tests.support.processes import adopt_orphans, living_children

_LAST_LINE = re.compile(
    r"demo: orders=60 charged=60 lost=0 duplicated=0 resent=(\d+) dead_lettered=(\d+) replayed=(\d+) ok"
)


def test_demo_charges_every_order_once_while_plain_celery_does_not(tmp_path):
    """The first thing a newcomer runs would disprove what README promises."""
    servers.require_embedded()

    with _started(tmp_path, "--orders", "60", "--seed", "7") as demo:
        output, _ = demo.communicate(timeout=120)
    last_line = output.splitlines()[-1]
    counts = _LAST_LINE.fullmatch(last_line)
    all_orders = next(line.split() for line in output.splitlines() if line.startswith("all orders"))
    plain_lost, plain_doubled = map(int, all_orders[3:5])

    assert counts, output
    assert demo.returncode == 0
    assert int(counts[1]) >= 4
    assert int(counts[2]) - int(counts[3]) == 6
    assert plain_lost > 0
    assert plain_doubled > 0


def test_interrupted_demo_leaves_nothing_behind(tmp_path):
    """Ctrl-C in the middle of the demo would leave workers, servers and files on the user's machine."""
    servers.require_embedded()
    # Whoever the demo leaves behind becomes a child of this process (Linux).
    adopt_orphans()
    before = set(living_children(os.getpid()))

    with _started(tmp_path, "--orders", "60", "--seed", "7") as demo:
        next(line for line in demo.stdout if "kill pool children" in line)
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=60)

    assert demo.returncode == 130, rest
    assert set(living_children(os.getpid())) - before == set()
    assert list(tmp_path.iterdir()) == []


def _started(directory, *options):
    return subprocess.Popen(
        [sys.executable, "-m", "example_project.demo", *options],
        cwd=servers.ROOT,
        env={**os.environ, "TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
