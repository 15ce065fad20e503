"""
A bench for the way of a delivery through its safeguards: real messages, real requests and the memory store.

A message is published to kombu's memory broker, taken from it, and run by Celery's own request and tracer in this
thread, as a worker's main process and its child would. Time is injected, so nothing sleeps: a delay is a number in a
message, and the bench moves its clock to it. A body that raises `Killed` takes its child with it.
"""

import os
import random
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery import Celery
from celery.utils.imports import symbol_by_name
from celery.worker.request import create_request_cls

from celery_safeguards import Idempotent, Safeguards, SafeTask
from celery_safeguards.admission.epoch import PublisherEpoch
from celery_safeguards.admission.memory import MemoryAdmissionStore
from celery_safeguards.admission.starts import MemoryStartCounter
from celery_safeguards.conf import Settings
from celery_safeguards.deadletter.memory import MemoryLetterStore
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.jobs.memory import MemoryJobStore
from celery_safeguards.signals import delivery_ended
from celery_safeguards.wiring import Stores, Wiring

LEASE_SECONDS = 30.0


class Killed(BaseException):
    """Raised by a body that takes its process with it; no `except Exception` sees it."""


class HasNoText(Exception):
    """Raised by a body or a look-up; fails when somebody looks at it."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class Clock:
    """Time that passes only when somebody waits; far from now, so that no message of the bench has expired."""

    def __init__(self):
        self.now = 4_000_000_000.0

    def wall_seconds(self):
        return self.now

    def monotonic_seconds(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def wait_until(self, wall_seconds):
        self.now = max(self.now, wall_seconds)


class Highest(random.Random):
    """Chance that always draws the upper end, so that a delay is its ceiling."""

    def uniform(self, a, b):
        return b


class Cable:
    """A store behind a cable that can be pulled: while it is out no method answers."""

    def __init__(self, store, clock):
        self._store = store
        self._clock = clock
        self.out_until = 0.0
        self.losing_answers_of = set()
        self.calls = []

    def pull(self, seconds):
        """Take the store away from now on."""
        self.out_until = self._clock.wall_seconds() + seconds

    def lose_answer_of(self, method):
        """Let the next call of a method arrive, and its answer be lost."""
        self.losing_answers_of.add(method)

    def __getattr__(self, name):
        found = getattr(self._store, name)
        return self._through(name, found) if callable(found) else found

    def _through(self, name, method):
        def call(*args, **kwargs):
            self.calls.append(name)
            if self._clock.wall_seconds() < self.out_until:
                raise StoreUnavailable(f"{name}: the cable is out")
            answer = method(*args, **kwargs)
            if name in self.losing_answers_of:
                self.losing_answers_of.remove(name)
                raise StoreUnavailable(f"{name}: the answer was lost")
            return answer

        return call


@dataclass
class Delivered:
    """What became of one message."""

    message: Any
    task_id: str
    fate: str = "kept"
    """What the broker was told: `acknowledged`, `put back`, `given up`; `kept`: nothing."""
    state: str = ""
    """What Celery's result back end said then."""
    result: Any = None
    """The result or the exception that it held."""
    traceback: str | None = None
    """The traceback that it held."""


