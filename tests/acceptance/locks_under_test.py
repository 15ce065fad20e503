"""
Critical sections under test: their workers, their locks, and what is seen of each entity from outside.

The truth is the list of visits, which a Redis keeps in the order in which bodies came and went. It knows of no lock.
"""

import contextlib
import itertools
import json
import sys
import time
import uuid

import redis

from celery_safeguards.wiring import Wiring
from tests.acceptance import locks_app
from tests.support import servers, workers
from tests.support.announcements import Announcements, is_said
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 30
_numbers = itertools.count(1)


class Sections:
    """
    Everything of one test, on a namespace of its own; a context manager that leaves nothing behind.

    Args:
        visits_url: of the Redis that keeps the visits.
        directory: for the workers' logs.
        server_url: of broker and locks; the same Redis unless given.
        changes: Celery settings that JSON can hold.

    """

    def __init__(self, visits_url, directory, server_url=None, **changes):
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self._visits_url = visits_url
        self._directory = directory
        where = {"namespace": self.namespace, "broker_url": server_url or visits_url, "visits_url": visits_url}
        self._settings = {**where, **changes}
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        enter = self._stack.enter_context
        self.redis = enter(redis.Redis.from_url(self._visits_url, decode_responses=True, socket_timeout=5))
        self._stack.callback(lambda: servers.forget(self.redis, self.namespace))
        self.announcements = enter(Announcements())
        self.app = enter(locks_app.build(locks_app.settings(**self._settings)))
        self.wiring = Wiring.of(self.app)
        self.wiring.admission.declare_new()
        return self

    def __exit__(self, *exc_info):
        self._stack.close()

    def start_worker(self, concurrency=1):
        """Start a worker and wait until it consumes."""
        worker = workers.start_worker(
            "tests.acceptance.locks_app:app",
            {locks_app.SETTINGS: json.dumps(self._settings)},
            announcements=self.announcements,
            directory=self._directory,
            concurrency=concurrency,
        )
        self._stack.callback(lambda: sys.stdout.write(f"--- log of {worker.name}\n{worker.log()}\n"))
        self._stack.callback(worker.kill_all)
        return worker.wait_ready()

    def entity(self, lock, kind):
        """Return an entity that no other test visits, for tasks with this lock and of this kind."""
        return Entity(self, lock, kind, f"e{next(_numbers)}")

    def wait_until_takeovers_begin(self):
        """
        Wait until only its lease protects a lock.

        Whoever finds that no worker was heard for a while, as before the first one, keeps all locks for one lease.
        """

        def is_over():
            view = self.wiring.admission.view()
            return view.now_us > view.takeover_from_us

        wait_until(is_over, PATIENCE_SECONDS, "lapsed locks may be taken")

    def let_messages_time_out(self, count):
        """Make the messages that are taken and not acknowledged lapse, once no more than so many are left of them."""
        index = f"{self.namespace}.unacked_index"
        # A worker acknowledges a message after its body has told of its end.
        wait_until(lambda: self.redis.zcard(index) <= count, PATIENCE_SECONDS, "what has succeeded is acknowledged")
        servers.make_older_than_any_timeout(self.redis, index)

    def wait_quiet(self):
        """Wait until the broker holds nothing more: nothing is to come, and nothing was kept by mistake."""
        prefix = f"{self.namespace}."

        def is_empty():
            return not self.redis.exists(f"{prefix}{self.namespace}", f"{prefix}unacked", f"{prefix}unacked_index")

        wait_until(is_empty, PATIENCE_SECONDS, "the queue and `unacked` are empty")

    def wait_ended(self, task_id, outcome, timeout=PATIENCE_SECONDS, *, count=1):
        """Wait until a delivery has ended so."""
        return self.announcements.wait_for(is_said("ended", task_id=task_id, outcome=outcome), timeout, count=count)

    def outcomes(self, task_id):
        """Return how the deliveries of a message have ended so far, in order."""
        return [said["outcome"] for said in self.announcements.heard(is_said("ended", task_id=task_id))]


class Entity:
    """One entity, as it is seen from outside, and the tasks that visit its section."""

    def __init__(self, sections, lock, kind, name):
        self._sections = sections
        self._task = sections.app.tasks[f"locks.{lock}.{kind}" if lock != "plain" else "locks.plain"]
        self.name = name

    def send(self, op, does="return", **options):
        """Publish a visit and return the message's id."""
        arguments = {"entity": self.name, "op": f"{self.name}-{op}", "does": does}
        return self._task.apply_async(kwargs=arguments, **options).id

    # --- the gate inside

    def hold(self, op):
        """Keep whoever comes in under this name inside."""
        self._sections.announcements.hold(self._gate(op))

    def let_go(self, op):
        """Let them go on, now and later."""
        self._sections.announcements.open(self._gate(op))

    def wait_inside(self, op, timeout=PATIENCE_SECONDS, *, count=1):
        """Wait until an operation is inside, and return what it said."""
        return self._sections.announcements.wait_for(self._gate(op), timeout, count=count)

    def said(self, event, op):
        """Return what was said of an operation."""
        return self._sections.announcements.heard(is_said(event, entity=self.name, op=f"{self.name}-{op}"))

    def wait_said(self, event, op, timeout=PATIENCE_SECONDS):
        """Wait until something is said of an operation."""
        wanted = is_said(event, entity=self.name, op=f"{self.name}-{op}")
        return self._sections.announcements.wait_for(wanted, timeout)

    def _gate(self, op):
        return f"inside:{self.name}:{self.name}-{op}"

    # --- what the outside sees

    def visits(self):
        """Return what happened in the section, in order, as `(what, op)`."""
        lines = self._sections.redis.lrange(locks_app.visits_key(self._sections.app, self.name), 0, -1)
        return [tuple(line.replace(f"{self.name}-", "").split(" ", 1)) for line in lines]

    def entered(self):
        """Return who has come in, in order."""
        return [op for what, op in self.visits() if what == "enter"]

    def value(self):
        """Return what the lock protects, as it was written last."""
        written = self._sections.redis.get(locks_app.value_key(self._sections.app, self.name))
        return written and written.removeprefix(f"{self.name}-")

    # --- the lock

    @property
    def lock_name(self):
        return self._task.lock_plan.name((), {"entity": self.name, "op": "any"})

    def lock(self):
        """Return how the lock stands."""
        return self._sections.wiring.locks.read(self.lock_name)[0]

    def lease_left_seconds(self):
        """Return for how long the lock is held as it stands."""
        state, now_us = self._sections.wiring.locks.read(self.lock_name)
        return (state.lease_until_us - now_us) / 1e6

    def waiting(self):
        """Return the ids of the tasks that wait for the lock, longest first."""
        return [each.holder["task_id"] for each in self._sections.wiring.locks.waiting(self.lock_name)]

    def wait_until_waits(self, task_id):
        """Wait until a task stands in the line."""
        wait_until(lambda: task_id in self.waiting(), PATIENCE_SECONDS, f"task {task_id} waits for the lock")

    def record(self, op):
        """Return the record of a keyed operation, or None."""
        plan = self._task.plan
        key = plan.key((), {"entity": self.name, "op": f"{self.name}-{op}"})
        return self._sections.wiring.admission.read(plan.record_key(key))


def overlaps(visits):
    """Return who came in while somebody else was inside, as `(who, those inside)`."""
    found, inside = [], []
    for what, op in visits:
        if what == "enter":
            found += [(op, tuple(inside))] if inside else []
            inside.append(op)
        elif what == "leave":
            inside.remove(op)
    return found


def now():
    """Return the time as announcements carry it."""
    return time.monotonic()
