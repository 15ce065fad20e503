"""
What both shops that the demo breaks have: a broker, a gateway, a database and workers of their own.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

import kombu.exceptions
import redis
from django.db.models import Sum

from example_project.demo import taker
from example_project.demo.processes import ROOT, DemoFailed, Worker, wait_until
from example_project.demo.servers import gateway_server, valkey_server
from example_project.shop.models import Customer, Shipment

WORKERS = 2
_QUIET_POLLS = 5
_RECONNECT_SECONDS = 60
_NOTICED_SECONDS = 1.0
_STOP_SECONDS = 5.0
_TAKER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Note:
    """Which processes have an order, and since when (wall clock)."""

    child_pid: int
    worker_pid: int
    began: float


class Side:
    """
    A shop and everything that belongs to it.

    Args:
        title: how the report calls it.
        app: its Celery app.
        module: where a worker finds that.
        charge: the task that charges an order.
        alias: of its database in this process.
        database_url: of the same, for its workers.
        directory: for logs, notes and data.

    """

    def __init__(self, title, *, app, module, charge, alias, database_url, directory):
        self.title = title
        self.fired = Counter()
        self.resent = 0
        self.replayed = 0
        self.broker = None
        self.gateway = None
        self._app = app
        self._module = module
        self._charge = charge
        self._alias = alias
        self._database_url = database_url
        self._directory = directory
        self._workers = []
        self._log_paths = []
        self._started = contextlib.ExitStack()
        self._numbers = itertools.count(1)
        self._quiet_polls = 0
        self.stop_seconds = _STOP_SECONDS

    def __enter__(self):
        (self._directory / "valkey").mkdir(parents=True)
        with contextlib.ExitStack() as started:
            self.broker = started.enter_context(valkey_server(self._directory / "valkey"))
            self.gateway = started.enter_context(gateway_server(self._directory))
            self._app.conf.broker_url = self.broker.url
            # Under every worker: these are ended first, each of them, also where ending one fails.
            started.enter_context(self._app)
            started.callback(self._stop_workers)
            self._started = started.pop_all()
        return self

    def __exit__(self, *error):
        # Whoever interrupts the demo does not want to wait for what its workers still do.
        if error[0]:
            self.stop_seconds = 0.0
        return self._started.__exit__(*error)

    # --- what the shop does

    def publish(self, order):
        """Place an order and publish its tasks; the second time, publish them once more."""
        # An order that the broker did not take is not lost: its row is there.
        with contextlib.suppress(kombu.exceptions.OperationalError, redis.ConnectionError):
            self._publish(order)

    def publish_bad(self, payload):
        """Send a payload by the task's name, as a producer does that does not share our code."""
        self._app.send_task(self._charge.name, kwargs=payload)

    def is_settled(self):
        """Whether nothing is left to do, as far as this shop can tell."""
        return self.is_quiet()

    def is_quiet(self):
        """Whether the broker holds no message, seen several times in a row: a message in a worker's hands counts."""
        queue = self._app.conf.task_default_queue
        # A message is unseen for an instant when a worker has taken it off the list and not noted it yet.
        is_empty = not self.broker.exists(queue, "unacked", "unacked_parked")
        self._quiet_polls = self._quiet_polls + 1 if is_empty else 0
        return self._quiet_polls >= _QUIET_POLLS

    def what_is_left(self):
        """Say what keeps this shop from being settled."""
        queue = self._app.conf.task_default_queue
        waiting = f"{self.broker.hlen('unacked')} in hand, {self.broker.zcard('unacked_parked')} parked"
        return f"{self.title}: {self.broker.llen(queue)} messages queued, {waiting}"

    # --- its workers

    def start_worker(self):
        """Start one more worker, and return it at once."""
        name = f"{self._app.main}-{next(self._numbers)}"
        worker = Worker(self._module, name, self._directory, self.environment())
        self._workers.append(worker)
        self._log_paths.append(worker.log_path)
        return worker

    def environment(self):
        """Return what tells a process of the project which shop is its own."""
        return {
            "SHOP_BROKER_URL": self.broker.url,
            "SHOP_DATABASE_URL": self._database_url,
            "SHOP_GATEWAY_URL": self.gateway.base_url,
        }

    def wait_workers_ready(self):
        """Wait until all workers consume."""
        for worker in self._workers:
            worker.wait_ready()

    def worker_of(self, note):
        """Return the worker that has an order."""
        return next(worker for worker in self._workers if worker.pid == note.worker_pid)

    def kill_worker(self, worker):
        """Kill a worker, children and all."""
        worker.kill()
        self._workers.remove(worker)

    def note_of(self, order):
        """Return who has an order that is known to run."""
        child, worker, began = (self._directory / f"order-{order.id}").read_text().split()
        return Note(int(child), int(worker), float(began))

    def cut_connections(self):
        """Close every connection to the broker while all workers wait for messages, until each has noticed."""
        before = [worker.losses() for worker in self._workers]
        cut_at = float("-inf")

        def all_noticed():
            nonlocal cut_at
            if all(worker.losses() > had for worker, had in zip(self._workers, before, strict=True)):
                return True
            # A worker that was given a message just before the cut connects anew without a word: it is cut again.
            if time.monotonic() - cut_at > _NOTICED_SECONDS and self._all_wait_for_messages():
                self.broker.client_kill_filter(_type="normal", skipme=True)
                cut_at = time.monotonic()
            return False

        wait_until(all_noticed, _RECONNECT_SECONDS, f"{self.title}: every worker has lost its connection")

    def _all_wait_for_messages(self):
        blocked = [each for each in self.broker.client_list() if "b" in each["flags"]]
        return len(blocked) >= len(self._workers)

    def ask_workers_to_stop(self):
        """Begin a warm shutdown of every worker; closing this side awaits its end."""
        for worker in self._workers:
            worker.ask_to_stop()

    # --- what it did

    def take_and_die(self, count):
        """Let a consumer of this shop's transport die while it takes messages; return how many it had."""
        command = [sys.executable, "-m", taker.__name__, self._module, str(count)]
        environment = {**os.environ, **self.environment()}
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, timeout=_TAKER_SECONDS, check=False
        )
        if ended.returncode != -signal.SIGKILL:
            raise DemoFailed(f"{self.title}: the consumer that should die ended with code {ended.returncode}")
        return count

    def charges(self):
        """Return how often each order was charged, from the gateway's ledger."""
        return Counter(charge["order_id"] for charge in self.gateway.ledger())

    def shipped(self):
        """Return the ids of the orders that have a parcel."""
        return frozenset(Shipment.objects.using(self._alias).values_list("order_id", flat=True))

    def points(self):
        """Return how many points all customers have."""
        return Customer.objects.using(self._alias).aggregate(Sum("points"))["points__sum"] or 0

    def log(self):
        """Return all that its workers wrote."""
        return "".join(path.read_text(errors="replace") for path in self._log_paths)

    def logs(self):
        """Return what each worker wrote, by its name."""
        return {path.stem: path.read_text(errors="replace") for path in self._log_paths}

    def _stop_workers(self):
        self.ask_workers_to_stop()
        ends = time.monotonic() + self.stop_seconds
        with contextlib.ExitStack() as all_of_them:
            for worker in self._workers:
                all_of_them.callback(worker.stop, ends)
