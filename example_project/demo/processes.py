"""
How the demo ends again what it starts, and the workers of both shops.

Workers and servers lead process groups: Ctrl-C reaches the demo alone, and the demo ends each group as a whole. A
signal is only noted; the demo acts on it where it waits, never between starting a process and remembering it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from example_project.demo import worker as notes

ROOT = Path(__file__).resolve().parents[2]
CONCURRENCY = 2
_READY_SECONDS = 60
_GONE_SECONDS = 10
_POLL_SECONDS = 0.02
_PR_SET_CHILD_SUBREAPER = 36
_interrupted = threading.Event()


class DemoFailed(Exception):
    """Raised when the demo cannot show what it is to show."""


def wait_until(predicate, seconds, what):
    """
    Return the first true answer of `predicate`.

    Raises:
        DemoFailed: there was none within `seconds`.
        KeyboardInterrupt: a signal has come.

    """
    found = poll(lambda: _interrupted.is_set() or predicate(), seconds, what)
    stop_if_interrupted()
    return found


def note_signals():
    """Note SIGINT, SIGTERM and SIGHUP in place of dying from them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: _interrupted.set())


def wait_for_signal():
    """Wait until a signal comes."""
    _interrupted.wait()


def stop_if_interrupted():
    """Raise KeyboardInterrupt if a signal has come."""
    if _interrupted.is_set():
        raise KeyboardInterrupt


def adopt_orphans():
    """Inherit the pool children of a killed worker, so that they can be reaped where process 1 reaps nobody (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Worker:
    """
    One real Celery worker with a prefork pool.

    Args:
        module: of its app.
        name: unique within the demo.
        directory: where its log and its notes go.
        environment: added to this process's own.

    """

    def __init__(self, module, name, directory, environment):
        self.name = name
        self.log_path = directory / f"{name}.log"
        self._notes = directory
        command = [sys.executable, "-m", "celery", "-A", module, "worker", "-n", f"{name}@demo"]
        command += ["-P", "prefork", "-c", str(CONCURRENCY), "-l", "INFO", "--include", notes.__name__]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                # Its temporary files too: a worker that is killed removes none.
                env={**os.environ, **environment, notes.NOTES: str(directory), "TMPDIR": str(directory)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait_ready(self):
        """Wait until it consumes."""

        def ready():
            if self._process.poll() is not None:
                raise DemoFailed(f"worker {self.name} ended with code {self._process.returncode}")
            return (self._notes / f"ready-{self.pid}").exists()

        wait_until(ready, _READY_SECONDS, f"worker {self.name} is ready")

    def kill(self):
        """Kill the main process and its children at once, as a host that loses power does."""
        end_group(self._process)

    def ask_to_stop(self):
        """Begin a warm shutdown."""
        self._process.terminate()

    def stop(self, ends):
        """Await the end of a warm shutdown until `ends` (monotonic), and kill whatever is left then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, ends - time.monotonic()))
        end_group(self._process)

    def log(self):
        """Return all it has written so far."""
        return self.log_path.read_text(errors="replace")

    def losses(self):
        """Return how often it has said that its connection to the broker is lost."""
        return self.log().count("Connection to broker lost")


def end_group(process):
    """Kill a process group and reap every member; does nothing if it is gone."""

    def is_gone():
        process.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-process.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return True
        return False

    poll(is_gone, _GONE_SECONDS, f"the processes of group {process.pid} are gone")
    process.wait()


def poll(predicate, seconds, what):
    """Return as `wait_until` does, whether or not a signal comes: for what must be ended."""
    ends = time.monotonic() + seconds
    while True:
        found = predicate()
        if found:
            return found
        if time.monotonic() > ends:
            raise DemoFailed(f"waited {seconds} s in vain: {what}")
        time.sleep(_POLL_SECONDS)
