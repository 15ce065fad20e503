"""
Payments that are members of canvases: the app whose members the tests kill, double, put off, retry and bury.

A member charges its order at the gateway and returns its value plus one; a chord's body charges and returns the sum. So
effects are counted outside, and the value at the end tells whether every member has passed on the right one. The last
task of a canvas has no key and no safeguards: it tells the value, once for each time that it is sent.

    before_admit ── admit ── charge ── after_effect ── settle ── after_settle ── before_send ── send ── after_send
                                                                                     ack ── before_ack ── mark ──┘

Gates stand there. One member of a canvas is the one that is hit: its order ends in `-hit`.
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
from celery import Celery, chain, chord, group
from celery._state import get_current_worker_task
from celery.signals import after_task_publish, before_task_publish, task_postrun

from celery_safeguards import (
    DidNotHappen,
    Happened,
    Idempotent,
    Outcome,
    RetryPolicy,
    Safeguards,
    SafeTask,
    Verify,
)
from celery_safeguards.signals import delivery_ended
from celery_safeguards.wiring import Wiring
from example_project.gateway import Gateway, GatewayClient
from tests.support import apps, servers, workers
from tests.support.announce import announce, gate
from tests.support.announcements import Announcements, is_said
from tests.support.waiting import wait_until

CENTS = 500
PATIENCE_SECONDS = 90
_SETTINGS = "CANVAS_SETTINGS"


def make_app(namespace, broker_url, **changes):
    """Return the app of a test; changes are Celery settings, the visibility timeout among them."""
    where = apps.queue_settings(namespace)
    sweep = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    lapse = {"visibility_timeout": changes.pop("visibility_timeout", 600)}
    settings = {
        **where,
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {**where["broker_transport_options"], **sweep, **lapse},
        "result_backend": broker_url,
        "result_backend_transport_options": where["broker_transport_options"],
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "safeguards_namespace": namespace,
        "safeguards_store_url": broker_url,
        "safeguards_lease_seconds": 10.0,
        "safeguards_deferral_base_seconds": 0.5,
        "safeguards_deferral_cap_seconds": 1.0,
    }
    made = Celery("canvas", set_as_current=False)
    made.conf.update({**settings, **changes})
    for name, (body, options) in TASKS.items():
        made.task(body, name=f"canvas.{name}", shared=False, **options)
    return made


# --- the bodies


def gateway():
    return GatewayClient(os.environ[apps.GATEWAY_URL], timeout_seconds=PATIENCE_SECONDS)


def charge(order_id):
    gateway().charge(order_id, CENTS)
    gate("after_effect", order_id=order_id)


def add(value, order_id):
    charge(order_id)
    return value + 1


def total(values, order_id):
    charge(order_id)
    return sum(values)


def fail_once(self, value, order_id):
    """Fail before anything outside can have happened, and be an ordinary member at the second attempt."""
    if self.safe.attempt == 1:
        raise ConnectionRefusedError(f"{order_id}: nobody listens")
    return add(value, order_id)


def fail(value, order_id):
    gate("fails", order_id=order_id)
    raise ValueError(f"{order_id} is no order")


def tell(value, canvas):
    announce("told", canvas=canvas, value=value)


def compensate(task_id, order_id):
    """Be an errback with a key: charge the failed order back, once."""
    charge(order_id)


def tell_failure(task_id, canvas, of):
    """Be an errback that is sent as a task."""
    announce("told_failure", canvas=canvas, of=of, task_id=task_id)


def tell_error(request, error, traceback, canvas):
    """Be an errback that is called where the task has failed."""
    announce("told_error", canvas=canvas, task_id=request.id, error=repr(error))


def find_payment(order_id, value=None, values=()):
    """Say what a charged order has returned."""
    return Happened(sum(values) if value is None else value + 1) if gateway().charges(order_id) else DidNotHappen()


class GuardedTask(SafeTask):
    abstract = True

    def before_start(self, task_id, args, kwargs):
        gate("before_admit", order_id=kwargs["order_id"])


KEYED = Safeguards(
    idempotent=Idempotent("{order_id}", on_unknown=Verify(find_payment, after_seconds=0.2), scope="payments"),
    retry=RetryPolicy(attempts=4, base_seconds=0.2, factor=1.0, cap_seconds=0.2),
)
GUARDED = {"base": GuardedTask, "safeguards": KEYED}
TASKS = {
    "add": (add, GUARDED),
    "total": (total, GUARDED),
    "fail_once": (fail_once, {**GUARDED, "bind": True}),
    "fail": (fail, GUARDED),
    "compensate": (compensate, GUARDED),
    "plain_add": (add, {"reject_on_worker_lost": True}),
    "plain_fail": (fail, {}),
    "tell": (tell, {}),
    "tell_failure": (tell_failure, {}),
    "tell_error": (tell_error, {}),
}


# --- the canvases


class Parts:
    """
    The signatures of one canvas.

    Args:
        app: of the test.
        orders: the order ids begin with it; two canvases of the same orders are one operation twice.
        canvas: its name, by which its end is told.
        hit: the task of the member that is hit.
        member: the task of the others.
        errbacks: whether the member that is hit has some.

    """

    def __init__(self, app, orders, canvas, *, hit="add", member="add", errbacks=True):
        self._tasks, self._orders, self._canvas = app.tasks, orders, canvas
        self._hit, self._member = hit, member
        self._has_errbacks = errbacks
        self.hit_id = uuid.uuid4().hex

    def hit(self, *value):
        """Return the member that is hit, with an errback of each kind."""
        signature = self._sign(self._hit, *value, order_id=f"{self._orders}-hit").set(task_id=self.hit_id)
        for errback in self._errbacks():
            signature.link_error(errback)
        return signature

    def add(self, number, *value):
        return self._sign(self._member, *value, order_id=f"{self._orders}-{number}")

    def total(self):
        """Return a chord's body, whose result or failure is told."""
        body = self.then_tell(self._sign("total", order_id=f"{self._orders}-body"))
        body.link_error(self._sign("tell_failure", canvas=self._canvas, of="body"))
        return body

    def tell(self):
        return self._sign("tell", canvas=self._canvas)

    def then_tell(self, signature):
        signature.link(self.tell())
        return signature

    def _errbacks(self):
        if not self._has_errbacks:
            return
        yield self._sign("tell_failure", canvas=self._canvas, of="member")
        yield self._sign("tell_error", canvas=self._canvas)
        yield self._sign("compensate", order_id=f"{self._orders}-back")

    def _sign(self, task, *value, **named):
        return self._tasks[f"canvas.{task}"].s(*value, **named)


