"""
The stage of the canvas tests: what is sent, and all that a test can do to it and see of it from outside.

The app and the bodies of its tasks are in `canvas_app.py`, the canvases in `canvas_shapes.py`.
"""

import contextlib
import json
import os
import signal
import sys
import uuid
from collections import Counter
from dataclasses import dataclass

import redis

from celery_safeguards.wiring import Wiring
from example_project.gateway import Gateway
from tests.acceptance import canvas_app
from tests.acceptance.canvas_app import PATIENCE_SECONDS, make_app
from tests.acceptance.canvas_shapes import BESIDE, SHAPES, WITH_CHORD, Parts
from tests.support import apps, servers, workers
from tests.support.announcements import Announcements, is_said
from tests.support.waiting import wait_until

AT_SENDING = ("before_send", "after_send")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A canvas that was published; `orders` may be those of another one too."""

    shape: str
    name: str
    orders: str
    hit_id: str
    last_id: str
    """Of the task whose result stands for the whole; of the first, where links follow."""

    @property
    def hit_order(self):
        return f"{self.orders}-hit"


class Stage:
    """Broker, gateway and workers of a test, and what can be seen of them from outside; leaves nothing behind."""

    def __init__(self, redis_url, directory):
        self.redis_url, self._directory = redis_url, directory
        self._namespace = f"t{uuid.uuid4().hex[:12]}"
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        enter = self._stack.enter_context
        self._redis = enter(redis.Redis.from_url(self.redis_url, decode_responses=True, socket_timeout=5))
        self._stack.callback(lambda: servers.forget(self._redis, self._namespace))
        self.gateway = enter(Gateway())
        self.announcements = enter(Announcements())
        self.app = enter(make_app(self._namespace, self.redis_url))
        # The test asks for states; a subscription for each result that it publishes would outlive it.
        self.app.backend.result_consumer.consume_from = lambda task_id: None
        self._stack.callback(self.app.backend.client.close)
        wiring = Wiring.of(self.app)
        wiring.admission.declare_new()
        self._letters = wiring.letters
        return self

    def __exit__(self, *exc_info):
        self._stack.close()

    def worker(self, concurrency, **changes):
        """Start a worker and return at once; changes are Celery settings."""
        settings = {"namespace": self._namespace, "broker_url": self.redis_url, **changes}
        worker = workers.start_worker(
            f"{canvas_app.__name__}:app",
            {apps.GATEWAY_URL: self.gateway.url, canvas_app.SETTINGS: json.dumps(settings)},
            announcements=self.announcements,
            directory=self._directory,
            concurrency=concurrency,
        )
        self._stack.callback(lambda: sys.stdout.write(f"--- log of {worker.name}\n{worker.log()}\n"))
        self._stack.callback(worker.kill_all)
        return worker

    def send(self, shape, *, hold=None, like=None, **kinds):
        """
        Publish a canvas.

        Args:
            shape: one of `SHAPES`.
            hold: the point where its member stops that is hit.
            like: an earlier canvas, whose orders it has again.
            kinds: tasks for `Parts`.

        """
        name = f"{shape}-{uuid.uuid4().hex[:6]}"
        orders = like.orders if like else name
        if hold in AT_SENDING and shape in WITH_CHORD:
            # Whichever member is the last one sends the chord's body.
            self.announcements.hold(hold, canvas=orders, sent="canvas.total")
        elif hold:
            self.announcements.hold(hold, order_id=f"{orders}-hit")
        parts = Parts(self.app, orders, name, **kinds)
        result = SHAPES[shape][0](parts).apply_async()
        return Sent(shape=shape, name=name, orders=orders, hit_id=parts.hit_id, last_id=result.id)

    def wait_until_there(self, point, sent):
        """Wait until a canvas stands at a point and return the pid of the process."""
        if point in AT_SENDING and sent.shape in WITH_CHORD:
            return self.wait_for(point, canvas=sent.orders, sent="canvas.total")["pid"]
        return self.wait_for(point, order_id=sent.hit_order)["pid"]

    def wait_until_last(self, sent):
        """Wait until the member that is hit is the only one of its chord that has not reported its part."""
        for number in BESIDE.get(sent.shape, ()):
            self.wait_for("before_ack", order_id=f"{sent.orders}-{number}")

    def kill_there(self, point, *sent):
        """Kill the processes of these canvases at a point, all of them, then open it."""
        for pid in [self.wait_until_there(point, each) for each in sent]:
            os.kill(pid, signal.SIGKILL)
        self.announcements.open(point)

    def waiting(self):
        """Return the messages that lie in the queue."""
        return [json.loads(raw) for raw in self._redis.lrange(self._key(self._namespace), 0, -1)]

    def deliver_again(self, messages):
        """Deliver messages once more, as a broker may: the same ones, each under a tag of its own."""
        for message in messages:
            message["properties"]["delivery_tag"] = uuid.uuid4().hex
            self._redis.lpush(self._key(self._namespace), json.dumps(message))

    def running(self, *sent):
        """Return the messages of the members that are hit and run just now."""
        wanted = {each.hit_id for each in sent}
        taken = [json.loads(raw)[0] for raw in self._redis.hvals(self._key("unacked"))]
        return [message for message in taken if message["headers"]["id"] in wanted]

    def wait_for(self, event, *, count=1, **fields):
        """Wait until a worker says this."""
        return self.announcements.wait_for(is_said(event, **fields), PATIENCE_SECONDS, count=count)

    def heard(self, event, **fields):
        """Return what workers have said."""
        return self.announcements.heard(is_said(event, **fields))

    def told(self, sent):
        """Return the values that a canvas has told at its end, in order."""
        return sorted(said["value"] for said in self.heard("told", canvas=sent.name))

    def charges(self, sent):
        """Return for each order of a canvas how often it was charged."""
        return Counter(each["order_id"] for each in self.gateway.till.charges() if _belongs(each["order_id"], sent))

    def meta(self, task_id):
        """Return `(state, result)` as the result back end has them."""
        found = self.app.backend.get_task_meta(task_id, cache=False)
        return found["status"], found["result"]

    def letters_of(self, sent):
        """Return the dead letters that hold an order of a canvas."""
        return [each for each in self._letters.list(limit=1000).letters if sent.orders.encode() in each.wire.body]

    def unacknowledged(self):
        """Return how many messages are taken and not acknowledged."""
        return self._redis.hlen(self._key("unacked"))

    def wait_quiet(self):
        """
        Wait until nothing more can come, with one worker: every task acknowledges last, after all that it publishes.

        An empty broker alone does not prove it: for a moment a message that was taken stands neither on the list nor
        among the unacknowledged. Such a message is received before a probe that is sent after it.
        """
        keys = [self._key(name) for name in (self._namespace, "unacked", "unacked_index")]
        is_quiet = False
        while not is_quiet:
            received, probe = len(self.heard("task_received")), uuid.uuid4().hex
            wait_until(lambda: not self._redis.exists(*keys), PATIENCE_SECONDS, "the broker is empty")
            self.app.tasks["canvas.tell"].delay(value=0, canvas=probe)
            self.wait_for("told", canvas=probe)
            is_quiet = received + 1 == len(self.heard("task_received"))

    def _key(self, name):
        return f"{self._namespace}.{name}"


def _belongs(order_id, sent):
    return order_id.startswith(f"{sent.orders}-")
