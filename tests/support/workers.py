"""
Real Celery workers in processes of their own, to be killed.

Each worker leads a process group, so that a test can kill or freeze all of it at once, main process and pool children
alike, as a host that dies or a container that is paused does. Nothing outlives the test: `stop()` and `kill_all()`
reap the whole group.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.support import announce
from tests.support.announcements import is_said
from tests.support.processes import adopt_orphans, await_stopped, end_group, living_children, members

ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count(1)


def start_worker(
    app_module,
    env,
    *,
    announcements,
    directory,
    pool="prefork",
    concurrency=1,
    queues=None,
    extra_args=(),
):
    """
    Start a worker and return at once; `wait_ready()` tells when it consumes.

    Args:
        app_module: `-A` of Celery, such as `"tests.acceptance.plain_app:app"`; must import `tests.support.announce`.
        env: added to this process's environment.
        announcements: where the worker speaks to; several workers may share one.
        directory: where its log goes.
        queues: names. Defaults to the app's own queue.
        extra_args: more words of the command line.

    """
    adopt_orphans()
    name = f"w{next(_numbers)}-{os.getpid()}@test"
    command = [sys.executable, "-m", "celery", "-A", app_module, "worker", "-n", name]
    command += ["-P", pool, "-c", str(concurrency), "-l", "INFO"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    command += ["-Q", ",".join(queues)] if queues else []
    told = {announce.ADDRESS: announcements.address, announce.WORKER: name, "PYTHONUNBUFFERED": "1"}
    # A killed pool leaves its temporary files behind: here the test removes them.
    told["TMPDIR"] = str(directory)
    log_path = Path(directory) / f"{name}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, *extra_args],
            cwd=ROOT,
            env={**os.environ, **told, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Worker(process, name, announcements, log_path)


class Worker:
    """One running worker; its exit is an event (`worker_exited`) like any other."""

    def __init__(self, process, name, announcements, log_path):
        self.name = name
        self.pid = process.pid
        self.log_path = log_path
        self._process = process
        self._announcements = announcements
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True)
        self._watcher.start()

    def wait_ready(self, timeout=20):
        """Wait until it consumes; fails at once, with its log, when it ends instead."""
        event = self.wait_for(lambda event: event["event"] in ("worker_ready", "worker_exited"), timeout)
        assert event["event"] == "worker_ready", f"{self.name} ended before it was ready\n{self.log()}"
        return self

    def wait_for(self, predicate, timeout, *, count=1):
        """Wait for something that this very worker says; see `Announcements.wait_for`."""
        predicate = is_said(predicate) if isinstance(predicate, str) else predicate
        mine = lambda event: event["worker"] == self.name and predicate(event)  # noqa: E731
        return self._announcements.wait_for(mine, timeout, count=count)

    def wait_exited(self, timeout=15):
        """Wait until the main process has ended and return its exit code, negative for a signal."""
        return self.wait_for("worker_exited", timeout)["returncode"]

    def is_running(self):
        """Whether the main process lives."""
        return self._process.poll() is None

    def child_pids(self):
        """Return the pids of the pool's children, the oldest first; none for pools without processes."""
        return living_children(self.pid)

    def group_pids(self):
        """Return the pids of all its processes, zombies included."""
        return members(self.pid)

    def kill_child(self, pid=None, sig=signal.SIGKILL):
        """Kill one pool child (the oldest, unless told which) and return its pid."""
        pid = pid or self.child_pids()[0]
        os.kill(pid, sig)
        return pid

    def kill_main(self, sig=signal.SIGKILL):
        """Kill the main process alone; on Linux its pool children die with it."""
        os.kill(self.pid, sig)

    def kill_all(self):
        """Kill the whole group at once, as a host that loses power does, and return when it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._watcher.join()
        end_group(self.pid)

    def freeze(self):
        """Stop the whole group with SIGSTOP: nothing is sent, nothing is renewed, all connections stay open."""
        os.killpg(self.pid, signal.SIGSTOP)
        await_stopped(self.group_pids())

    def thaw(self):
        """Let a frozen group go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def thaw_children(self):
        """Let the pool's processes of a frozen group go on, and not yet the main one."""
        for pid in self.group_pids():
            if pid != self.pid:
                os.kill(pid, signal.SIGCONT)

    def thaw_main(self):
        """Let the main process of a frozen group go on, and not its pool's."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self):
        """Ask for a warm shutdown: it finishes the running tasks first."""
        self.kill_main(signal.SIGTERM)

    def stop(self, timeout=15):
        """Shut down warmly and return the exit code; kills the group when the time is over, and fails."""
        try:
            if self.is_running():
                self.thaw()
                self.terminate()
            return self.wait_exited(timeout)
        finally:
            self.kill_all()

    def log(self):
        """Return all it has written so far."""
        return self.log_path.read_text(errors="replace")

    def _watch(self):
        returncode = self._process.wait()
        self._announcements.record({"event": "worker_exited", "worker": self.name, "returncode": returncode})
