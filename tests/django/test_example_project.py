"""
The example project as a reader uses it: on SQLite, by its own commands, with a real worker and gateway.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys

import pytest
import requests

from tests.support import servers
from tests.support.sockets import HOST, free_port
from tests.support.waiting import wait_until

PROJECT = "example_project"
FORM = {"email": "reader@example.com", "amount_cents": 990}
_COMMAND_SECONDS = 60


@pytest.fixture
def environment(tmp_path):
    """A database of the project's own for each test."""
    return {**os.environ, "SHOP_DATABASE_URL": f"sqlite:///{tmp_path}/shop.sqlite3"}


@pytest.fixture
def manage(environment):
    """Run a command of the project from its file; a warning is an error."""

    def run(*words):
        return _run(environment, "-W", "error", f"{PROJECT}/manage.py", *words)

    return run


def test_project_has_nothing_to_complain_of(manage):
    """Whoever copies the project would copy what its own checks object to."""
    checked = manage("check", "--fail-level", "WARNING")

    assert (0, "System check identified no issues (0 silenced).") == (checked.returncode, checked.stdout.strip())


def test_migrations_are_complete(manage):
    """A reader's `migrate` would leave out a table or a constraint."""
    planned = manage("makemigrations", "--check", "--dry-run")

    assert (0, "No changes detected") == (planned.returncode, planned.stdout.strip()), planned.stderr


def test_its_own_tests_pass(manage):
    """The tests that a reader starts from would fail."""
    done = manage("test", PROJECT, "--settings", f"{PROJECT}.config.testing")
    ran = re.search(r"Ran (\d+) tests", done.stderr)

    assert done.returncode == 0, done.stderr
    assert int(ran[1]) >= 12


@pytest.mark.acceptance
@pytest.mark.redis
def test_order_from_its_page_is_paid_once_and_sent(manage, environment, fresh_redis, gateway, start_worker):
    """Following the project's own instructions would end with an order that nobody charges."""
    environment |= {"SHOP_BROKER_URL": fresh_redis.url, "SHOP_GATEWAY_URL": gateway.base_url}
    created = manage("migrate")
    declared = _run(environment, "-m", "celery", "-A", f"{PROJECT}.config", "safeguards", "store", "init", "--yes")
    assert (0, 0) == (created.returncode, declared.returncode), created.stderr + declared.stderr
    worker = start_worker(f"{PROJECT}.config", environment, extra_args=("--include", "tests.support.announce"))
    worker.wait_ready()

    with _web_server(environment) as url, requests.Session() as reader:
        order_id = re.search(r'name="order_id" value="(\w+)"', reader.get(url, timeout=10).text)[1]
        form = {**FORM, "order_id": order_id, "csrfmiddlewaretoken": reader.cookies["csrftoken"]}
        clicks = [reader.post(f"{url}orders/", form, timeout=10) for _ in range(2)]

        def is_sent():
            return "<td>shipped</td>" in reader.get(url, timeout=10).text

        wait_until(is_sent, 30, "the order is shipped")

    assert [200, 200] == [answer.status_code for answer in clicks]
    assert [(order_id, 990)] == [(each["order_id"], each["amount"]) for each in gateway.ledger()]


def _run(environment, *words):
    command = [sys.executable, *words]
    return subprocess.run(
        command,
        cwd=servers.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )


@contextlib.contextmanager
def _web_server(environment):
    port = free_port()
    command = [sys.executable, f"{PROJECT}/manage.py", "runserver", "--noreload", f"{HOST}:{port}"]
    with subprocess.Popen(
        command, cwd=servers.ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:

        def listens():
            assert process.poll() is None
            with socket.socket() as probe:
                return probe.connect_ex((HOST, port)) == 0

        try:
            wait_until(listens, 20, "the web server listens")
            yield f"http://{HOST}:{port}/"
        finally:
            process.kill()
