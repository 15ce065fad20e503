"""
Messages as no task can read them, laid into a queue of Redis as a broken producer would, and a scene to lay them.
"""

import base64
import contextlib
import json
import sys
import uuid

import pytest
import redis

from celery_safeguards.wiring import Wiring
from tests.acceptance import intake_app
from tests.support import apps, servers, workers
from tests.support.announcements import Announcements, is_said
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 20


class Intake:
    """
    Broker, store and workers of one test, on a namespace of its own; a context manager that leaves nothing behind.

    Args:
        redis_url: of broker and store.
        directory: where logs go.
        store_url: the workers' way to the store, if another.

    """

    def __init__(self, redis_url, directory, store_url=None):
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self._redis_url = redis_url
        self._directory = directory
        self._store_url = store_url or redis_url
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        enter = self._stack.enter_context
        self.redis = enter(redis.Redis.from_url(self._redis_url, decode_responses=True, socket_timeout=5))
        self._stack.callback(lambda: servers.forget(self.redis, self.namespace))
        self.announcements = enter(Announcements())
        where = {apps.BROKER_URL: self._redis_url, apps.STORE_URL: self._redis_url, apps.NAMESPACE: self.namespace}
        self._env = {**where, apps.STORE_URL: self._store_url}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**where, intake_app.KNOWS_GONE: "1"}.items():
                patch.setenv(name, value)
            self.app = enter(intake_app.make_app())
        self.wiring = Wiring.of(self.app)
        self.wiring.admission.declare_new()
        return self

    def __exit__(self, *exc_info):
        self._stack.close()

    def worker(self, *, pool="prefork", concurrency=1, **env):
        """Start a worker and wait until it consumes."""
        worker = workers.start_worker(
            "tests.acceptance.intake_app:app",
            {**self._env, **env},
            announcements=self.announcements,
            directory=self._directory,
            pool=pool,
            concurrency=concurrency,
        )
        self._stack.callback(lambda: sys.stdout.write(f"--- log of {worker.name}\n{worker.log()}\n"))
        self._stack.callback(worker.kill_all)
        return worker.wait_ready()

    def lay(self, raw):
        """Lay a message into the queue as it is."""
        self.redis.lpush(f"{self.namespace}.{self.namespace}", raw)

    def send(self, name, number):
        """Publish a task by its name, as a producer does that has not its code, and return its id."""
        return self.app.send_task(name, (number,)).id

    def wait_ran(self, number, timeout=PATIENCE_SECONDS, *, count=1):
        """Wait until a task has run with this number."""
        return self.announcements.wait_for(is_said("ran", number=number), timeout, count=count)

    def letters(self):
        """Return all letters."""
        return self.wiring.letters.list(limit=100).letters

    def wait_letters(self, count=1, timeout=PATIENCE_SECONDS):
        """Wait until so many letters are written, and return them."""
        enough = lambda: len(self.letters()) >= count and self.letters()  # noqa: E731
        return wait_until(enough, timeout, f"{count} letters")

    def messages(self):
        """Return how many messages the broker holds as `(waiting, unacknowledged)`."""
        waiting = self.redis.llen(f"{self.namespace}.{self.namespace}")
        return waiting, self.redis.hlen(f"{self.namespace}.unacked")

    def wait_quiet(self, timeout=PATIENCE_SECONDS):
        """Wait until the broker holds nothing more."""
        wait_until(lambda: self.messages() == (0, 0), timeout, "the broker is empty")

    def let_messages_time_out(self):
        """Make every message that is taken and not acknowledged older than the visibility timeout."""
        index = f"{self.namespace}.unacked_index"
        servers.make_older_than_any_timeout(self.redis, index)


def envelope(queue, body, headers, *, content_type="application/json", encoding="utf-8", raw_body=None):
    """Return a message as kombu's Redis transport lays it into a list."""
    return json.dumps(
        {
            "body": base64.b64encode(body).decode() if raw_body is None else raw_body,
            "content-type": content_type,
            "content-encoding": encoding,
            "headers": headers,
            "properties": {
                "correlation_id": uuid.uuid4().hex,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": uuid.uuid4().hex,
            },
        }
    )


