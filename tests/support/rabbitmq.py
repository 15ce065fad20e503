"""
RabbitMQ for tests: Debian's `rabbitmq-server`, under a node name, on ports and in a directory of its own.

Like the other servers it belongs to whoever started it, and goes with its files. A machine's own RabbitMQ, its node
names and its `epmd` are left alone.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import amqp
import pytest

from tests.support.processes import end_group
from tests.support.sockets import HOST, free_port
from tests.support.waiting import wait_until

_START_SECONDS = 60
_STOP_SECONDS = 30


def programs():
    """Return the directory of the server's own scripts, the newest; None: it is not installed."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
    # Not the wrappers in /usr/sbin: those run as another user, on the machine's own node.
    return found[-1] if found and shutil.which("erl") and shutil.which("epmd") else None


class RabbitServer:
    """
    One broker of a test run.

    Args:
        directory: where its files go.
        settings: of Erlang's application `rabbit`, by name, as Erlang writes them.

    """

    def __init__(self, directory, **settings):
        self._directory = Path(directory)
        self._settings = settings
        self._processes = []
        self.port = free_port()
        self._env = self._environment(free_port(), free_port())

    @property
    def url(self):
        """The broker's URL, with the only virtual host."""
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def start(self):
        """Start, and return once the broker answers."""
        # In the foreground and first: the server would start one that stays behind.
        self._run(["epmd", "-address", HOST])
        server = self._run([str(programs() / "rabbitmq-server")])

        def answers():
            assert server.poll() is None, f"rabbitmq-server ended\n{self.log()}"
            with contextlib.suppress(OSError), self.connect():
                return True
            return False

        wait_until(answers, _START_SECONDS, "rabbitmq-server answers")

    def stop(self):
        """End the broker in order."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            finally:
                end_group(process.pid)
        self._processes.clear()

    def connect(self):
        """Return a new connection, for use in a `with`."""
        connection = amqp.Connection(
            f"{HOST}:{self.port}", userid="guest", password="guest", connect_timeout=1, read_timeout=5
        )
        connection.connect()
        return connection

    def ready(self, queue):
        """Return how many messages wait in a queue; once its consumers are gone, those are all that it has."""
        with self.connect() as connection, connection.channel() as channel:
            return channel.queue_declare(queue, passive=True).message_count

    def messages(self, queue):
        """Return how many messages a queue has, those included that a consumer holds: those only the server tells."""
        ask = [str(programs() / "rabbitmqctl"), "--quiet", "--no-table-headers", "list_queues", "name", "messages"]
        told = subprocess.run(ask, env=self._env, cwd=self._directory, capture_output=True, check=True, text=True)
        return int(dict(line.split("\t") for line in told.stdout.splitlines())[queue])

    def delete(self, queue):
        """Delete a queue, whatever is in it."""
        with self.connect() as connection, connection.channel() as channel:
            channel.queue_delete(queue)

    def log(self):
        """Return all it has written so far."""
        return (self._directory / "out").read_text(errors="replace")

    def _run(self, command):
        with (self._directory / "out").open("ab") as out:
            process = subprocess.Popen(
                command,
                env=self._env,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _environment(self, nodes_port, names_port):
        given = " ".join(f"-rabbit {name} {value}" for name, value in self._settings.items())
        (self._directory / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {HOST}:{self.port}\n")
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            # Where the secret lies that nodes share.
            "HOME": str(self._directory),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(names_port),
            "RABBITMQ_NODENAME": f"t{secrets.token_hex(6)}@localhost",
            "RABBITMQ_DIST_PORT": str(nodes_port),
            "RABBITMQ_MNESIA_BASE": str(self._directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(self._directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self._directory / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._directory / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": given,
        }


@contextlib.contextmanager
def rabbitmq_server(**settings):
    """Run a broker for the length of a `with`; see `RabbitServer`."""
    require_installed()
    directory = Path(tempfile.mkdtemp(prefix="safeguards-rabbitmq-"))
    server = RabbitServer(directory, **settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


def require_installed():
    """Skip the test where RabbitMQ is not installed; in CI that is a failure, not a skip."""
    if programs() is None:
        missing = "no RabbitMQ to test with: install Debian's rabbitmq-server"
        if os.environ.get("CI") == "true":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
