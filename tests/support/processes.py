"""
Processes and process groups: who is in one, whether it is stopped, and how to end and reap all of it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_until

_PR_SET_CHILD_SUBREAPER = 36
_GONE_SECONDS = 5


def adopt_orphans():
    """
    Let this process inherit the orphans of its children, so that it can reap them (Linux).

    Where process 1 of a container reaps nobody, the pool children of a killed worker would stay as zombies.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes():
    """Return `(pid, parent, group, state)` of every process; state is one letter, Z for a zombie."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid=,state="], capture_output=True, text=True, check=True)
        return [(int(pid), int(parent), int(group), state[0]) for pid, parent, group, state in _rows(listing.stdout)]
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name stands in parentheses and may hold anything; the rest has one word for each field.
            state, parent, group = (directory / "stat").read_text().rpartition(")")[2].split()[:3]
            found.append((int(directory.name), int(parent), int(group), state))
    return found


def members(group):
    """Return the pids of a process group, zombies included."""
    return [pid for pid, _parent, its_group, _state in processes() if its_group == group]


def living_children(parent):
    """Return the pids of a process's children that are not dead yet, the oldest first."""
    return sorted(pid for pid, its_parent, _group, state in processes() if its_parent == parent and state not in "ZX")


def await_stopped(pids):
    """
    Wait until SIGSTOP has taken effect on all of these processes.

    The signal is only marked as pending by the call: a process on another processor still runs for a moment.
    """
    wanted = set(pids)

    def everyone_is_stopped():
        return all(state in "TtZX" for pid, _parent, _group, state in processes() if pid in wanted)

    wait_until(everyone_is_stopped, _GONE_SECONDS, f"processes {sorted(wanted)} are stopped")


def end_group(group):
    """Kill every process of a group, and reap those that are or become ours; return when none is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)

    def nobody_is_left():
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
        return not members(group)

    wait_until(nobody_is_left, _GONE_SECONDS, f"all processes of group {group} are gone")


def _rows(listing):
    return [line.split() for line in listing.splitlines()]
