"""
The demo as a user runs it: a command, its exit code and its last line.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import requests

from tests.support import servers
from tests.support.processes import adopt_orphans, living_children

_LAST_LINE = re.compile(
    r"demo: orders=60 charged=60 lost=0 duplicated=0 resent=0 dead_lettered=(\d+) replayed=(\d+) ok"
)
_ADMIN = re.compile(r"admin: (?P<url>\S+)  user: (?P<user>\S+)  password: (?P<password>\S+)\n")

pytestmark = [pytest.mark.acceptance, pytest.mark.postgres]


@pytest.fixture
def directory():
    """Where the demo puts its files; unlike pytest's own, the user whom root lets run PostgreSQL may enter it."""
    servers.require_embedded()
    with tempfile.TemporaryDirectory(prefix="safeguards-test-demo-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def nobody_left():
    """Whoever the demo leaves behind becomes a child of this process (Linux)."""
    adopt_orphans()
    before = set(living_children(os.getpid()))
    return lambda: set(living_children(os.getpid())) - before == set()


def test_demo_charges_every_order_once_while_plain_celery_does_not(directory):
    """The first thing a newcomer runs would disprove what README promises."""
    with _started(directory, "--orders", "60", "--seed", "7") as demo:
        output, _ = demo.communicate(timeout=120)
    last_line = output.splitlines()[-1]
    counts = _LAST_LINE.fullmatch(last_line)
    all_orders = next(line.split() for line in output.splitlines() if line.startswith("all orders"))
    plain_lost, plain_doubled = map(int, all_orders[3:5])

    assert counts, output
    assert demo.returncode == 0
    assert int(counts[1]) - int(counts[2]) == 6
    assert plain_lost > 0
    assert plain_doubled > 0


@pytest.mark.parametrize("moment", ["two shops are open", "kill pool children"])
def test_interrupted_demo_leaves_nothing_behind(directory, nobody_left, moment):
    """Ctrl-C in the middle of the demo would leave workers, servers and files on the user's machine."""
    with _started(directory, "--orders", "60", "--seed", "7") as demo:
        next(line for line in demo.stdout if moment in line)
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=60)

    assert demo.returncode == 130, rest
    assert nobody_left()
    assert list(directory.iterdir()) == []


def test_served_admin_lets_its_reader_in_and_goes_without_a_trace(directory, nobody_left):
    """Who wants to look at a dead letter would find no server, no way in, or a server that stays."""
    with _started(directory, "--orders", "60", "--seed", "7", "--serve") as demo:
        output = []
        try:
            for line in demo.stdout:
                output.append(line)
                if admin := _ADMIN.fullmatch(line):
                    break
            else:
                pytest.fail("".join(output))
            with requests.Session() as reader:
                before = reader.get(admin["url"], timeout=10)
                form = {"username": admin["user"], "password": admin["password"], "next": "/admin/shop/order/"}
                form["csrfmiddlewaretoken"] = reader.cookies["csrftoken"]
                after = reader.post(before.url, form, timeout=10)
        finally:
            demo.send_signal(signal.SIGINT)
            rest, _ = demo.communicate(timeout=60)

    verdicts = [line for line in output if line.startswith("demo: ")]
    assert [True] == [line.endswith(" ok\n") for line in verdicts], output
    assert (200, 200) == (before.status_code, after.status_code)
    assert "Log in" in before.text
    assert "Select order to view" in after.text
    assert "A060" in after.text
    assert demo.returncode == 0, rest
    assert nobody_left()
    assert list(directory.iterdir()) == []


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
