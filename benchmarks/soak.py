"""
Thousands of keyed tasks under random kills and cuts, and what is left of them: nothing lost, nothing done twice, and
nothing that grows. `make soak`; ends with exit status 1 if it is otherwise.

    every second or so, one of:  a pool child killed · a whole worker killed and another one started · every connection
    to the broker cut · a worker frozen for longer than the visibility timeout

One worker is never killed, only cut: it shows whether threads and sockets grow.
"""

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import redis

from benchmarks import report
from benchmarks.delivery_app import EFFECTS, TRANSPORT, URL, VISIBILITY, make_app
from celery_safeguards.wiring import Wiring
from tests.support.processes import living_children
from tests.support.servers import redis_server
from tests.support.sockets import Cutter

VISIBILITY_SECONDS = 3.0
_WORKERS = 3
_SETTLED_SECONDS = 120.0
_PAUSE_SECONDS = (0.5, 2.0)
_FROZEN_SECONDS = VISIBILITY_SECONDS * 1.5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--per-second", type=float, default=15.0, help="tasks that are published")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with contextlib.ExitStack() as stack:
        soak = Soak(random.Random(options.seed), stack)
        figures = soak.run(options.seconds, options.per_second)
    report.write("soak", figures)
    sys.exit(1 if any(figures["harm"].values()) else 0)


class Soak:
    """A server, workers that come and go, and one that stays."""

    def __init__(self, chance, stack):
        self._chance = chance
        self._stack = stack
        self._url = stack.enter_context(redis_server()).url
        self._cutter = stack.enter_context(Cutter(self._url))
        self.client = stack.enter_context(redis.Redis.from_url(self._url, decode_responses=True))
        self.app = stack.enter_context(make_app(self._url, "hardened", VISIBILITY_SECONDS))
        self.app.finalize()
        Wiring.of(self.app).admission.declare_new()
        self._numbers = itertools.count()
        self._names = itertools.count()
        self._workers = []
        self.done = dict.fromkeys(("child_killed", "worker_killed", "cut", "frozen"), 0)
        stack.callback(self._end)
        self._witness = self._start()
        for _ in range(_WORKERS - 1):
            self._workers.append(self._start())

    def run(self, seconds, per_second):
        """Break things for so long, let it settle, and count."""
        ends, published = time.monotonic() + seconds, threading.Event()
        publisher = threading.Thread(target=self._publish, args=(per_second, published))
        publisher.start()
        witnessed = []
        while time.monotonic() < ends:
            time.sleep(self._chance.uniform(*_PAUSE_SECONDS))
            self._harm()
            witnessed.append(_size_of(self._witness.pid))
        published.set()
        publisher.join()
        count = next(self._numbers)
        is_settled = self._settle(count)
        effects = {int(number): int(times) for number, times in self.client.hgetall(EFFECTS).items()}
        letters = len(Wiring.of(self.app).letters.list(limit=1000).letters)
        third = len(witnessed) // 3
        grown = [
            max(each[kind] for each in witnessed[-third:]) - max(each[kind] for each in witnessed[:third])
            for kind in (0, 1)
        ]
        others = [key for key in self.client.scan_iter() if ":record:" not in key]
        return {
            "harm": {
                "lost": count - len(effects),
                "duplicated": sum(times > 1 for times in effects.values()),
                "dead_letters": letters,
                "unsettled": 0 if is_settled else 1,
                "unacked_left": self.client.hlen("unacked") + self.client.zcard("unacked_index"),
                "keys_beside_records": max(0, len(others) - _MOST_OTHER_KEYS),
                "threads_grown": max(0, grown[0] - _SOME),
                "sockets_grown": max(0, grown[1] - _SOME),
            },
            "work": {"tasks": count, "seconds": seconds, **self.done},
            "seen": {"other_keys": len(others), "threads_grown": grown[0], "sockets_grown": grown[1]},
        }

    def _publish(self, per_second, ended):
        while not ended.wait(1 / per_second):
            self.app.tasks["count"].delay(next(self._numbers))

    def _settle(self, count):
        """Wait until everything is done and the broker is empty; returns whether it is."""
        ends = time.monotonic() + _SETTLED_SECONDS
        while time.monotonic() < ends:
            if self.client.hlen(EFFECTS) >= count and not self.client.exists("celery", "unacked", "unacked_index"):
                return True
            time.sleep(0.2)
        return False

    # --- harm

    def _harm(self):
        kind = self._chance.choice(tuple(self.done))
        victim = self._chance.choice(self._workers)
        if kind == "child_killed":
            children = living_children(victim.pid)
            if not children:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(children), signal.SIGKILL)
        elif kind == "worker_killed":
            _kill(victim)
            self._workers[self._workers.index(victim)] = self._start()
        elif kind == "cut":
            self._cutter.cut()
        else:
            os.killpg(victim.pid, signal.SIGSTOP)
            time.sleep(_FROZEN_SECONDS)
            os.killpg(victim.pid, signal.SIGCONT)
        self.done[kind] += 1

    def _start(self):
        env = {**os.environ, URL: self._cutter.url, TRANSPORT: "hardened", VISIBILITY: str(VISIBILITY_SECONDS)}
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.delivery_app", "worker", "-c", "2", "-l", "error"]
        command += ["-n", f"w{next(self._names)}@soak", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True)

    def _end(self):
        for worker in (self._witness, *self._workers):
            _kill(worker)


_MOST_OTHER_KEYS = 30
"""Of kombu, of the safeguards' own state, and the effects: however many tasks there were."""
_SOME = 5


def _kill(worker):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _size_of(pid):
    """Return a process's threads and open files."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    threads = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))
    return threads, len(list(Path(f"/proc/{pid}/fd").iterdir()))


if __name__ == "__main__":
    main()
