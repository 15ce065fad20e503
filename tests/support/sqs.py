"""
Amazon SQS for tests, imitated by moto's server: a process of its own on the loopback address.

It keeps visibility timeouts, receipts and receive counts as SQS does. It forgives what SQS may not: an old receipt
still deletes a message.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys

import pytest

from tests.support.sockets import HOST, free_port, is_listening
from tests.support.waiting import wait_until

_START_SECONDS = 30
_NEEDED = ("moto.server", "flask", "boto3", "pycurl")


def broker_options(visibility_seconds):
    """Return `broker_transport_options` for a queue with this timeout, whole seconds, and short polls."""
    return {
        "region": "us-east-1",
        "is_secure": False,
        "visibility_timeout": visibility_seconds,
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
    }


@contextlib.contextmanager
def sqs_server():
    """Run a server for the length of a `with`; yields its URL as kombu's SQS transport wants it."""
    require_installed()
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as process:
        try:

            def answers():
                assert process.poll() is None, f"moto's server ended with code {process.returncode}"
                return is_listening(port)

            wait_until(answers, _START_SECONDS, "moto's server answers")
            yield f"sqs://key:secret@{HOST}:{port}"
        finally:
            process.kill()


def require_installed():
    """Skip the test where the server or what kombu needs is not installed; in CI that is a failure, not a skip."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        said = f"no SQS to test with: install moto[server] and kombu[sqs] (missing: {', '.join(missing)})"
        if os.environ.get("CI") == "true":
            pytest.fail(said, pytrace=False)
        pytest.skip(said)


def _is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