class Bench:
    """An app, its memory broker and one worker's way of running a message."""

    clock_of = Clock

    def __init__(self, name, **settings):
        self.clock = self.clock_of()
        self.app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(task_default_queue=name, safeguards_store_url="memory://", **settings)
        self.app.now = lambda: datetime.fromtimestamp(self.clock.wall_seconds(), UTC)
        stores = self.open_stores()
        self.store, self.locks = Cable(stores.admission, self.clock), Cable(stores.locks, self.clock)
        self.store.declare_new()
        self.letters = Cable(stores.letters, self.clock)
        self.starts = stores.starts
        self.wiring = Wiring(
            settings=Settings.of(self.app),
            admission=self.store,
            locks=self.locks,
            starts=self.starts,
            letters=self.letters,
            jobs=stores.jobs,
            spool=None,
            epoch=PublisherEpoch(self.store, self.clock),
            clock=self.clock,
            chance=Highest(),
        )
        self.wiring.use_for(self.app)
        self.outcomes = []
        delivery_ended.connect(self._ended, weak=False)
        self._connection = self.app.connection_for_read()
        self._queue = self.app.amqp.queues[name](self._connection.default_channel)
        self._queue.declare()

    def open_stores(self):
        """Return the stores that everything is kept in."""
        memory = MemoryAdmissionStore(LEASE_SECONDS, self.clock.wall_seconds)
        letters, starts = MemoryLetterStore(), MemoryStartCounter()
        return Stores(admission=memory, locks=memory.locks, letters=letters, starts=starts, jobs=MemoryJobStore())

    def close(self):
        """Give back what the app holds."""
        delivery_ended.disconnect(self._ended)
        self._queue.delete()
        self._connection.release()
        self.app.close()

    def task(self, body, safeguards=None, **options):
        """Register a bound task."""
        # Celery writes a function's name into source text, which a lambda's does not survive.
        body.__name__ = "body"
        given = {"name": f"bench.{uuid.uuid4().hex[:8]}", "bind": True, "shared": False, "base": SafeTask, **options}
        task = self.app.task(safeguards=safeguards or Safeguards(), **given)(body)
        return self.app.tasks[task.name]

    def keyed(self, body, on_unknown="rerun", *, idempotent=None, **safeguards):
        """Register a task with the key `op:{number}`."""
        key = Idempotent("op:{number}", on_unknown=on_unknown, **(idempotent or {}))
        return self.task(body, Safeguards(idempotent=key, **safeguards))

    def waiting(self):
        """Return how many messages lie in the queue."""
        return self._queue.queue_declare(passive=True).message_count

    def receive(self):
        """Take a message from the queue, at its eta."""
        message = self._queue.get(accept=self.app.conf.accept_content)
        assert message is not None, "no message is waiting"
        # As kombu's Redis transport marks it; the memory transport has the mark, and keeps it to itself.
        message.delivery_info["redelivered"] = bool(message._raw.get("redelivered"))
        if message.headers["eta"]:
            self.clock.wait_until(datetime.fromisoformat(message.headers["eta"]).timestamp())
        return message

    def deliver(self, *, worker_dies=False):
        """
        Run the next message as a worker does.

        Args:
            worker_dies: the worker is gone before it could say anything; the broker puts the message back.

        """
        message = self.receive()
        delivered = Delivered(message, message.headers["id"])
        task = self.app.tasks[message.headers["task"]]
        kind = create_request_cls(symbol_by_name(task.Request), task, self, "bench", None, app=self.app)

        def on_ack(*args):
            delivered.fate = "acknowledged"
            message.ack_log_error(*args)

        def on_reject(logger, errors, requeue):
            delivered.fate = "put back" if requeue else "given up"
            message.reject_log_error(logger, errors, requeue)

        request = kind(message, on_ack=on_ack, on_reject=on_reject, app=self.app)
        self._worker_dies = worker_dies
        request.execute_using_pool(self)
        if worker_dies:
            message.requeue()
        stored = self.app.AsyncResult(delivered.task_id)
        delivered.state, delivered.result, delivered.traceback = stored.state, stored.result, stored.traceback
        return delivered

    def apply_async(self, target, args, *, accept_callback, callback, error_callback, **_):
        """Be the pool: run the child's side in this thread."""
        accept_callback(os.getpid(), time.monotonic())
        try:
            answer = target(*args, app=self.app)
        except Killed as death:
            if not self._worker_dies:
                lost = WorkerLostError(repr(death))
                error_callback(ExceptionInfo((WorkerLostError, lost, death.__traceback__)))
        else:
            if not self._worker_dies:
                callback(answer)

    def drain(self, most=20):
        """Run messages until none is left; returns what became of each."""
        delivered = []
        while self.waiting():
            assert len(delivered) < most, "messages breed messages"
            delivered.append(self.deliver())
        return delivered

    def record(self, task, number):
        """Return the record of `op:{number}`."""
        return self.store.read(task.plan.record_key(task.plan.key((number,), {})))

    def all_letters(self):
        """Return every letter."""
        return self.letters.list().letters

    def _ended(self, sender, task_id, outcome, key, reason, **_):
        if sender.app is self.app:
            self.outcomes.append(outcome)