def _chain(its):
    return chain(its.add(1, 0), its.hit(), its.add(3), its.tell())


def _link(its):
    first = its.hit(0)
    first.link(its.then_tell(its.add(2)))
    return first


def _links(its):
    first = its.then_tell(its.hit(0))
    for number in (2, 3):
        first.link(its.then_tell(its.add(number)))
    return first


def _group(its):
    return group(its.then_tell(its.hit(0)), its.then_tell(its.add(2, 5)))


def _group_after(its):
    return chain(its.hit(0), group(its.then_tell(its.add(2)), its.then_tell(its.add(3))))


def _chord(its):
    return chord([its.hit(1), its.add(2, 2), its.add(3, 3)], its.total())


def _single(its):
    return chord([its.hit(1)], its.total())


def _nested(its):
    return chord([chain(its.add(1, 0), its.hit()), its.add(3, 5)], its.total())


def _chord_after(its):
    return chain(its.hit(0), group(its.add(2), its.add(3)), its.total())


# What each tells in the end, and how many orders it charges.
SHAPES = {
    "chain": (_chain, [3], 3),
    "link": (_link, [2], 2),
    "links": (_links, [1, 2, 2], 3),
    "group": (_group, [1, 6], 2),
    "group_after": (_group_after, [2, 2], 3),
    "chord": (_chord, [9], 4),
    "single": (_single, [2], 2),
    "nested": (_nested, [8], 4),
    "chord_after": (_chord_after, [4], 4),
}
WITH_CHORD = ("chord", "single", "nested")
AT_SENDING = ("before_send", "after_send")


# --- the test's half


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
        self._redis_url, self._directory = redis_url, directory
        self._namespace = f"t{uuid.uuid4().hex[:12]}"
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        enter = self._stack.enter_context
        self._redis = enter(redis.Redis.from_url(self._redis_url, decode_responses=True, socket_timeout=5))
        self._stack.callback(lambda: servers.forget(self._redis, self._namespace))
        self.gateway = enter(Gateway())
        self.announcements = enter(Announcements())
        self.app = enter(make_app(self._namespace, self._redis_url))
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
        settings = {"namespace": self._namespace, "broker_url": self._redis_url, **changes}
        worker = workers.start_worker(
            f"{__name__}:app",
            {apps.GATEWAY_URL: self.gateway.url, _SETTINGS: json.dumps(settings)},
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


# --- the worker's half


def _on_ended(sender, task_id, outcome, key, reason, **_):
    order_id = sender.request.kwargs.get("order_id")
    announce("ended", task_id=task_id, order_id=order_id, outcome=outcome, reason=reason)
    if outcome is Outcome.SUCCEEDED:
        gate("after_settle", order_id=order_id)


@before_task_publish.connect
def _on_publish(sender=None, headers=None, **_):
    _gate_of_continuation("before_send", sender, headers)


@after_task_publish.connect
def _on_published(sender=None, headers=None, **_):
    _gate_of_continuation("after_send", sender, headers)


def _gate_of_continuation(point, sent, headers):
    parent = get_current_worker_task()
    # Not the copies that follow a retry or a deferral: they keep the parent of their original.
    if parent is not None and headers["parent_id"] == parent.request.id:
        order_id = parent.request.kwargs.get("order_id") or ""
        gate(point, order_id=order_id, canvas=order_id.rpartition("-")[0], sent=sent)


@task_postrun.connect
def _on_postrun(task_id=None, kwargs=None, **_):
    gate("before_ack", order_id=kwargs.get("order_id"), task_id=task_id)


def _app_from_environment():
    delivery_ended.connect(_on_ended, weak=False)
    return make_app(**json.loads(os.environ[_SETTINGS]))


app = _app_from_environment() if _SETTINGS in os.environ else None
