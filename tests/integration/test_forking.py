"""
A child that is forked while a thread of its parent is in the midst of a library's work must be able to do that work.
"""

import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import os, signal, sys, threading, time
from contextlib import nullcontext
from kombu.utils.objects import cached_property
from celery_safeguards.worker.forking import no_fork

entered, may_go = threading.Event(), threading.Event()

class Channel:
    @cached_property
    def client(self):
        entered.set()
        may_go.wait()
        return 1

def work():
    with no_fork() if sys.argv[1] == "guarded" else nullcontext():
        Channel().client

threading.Thread(target=work, daemon=True).start()
entered.wait()
timer = threading.Timer({holds}, may_go.set)
timer.daemon = True
timer.start()
began = time.monotonic()
pid = os.fork()
if pid == 0:
    signal.alarm(3)
    may_go.set()
    Channel().client
    with no_fork():
        os._exit(0)
took = time.monotonic() - began
_, status = os.waitpid(pid, 0)
may_go.set()
print(os.waitstatus_to_exitcode(status), took < 10)
"""


def fork(how, holds_seconds):
    """Fork while a thread reads a cached property for so long; returns how the child ended, and whether soon enough."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT).format(holds=holds_seconds), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=os.environ)
    code, is_soon = done.stdout.split()
    return int(code), is_soon == "True"


def test_child_can_do_what_a_thread_of_its_parent_did():
    assert (0, True) == fork("guarded", 0.2)


def test_child_hangs_at_the_lock_of_a_cached_property_otherwise():
    """The control: kombu's lock is of the class, and nobody in the child will ever release it."""
    code, _ = fork("not guarded", 0.2)

    assert -14 == code


@pytest.mark.parametrize("holds_seconds", [20])
def test_thread_that_stays_inside_does_not_keep_the_loop_from_forking(holds_seconds):
    _, is_soon = fork("guarded", holds_seconds)

    assert is_soon