def headers(task="intake.plain", **changes):
    """Return the headers of a message of protocol 2; a change to None of `id` or `task` leaves it out."""
    given = {"lang": "py", "task": task, "id": uuid.uuid4().hex, "retries": 0, "eta": None, "expires": None, **changes}
    return {name: value for name, value in given.items() if name not in ("id", "task") or value is not None}


GOOD_BODY = b'[[1], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
PROTOCOL_1 = b'{"task": "intake.gone", "id": "one", "args": [1], "kwargs": {}}'
DEEP_PROTOCOL_1 = PROTOCOL_1.replace(b"gone", b"plain").replace(b"1", b"[" * 600 + b"]" * 600)

# kind of letter, body, and what else of the message is odd
BAD = {
    "unknown task": ("unknown_task", GOOD_BODY, {"headers": headers("intake.gone")}),
    "unknown task of protocol 1": ("unknown_task", PROTOCOL_1, {"headers": {}}),
    "truncated json": ("undecodable", GOOD_BODY[:20], {}),
    "wrong content type": ("undecodable", b"\x80\x04]q\x00.", {"content_type": "application/x-python-serialize"}),
    "unknown encoding": ("undecodable", GOOD_BODY, {"content_type": "text/plain", "encoding": "utf-99"}),
    "headers null": ("undecodable", GOOD_BODY, {"headers": None}),
    "headers a list": ("undecodable", GOOD_BODY, {"headers": [1]}),
    "no task, nothing readable": ("undecodable", b"{", {"headers": {}}),
    "no id": ("undecodable", GOOD_BODY, {"headers": headers(id=None)}),
    "no id, of no task here": ("undecodable", GOOD_BODY, {"headers": headers("intake.gone", id=None)}),
    "id a list": ("undecodable", GOOD_BODY, {"headers": headers(id=["x"])}),
    "protocol 1 without id and args": ("undecodable", b'{"task": "intake.plain"}', {"headers": {}}),
    "task a list": ("undecodable", GOOD_BODY, {"headers": headers(["intake.plain"])}),
    "body a number": ("undecodable", b"1", {}),
    "body of two": ("undecodable", b"[[1], {}]", {}),
    "body a mapping": ("undecodable", b'{"number": 1}', {}),
    "kwargs a list": ("undecodable", b"[[1], [], {}]", {}),
    "args a number": ("undecodable", b"[1, {}, {}]", {}),
    "embed a list": ("undecodable", b"[[1], {}, [1]]", {}),
    "eta no date": ("undecodable", GOOD_BODY, {"headers": headers(eta="soon")}),
    "eta beyond every clock": ("undecodable", GOOD_BODY, {"headers": headers(eta="9999-12-31T23:59:59.999999-14:00")}),
    "expires no date": ("undecodable", GOOD_BODY, {"headers": headers(expires=[1])}),
    "time limits one number": ("undecodable", GOOD_BODY, {"headers": headers(timelimit=5)}),
    "stamps a number": ("undecodable", GOOD_BODY, {"headers": headers(stamped_headers=5)}),
    "stamps mappings": ("undecodable", GOOD_BODY, {"headers": headers(stamped_headers=[{"a": 1}])}),
    "headers nested deeply": ("undecodable", GOOD_BODY, {"headers": headers(x=json.loads("[" * 600 + "]" * 600))}),
    "protocol 1 nested deeply": ("undecodable", DEEP_PROTOCOL_1, {"headers": {}}),
    "bad base64": ("undecodable", b"abcde", {"raw_body": "abcde"}),
    "body of the envelope a list": ("undecodable", b'["x"]', {"raw_body": ["x"]}),
}

# What plain Celery runs all the same, and a guarded task does not.
ODD = {
    "id null": (GOOD_BODY, {"id": ""}),
    "embed null": (b"[[1], {}, null]", {}),
    "retries a text": (GOOD_BODY, {"retries": "x"}),
    "retries below zero": (GOOD_BODY, {"retries": -5}),
}


def odd_message(name, task, queue):
    """Return an odd message for a queue."""
    body, changes = ODD[name]
    return envelope(queue, body, headers(task, **changes))


def bad_message(name, queue):
    """Return a bad message for a queue."""
    _kind, body, odd = BAD[name]
    odd = {"headers": headers(), **odd}
    return envelope(queue, body, **odd)
